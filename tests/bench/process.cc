#include "tests/bench/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace replay::bench {

using std::chrono::steady_clock;

void Fail(const std::string& what) { throw std::runtime_error(what); }

void FailErrno(const std::string& what) { Fail(what + ": " + std::strerror(errno)); }

void PinThread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const long count = sysconf(_SC_NPROCESSORS_CONF);
  for (int i = 0; i < count; ++i)
    if (core < 0 || i == core) CPU_SET(i, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) FailErrno("cannot pin to core " + std::to_string(core));
}

namespace {

// In the child, before its work.
void PrepareChild(pid_t parent, int core) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  PinThread(core);
}

}  // namespace

Process Process::Exec(const std::vector<std::string>& command, int core, const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) FailErrno("fork");
  if (pid == 0) {
    PrepareChild(parent, core);
    const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "cannot start %s: %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }
  return Process(pid);
}

Process Process::Fork(const std::function<void()>& body, int core) {
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) FailErrno("fork");
  if (pid == 0) {
    try {
      PrepareChild(parent, core);
      body();
      _exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "baseline server: %s\n", error.what());
      _exit(1);
    }
  }
  return Process(pid);
}

Process::~Process() {
  if (pid_ > 0) Stop();
}

int Process::Stop(std::chrono::milliseconds patience) {
  if (pid_ <= 0) return 0;
  kill(pid_, SIGTERM);
  const auto deadline = steady_clock::now() + patience;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (steady_clock::now() > deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool Process::Running() {
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

double Process::CpuSeconds() const {
  clockid_t clock;
  timespec time{};
  if (const int error = clock_getcpuclockid(pid_, &clock); error != 0)
    Fail(std::string("clock_getcpuclockid: ") + std::strerror(error));
  if (clock_gettime(clock, &time) != 0) FailErrno("the CPU clock of a server");
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int64_t Process::StatusField(const std::string& name) const {
  const std::string status = ReadFile("/proc/" + std::to_string(pid_) + "/status");
  const size_t at = status.find("\n" + name + ":");
  if (at == std::string::npos) Fail("/proc/" + std::to_string(pid_) + "/status has no " + name + ": the process has ended");
  return std::strtoll(status.c_str() + at + name.size() + 2, nullptr, 10);
}

int64_t Process::RssBytes() const { return StatusField("VmRSS") * 1024; }

int Process::ThreadCount() const { return static_cast<int>(StatusField("Threads")); }

ScratchDirectory::ScratchDirectory() {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base ? base : "/tmp") + "/replay_bench.XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) FailErrno("cannot make " + path_);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) Fail("cannot write " + path);
}

}  // namespace replay::bench
