#pragma once
// What every injection has in common: what it is told, the folder it works in, how it counts and what it reports.
//
//   Report report("kills", options);
//   report.Add("acknowledged");
//   report.Violation("lost", "item w0-17 was acknowledged at level disk and is not there");   // counted as "lost" as well
//   return report.Finish();                          // one line of JSON on stdout; 1 if anything was a violation

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace replay::fault {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

inline constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE

struct Options {
  int rounds = 0;
  uint64_t seed = 0;
  std::string replayd;  // the binary
};

// Everything but the results: to stderr, with the seconds since the start in front.
void Say(const std::string& text);
// What keeps an injection from being done, as against what it finds: exit status 2.
[[noreturn]] void Fail(const std::string& what);
[[noreturn]] void FailErrno(const std::string& what);
void SleepMs(double ms);
// Runs it, with its output to ours; its exit status.
int RunCommand(const std::string& command);

class Report {
 public:
  Report(std::string name, const Options& options);
  void Add(const std::string& count, int64_t by = 1);
  void Set(const std::string& name, nlohmann::json value);
  int64_t count(const std::string& name) const;
  // Any thread, as Add. The first ones are told in full.
  void Violation(const std::string& count, const std::string& what);
  void Require(bool holds, const std::string& count, const std::string& what) {
    if (!holds) Violation(count, what);
  }
  int64_t violations() const;
  // Names that are to appear even where nothing counted them.
  void Declare(std::initializer_list<const char*> names);
  int Finish();

 private:
  const std::string name_;
  const Options options_;
  const steady_clock::time_point started_ = steady_clock::now();
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
  nlohmann::json facts_;
  int64_t violations_ = 0;
};

// A folder of its own, gone at the end.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A file system mounted at `path`, unmounted at the end.
class Mounted {
 public:
  // `how`: all of a mount command but the path.
  Mounted(std::string how, std::string path);
  ~Mounted();
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  const std::string& path() const { return path_; }
  void Mount();
  void Unmount();

 private:
  const std::string how_, path_;
  bool mounted_ = false;
};
// "" or why this process may not mount. What it mounts from then on nobody else sees. Before it starts a thread.
std::string WhyNoMount();

}  // namespace replay::fault
