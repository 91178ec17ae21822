#pragma once
// Child processes of a bench: started pinned to a core, asked for CPU time and memory, ended with SIGTERM.
// A child dies with the bench, however that ends.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace replay::bench {

// Everything that goes wrong in a bench ends it, with one sentence.
[[noreturn]] void Fail(const std::string& what);
// The same with errno's text.
[[noreturn]] void FailErrno(const std::string& what);

// The calling thread, and what it starts from now on, runs on this core only. A negative core: on all.
void PinThread(int core);

class Process {
 public:
  // `log_path` receives stdout and stderr.
  static Process Exec(const std::vector<std::string>& command, int core, const std::string& log_path);
  // Runs `body` in a forked child. The caller has no other thread at this moment.
  static Process Fork(const std::function<void()>& body, int core);

  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Process();

  // SIGTERM, then SIGKILL after `patience`. The exit status, 128 + signal if one ended it.
  int Stop(std::chrono::milliseconds patience = std::chrono::seconds(10));
  bool Running();
  pid_t pid() const { return pid_; }

  // User and system time of all threads, ended ones too, to the nanosecond (/proc/PID/stat counts in 10 ms).
  double CpuSeconds() const;
  int64_t RssBytes() const;
  int ThreadCount() const;

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  int64_t StatusField(const std::string& name) const;
  pid_t pid_ = -1;
};

// A directory of its own under $TMPDIR, removed at the end.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);  // "" if there is none
void WriteFile(const std::string& path, const std::string& text);

}  // namespace replay::bench
