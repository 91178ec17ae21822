#include "tests/fault/harness.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <thread>

namespace replay::fault {
namespace {

constexpr int64_t kToldInFull = 20;
const steady_clock::time_point kStart = steady_clock::now();

double SecondsSince(steady_clock::time_point then) { return std::chrono::duration<double>(steady_clock::now() - then).count(); }

}  // namespace

void Say(const std::string& text) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%7.2f s  ", SecondsSince(kStart));
  std::cerr << seconds + text + "\n";
}

void Fail(const std::string& what) { throw std::runtime_error(what); }

void FailErrno(const std::string& what) { Fail(what + ": " + std::strerror(errno)); }

void SleepMs(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

int RunCommand(const std::string& command) {
  const int status = std::system((command + " >&2").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Report::Report(std::string name, const Options& options) : name_(std::move(name)), options_(options) {
  Say(name_ + ": rounds " + std::to_string(options.rounds) + ", seed " + std::to_string(options.seed));
}

void Report::Add(const std::string& count, int64_t by) {
  const std::lock_guard lock(mutex_);
  counts_[count] += by;
}

void Report::Set(const std::string& name, nlohmann::json value) {
  const std::lock_guard lock(mutex_);
  facts_[name] = std::move(value);
}

int64_t Report::count(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = counts_.find(name);
  return at == counts_.end() ? 0 : at->second;
}

void Report::Violation(const std::string& count, const std::string& what) {
  const std::lock_guard lock(mutex_);
  ++counts_[count];
  if (++violations_ <= kToldInFull) Say("VIOLATION " + count + ": " + what);
}

int64_t Report::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

void Report::Declare(std::initializer_list<const char*> names) {
  for (const char* name : names) Add(name, 0);
}

int Report::Finish() {
  nlohmann::json line = {{"injection", name_},
                         {"rounds", options_.rounds},
                         {"seed", options_.seed},
                         {"seconds", std::round(SecondsSince(started_) * 10) / 10},
                         {"violations", violations_}};
  for (const auto& [name, value] : counts_) line[name] = value;
  for (const auto& [name, value] : facts_.items()) line[name] = value;
  std::cout << line.dump() << std::endl;
  return violations_ == 0 ? 0 : 1;
}

Scratch::Scratch() {
  path_ = std::filesystem::temp_directory_path() / "faultbench-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) FailErrno("cannot make " + path_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Mounted::Mounted(std::string how, std::string path) : how_(std::move(how)), path_(std::move(path)) {
  std::filesystem::create_directories(path_);
  Mount();
}

Mounted::~Mounted() {
  if (mounted_) RunCommand("umount -l " + path_);
}

void Mounted::Mount() {
  if (RunCommand(how_ + " " + path_) != 0) Fail("cannot mount: " + how_ + " " + path_);
  mounted_ = true;
}

void Mounted::Unmount() {
  // A process that was killed lets go of its files a moment after it has ended.
  for (int attempt = 0; RunCommand("umount " + path_ + (attempt < 50 ? " 2>/dev/null" : "")) != 0; ++attempt) {
    if (attempt == 50) Fail("cannot unmount " + path_);
    SleepMs(20);
  }
  mounted_ = false;
}

std::string WhyNoMount() {
  if (geteuid() != 0) return "only root may mount a file system";
  // In a namespace of its own, so that nothing stays mounted however this process ends. It has no other thread yet.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return "a namespace of mounts is not allowed here";
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "try");
  if (RunCommand("mount -t tmpfs tmpfs " + (scratch / "try") + " 2>/dev/null") != 0) return "mounting is not allowed here";
  RunCommand("umount " + (scratch / "try"));
  return "";
}

}  // namespace replay::fault
