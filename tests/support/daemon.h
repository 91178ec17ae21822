#pragma once
// The real replayd as a child process, with a configuration of the test's, on free ports and a Unix socket of its own.
//
//   Daemon daemon({.buffers = R"([{"name": "rollouts", "capacity_items": 100}])"});
//   RawClient client(daemon.address(), /*hello=*/true);
//   daemon.KillNow();  daemon.Start();                        // a crash, and back on the same addresses
//
// The destructor ends it with SIGTERM and fails the test unless it exits with status 0 in time, so that what a sanitizer
// reports in the daemon fails the test as well. The binary: $REPLAYD, else REPLAYD_PATH of the build.

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace replay::test {

struct DaemonOptions {
  std::string buffers = R"([{"name": "rollouts", "capacity_items": 100000}])";
  int io_threads = 1;
  std::string server = {};  // more keys of "server", e.g. R"("no_producer_after": "100ms")"
  std::string rest = {};    // more top-level keys, e.g. R"("memory": {"limit": "64MiB"})"
};

class Daemon {
 public:
  explicit Daemon(DaemonOptions options = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const std::string& address() const { return tcp_address_; }
  const std::string& unix_address() const { return unix_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  uint64_t rss_bytes() const;
  size_t open_files() const;
  std::string log();  // all it has written so far

  // Starts it again after KillNow or Terminate, on the addresses it had.
  void Start();
  void KillNow();    // SIGKILL
  void Terminate();  // SIGTERM, then AwaitExit
  void AwaitExit();  // fails the test unless it ends with status 0, in time

 private:
  void RemoveFolder();
  void WaitUntilListening();
  void ReadLog(int fd);
  int Reap(int timeout_ms);  // status, or -1 at the deadline

  const DaemonOptions options_;
  std::string folder_;
  std::string tcp_address_ = "127.0.0.1:0";
  std::string metrics_address_ = "127.0.0.1:0";
  std::string unix_address_;
  pid_t pid_ = -1;

  std::thread reader_;  // of the log; ends with the process
  std::mutex mutex_;    // guards what follows
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  bool ended_ = false;
};

// GET `path` from an HTTP server on "host:port": the whole answer, head and body.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace replay::test
