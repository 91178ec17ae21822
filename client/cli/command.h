#pragma once
// What every command of replayctl shares: the global options, exit codes, and the way out for data (stdout), messages and errors
// (stderr).
//
//   void AddDataCommands(CLI::App* app, Context* context)     describes its options to CLI11 and, when its command was given,
//                                                             leaves in context->run what main then calls
//
// One thread, except for bench.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "replay/client.h"

namespace replay::cli {

enum ExitCode : int {  // sysexits.h, and what a shell reports for a signal
  kOk = 0,
  kFailed = 1,
  kUsage = 64,
  kBadData = 65,
  kUnavailable = 69,
  kInternal = 70,
  kIo = 74,
  kProtocol = 76,
  kInterrupted = 130,
  kBrokenPipe = 141,
};

struct Context {
  std::string server = "127.0.0.1:7070";
  milliseconds timeout{30'000};
  bool json = false;
  bool colour = false;       // stdout is a terminal and NO_COLOR is not set
  std::function<int()> run;  // set by the command that was given

  ClientOptions client_options() const {
    // Never shorter than a second: a timeout of 0 means "do not wait for a condition", not "do not wait for the network".
    const milliseconds network = std::max(timeout, milliseconds(1'000));
    return {.address = server,
            .name = "replayctl",
            .connect_timeout = std::min(network, milliseconds(5'000)),
            .call_timeout = network};
  }
};

using Json = nlohmann::ordered_json;

// stdout or the file of -o could not be written; caught in main.
struct OutputError {
  int error_number = 0;
  std::string path = "standard output";
};

inline void Print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw OutputError{.error_number = errno};
}
// One line. Server-made text may hold any bytes: what is not UTF-8 is replaced.
inline void PrintJson(const Json& json) { Print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }
inline void FlushOutput() {
  if (std::fflush(stdout) != 0) throw OutputError{.error_number = errno};
}
inline void Say(std::string_view message) {
  std::fprintf(stderr, "replayctl: %.*s\n", static_cast<int>(message.size()), message.data());
}

inline int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return kOk;
    case ErrorCode::kUnavailable:
      return kUnavailable;
    case ErrorCode::kUnsupportedVersion:
    case ErrorCode::kProtocolViolation:
      return kProtocol;
    case ErrorCode::kInternal:
      return kInternal;
    default:
      return kFailed;
  }
}

// Says what went wrong (with --json: {"error":{...}}) and returns the exit code for it. `what` is where: "lines 5-8".
inline int Fail(const Context& context, const Error& error, const std::string& what = "", int exit_code = -1) {
  const Error shown = {
      .code = error.code, .message = what.empty() ? error.message : what + ": " + error.message, .reason = error.reason};
  if (context.json) {
    const Json json = {
        {"error", {{"code", ToString(shown.code)}, {"reason", ToString(shown.reason)}, {"message", shown.message}}}};
    std::fprintf(stderr, "%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    Say(shown.ToString());
  }
  return exit_code >= 0 ? exit_code : ExitCodeOf(error.code);
}

// While one of these lives, the first Ctrl-C (or SIGTERM) only asks to stop, so that a command can clean up; the second ends the
// process. Without one, the first does.
class StopRequest {
 public:
  StopRequest() {
    stopped_ = false;
    struct sigaction action = {};
    action.sa_handler = [](int) { stopped_.store(true, std::memory_order_relaxed); };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~StopRequest() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  // Read by several threads, so a sig_atomic_t would not do; lock-free, so a signal handler may write it.
  static inline std::atomic<bool> stopped_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free);
  struct sigaction old_interrupt_ = {};
  struct sigaction old_terminate_ = {};
};

// "5s", "250ms", "2m", "1.5" (seconds)      "64MiB", "1GB", "4096" (bytes)
bool ParseDuration(const std::string& text, milliseconds* duration);
bool ParseBytes(const std::string& text, uint64_t* bytes);
CLI::Option* AddDuration(CLI::App* app, const std::string& name, milliseconds* duration, const std::string& description);
CLI::Option* AddBytes(CLI::App* app, const std::string& name, std::optional<uint64_t>* bytes, const std::string& description);
// "positives: correct = yes | uniform_distinct"; "16:positives,max_staleness=4,or_next", "8:frozen/" (all of buffer frozen).
// False: it is not of that form.
bool ParseView(const std::string& text, ViewOptions* view);
bool ParsePart(const std::string& text, SamplePart* part);
void AddBufferOptions(CLI::App* app, BufferOptions* options, const std::string& group);

void AddAdminCommands(CLI::App* app, Context* context);
void AddDataCommands(CLI::App* app, Context* context);
void AddGroupCommands(CLI::App* app, Context* context);
void AddUpdateCommand(CLI::App* app, Context* context);
void AddHistoryCommand(CLI::App* app, Context* context);
void AddBenchCommand(CLI::App* app, Context* context);

}  // namespace replay::cli
