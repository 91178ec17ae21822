#pragma once
// How far a long command is, on stderr: a bar that redraws itself on a terminal, else a line every few seconds, so that a log
// of a cron job stays short. Silent where stderr is closed or the command is over before the first line is due.
//
//   import  [==========>         ]  52 %  2,745 trajectories  31,204/s

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "client/cli/format.h"

namespace replay::cli {

class Progress {
 public:
  // `total` is of the same unit as Update's `done`; 0: unknown, no bar.
  Progress(std::string verb, uint64_t total)
      : verb_(std::move(verb)), total_(total), is_terminal_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(uint64_t done, uint64_t trajectories) {
    const Clock::time_point now = Clock::now();
    if (now - shown_at_ < (is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5'000))) return;
    shown_at_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string line = verb_;
    if (total_ > 0) {
      const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
      if (is_terminal_) {
        const auto filled = static_cast<size_t>(share * 20);
        line += "  [" + std::string(filled, '=') + (filled < 20 ? ">" + std::string(19 - filled, ' ') : "") + "]";
      }
      line += Format("  %3.0f %%", share * 100);
    }
    line += "  " + Count(trajectories) + " trajectories  " + Rate(static_cast<double>(trajectories) / std::max(seconds, 1e-3));
    std::fprintf(stderr, is_terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
    bar_is_shown_ = is_terminal_;
  }
  // Before anything else is written to the terminal.
  void Clear() {
    if (bar_is_shown_) std::fputs("\r\033[K", stderr);
    bar_is_shown_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string verb_;
  const uint64_t total_;
  const bool is_terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_at_ = start_;
  bool bar_is_shown_ = false;
};

}  // namespace replay::cli
