#pragma once
// The flag that generator and trainer look at: set by SIGINT or SIGTERM, which end them in good order. Asked a second time, the
// process ends at once. SIGPIPE is ignored, so that a peer that is gone is an error where it is written to.
//
//   const std::atomic<bool>& stop = model::StopOnSignals();      in main, before anything waits

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace replay::model {

inline std::atomic<bool> stop_asked = false;

inline const std::atomic<bool>& StopOnSignals() {
  constexpr auto kOnSignal = [](int) {
    constexpr int kInternal = 70;  // EX_SOFTWARE of sysexits
    if (stop_asked.exchange(true)) _exit(kInternal);
  };
  std::signal(SIGINT, kOnSignal);
  std::signal(SIGTERM, kOnSignal);
  std::signal(SIGPIPE, SIG_IGN);
  return stop_asked;
}

}  // namespace replay::model
