// replayd: the replay-buffer daemon.
//
// Exit codes, from sysexits: 0 stopped as asked, 64 usage, 69 an address cannot be bound, 70 internal, 74 the disk is full or
// refuses, or what is on it is damaged, 75 another process has the data folder, 76 its format is not known, 78 configuration.

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <thread>

#include "server/config.h"
#include "server/heap.h"
#include "server/log.h"
#include "server/server.h"

namespace {

using replay::ConfigError;
using replay::server::Log;
using replay::server::LogLevel;
using replay::server::ServerConfig;

constexpr int kUsage = 64, kUnavailable = 69, kInternal = 70, kIo = 74, kLocked = 75, kFormat = 76, kConfig = 78;

int ExitCodeOf(replay::StorageProblem problem) {
  switch (problem) {
    case replay::StorageProblem::kLocked:
      return kLocked;
    case replay::StorageProblem::kFormat:
      return kFormat;
    default:
      return kIo;
  }
}

// A connection is a descriptor; the usual soft limit is 1024, for programs that use select().
void RaiseDescriptorLimit(uint64_t max_connections) {
  constexpr uint64_t kReserve = 128;  // listeners, the metrics port, epoll
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < max_connections + kReserve)
    Log(LogLevel::kWarning, "fewer descriptors than connections allowed",
        {{"limit", std::to_string(limit.rlim_cur)}, {"server.max_connections", std::to_string(max_connections)}});
}

}  // namespace

int main(int argc, char** argv) {
  replay::server::ConfigureHeap();

  CLI::App app{"replayd: the replay-buffer server for LLM reinforcement learning"};
  std::string config_path, metrics_listen, log_level, memory_limit, storage_path;
  std::vector<std::string> listen;
  int io_threads = 0;
  bool check_config = false;
  app.add_option("-c,--config", config_path, "JSON configuration file; its keys are described in server/config.h");
  app.add_option("--listen", listen, "Address to serve: host:port or unix:/path; may be repeated (default 127.0.0.1:7070)");
  app.add_option("--metrics-listen", metrics_listen,
                 "host:port of /metrics, /livez, /readyz; \"off\" for none (default 127.0.0.1:7071)");
  app.add_option(
      "--memory-limit", memory_limit,
      "Bytes of trajectories held and under way, e.g. 4GiB; an index of about 150 bytes each is on top (default: 70 % of what "
      "there is)");
  app.add_option("--storage-path", storage_path,
                 "Folder for what outlives the daemon: buffers and policy versions (default: none, nothing does)");
  app.add_option("--io-threads", io_threads, "Network threads (default 1)")->check(CLI::Range(1, 256));
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_flag("--check-config", check_config, "Check the configuration, say what is wrong, exit 0 or 78");
  app.set_version_flag("--version", std::string("replayd ") + REPLAY_VERSION);
  app.footer(
      "Example:\n  replayd --listen 127.0.0.1:7070 --memory-limit 4GiB\n  replayctl buffer create rollouts --policy uniform");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kUsage;
  }

  ServerConfig config;
  try {
    config = replay::server::ParseConfig(config_path.empty() ? "{}" : replay::ReadConfigFile(config_path));
    if (!listen.empty()) config.listen = listen;
    if (!metrics_listen.empty()) config.metrics_listen = metrics_listen == "off" ? "" : metrics_listen;
    if (io_threads > 0) config.io_threads = io_threads;
    if (!storage_path.empty()) config.storage_path = storage_path;
    if (!log_level.empty()) config.log_level = log_level;
    if (!memory_limit.empty()) {
      config.memory_limit_bytes = replay::ParseSize("--memory-limit", memory_limit);
      config.in_flight_bytes = std::min(config.in_flight_bytes, config.memory_limit_bytes / 4);
    }
    replay::server::CheckConfig(config);
  } catch (const ConfigError& error) {
    std::cerr << "replayd: " << (config_path.empty() ? "" : config_path + ": ") << error.what() << "\n";
    return kConfig;
  }
  if (check_config) {
    std::cout << "configuration ok\n";
    return 0;
  }
  replay::server::SetLogLevel(config.log_level);

  // One thread waits for signals, so that nothing runs in a handler.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  RaiseDescriptorLimit(config.max_connections);
  try {
    replay::server::Server server(config);
    if (const replay::StorageError error = server.OpenStorage(); error.failed()) {
      Log(LogLevel::kError, "storage: " + error.message);
      return ExitCodeOf(error.problem);
    }
    if (std::string error = server.Start(); !error.empty()) {
      Log(LogLevel::kError, error);
      return kUnavailable;
    }
    std::thread([&server, signals] {
      int received = 0;
      sigwait(&signals, &received);
      server.Stop();
      sigwait(&signals, &received);
      _exit(kInternal);  // Asked twice: at once.
    }).detach();
    server.Run();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, "internal error", {{"error", error.what()}});
    return kInternal;
  }
  return 0;
}
