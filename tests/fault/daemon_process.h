#pragma once
// The real replayd, started, killed and started again on one data folder. No test framework: how it ended is told, not asserted.
//
//   DaemonProcess daemon(options.replayd, scratch.path(), {.data = scratch / "data"});
//   if (const Ended ended = daemon.Start(); ended.status != Ended::kRunning) …   // 74: "storage: cannot open …"
//   daemon.Kill();
//
// It serves one Unix socket, without metrics. Start it from the main thread: it dies with the thread that started it.

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "tests/fault/harness.h"

namespace replay::fault {

struct DaemonConfig {
  std::string data;  // storage.path
  uint64_t reserve_bytes = 1 << 20;
  nlohmann::json buffers = nlohmann::json::array();
  int io_threads = 1;
  std::string memory = "512MiB";
};

struct Ended {
  static constexpr int kRunning = -1, kTimedOut = -2;
  int status = kRunning;           // exit status, or 128 + signal
  std::vector<std::string> lines;  // what it wrote, unless it runs
  std::string ToString() const;
};

class DaemonProcess {
 public:
  // The socket, the configuration and the log lie in `folder`, which may not be the data folder.
  DaemonProcess(std::string replayd, const std::string& folder, const DaemonConfig& config);
  ~DaemonProcess() { Kill(); }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Until it takes connections, or has ended.
  Ended Start(milliseconds patience = milliseconds(60'000));
  void Signal(int signal);
  // SIGKILL. How it had ended by itself before that, if it had.
  Ended Kill();
  // SIGTERM; 0 if it ended as it should.
  Ended Terminate(milliseconds patience = milliseconds(60'000));

  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  std::vector<std::string> log() const;  // of the present or last run

 private:
  bool Reap(Ended* ended);  // without waiting
  bool Accepts() const;

  const std::string replayd_, config_path_, log_path_, socket_path_, address_;
  pid_t pid_ = -1;
};

}  // namespace replay::fault
