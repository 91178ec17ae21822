#pragma once
// How long this process really computed, and how long it waited: CPU seconds of all its threads, so that processes which share
// cores do not count each other's work.
//
//   clock.Begin(); Generate(); clock.End();      cost = clock.TakeSeconds();

#include <ctime>
#include <utility>

namespace replay::model {

class BusyClock {
 public:
  void Begin() { began_ = CpuSeconds(); }
  void End() { seconds_ += CpuSeconds() - began_; }
  // Since the last call.
  double TakeSeconds() { return std::exchange(seconds_, 0); }

 private:
  static double CpuSeconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  double began_ = 0;
  double seconds_ = 0;
};

}  // namespace replay::model
