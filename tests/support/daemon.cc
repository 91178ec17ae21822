#include "tests/support/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/support/raw_client.h"

namespace replay::test {
namespace {

// Under a sanitizer the daemon starts, drains and looks for leaks slowly.
constexpr int kStartTimeoutMs = 30'000;
constexpr int kStopTimeoutMs = 60'000;

std::string BinaryPath() {
  if (const char* path = std::getenv("REPLAYD")) return path;
#ifdef REPLAYD_PATH
  return REPLAYD_PATH;
#else
  return "build/dev/replayd";
#endif
}

// The value of "key":"…" in a line of the log; "" if there is none.
std::string FieldOf(const std::string& line, const std::string& key) {
  const std::string mark = "\"" + key + "\":\"";
  const size_t begin = line.find(mark);
  if (begin == std::string::npos) return "";
  const size_t from = begin + mark.size();
  return line.substr(from, line.find('"', from) - from);
}

}  // namespace

Daemon::Daemon(DaemonOptions options) : options_(std::move(options)) {
  std::string pattern = std::filesystem::temp_directory_path() / "replayd-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  folder_ = pattern;
  unix_address_ = "unix:" + folder_ + "/replayd.sock";
  try {
    Start();
  } catch (...) {
    RemoveFolder();
    throw;
  }
}

Daemon::~Daemon() {
  if (running()) Terminate();
  RemoveFolder();
}

void Daemon::RemoveFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Daemon::Start() {
  const std::string config_path = folder_ + "/replayd.json";
  std::ofstream(config_path) << "{\"server\": {\"listen\": [\"" << unix_address_ << "\", \"" << tcp_address_
                             << "\"], \"metrics_listen\": \"" << metrics_address_
                             << "\", \"io_threads\": " << options_.io_threads << (options_.server.empty() ? "" : ", ")
                             << options_.server << "}, \"buffers\": " << options_.buffers << (options_.rest.empty() ? "" : ", ")
                             << options_.rest << "}\n";
  const std::string binary = BinaryPath();
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // Not left behind if the test dies.
    if (getppid() != parent) _exit(126);
    dup2(pipe_ends[1], 1);
    dup2(pipe_ends[1], 2);
    execl(binary.c_str(), binary.c_str(), "--config", config_path.c_str(), static_cast<char*>(nullptr));
    dprintf(2, "cannot run %s\n", binary.c_str());
    _exit(127);
  }
  close(pipe_ends[1]);
  if (pid_ < 0) throw std::runtime_error("fork failed");
  lines_.clear();
  ended_ = false;
  reader_ = std::thread([this, fd = pipe_ends[0]] { ReadLog(fd); });
  WaitUntilListening();
}

void Daemon::ReadLog(int fd) {
  std::string line;
  char bytes[4096];
  for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0 || (got < 0 && errno == EINTR);) {
    for (ssize_t i = 0; i < got; ++i) {
      line += bytes[i];
      if (bytes[i] != '\n') continue;
      const std::lock_guard lock(mutex_);
      lines_.push_back(std::move(line));
      line.clear();
      changed_.notify_all();
    }
  }
  close(fd);
  const std::lock_guard lock(mutex_);
  if (!line.empty()) lines_.push_back(line);
  ended_ = true;
  changed_.notify_all();
}

void Daemon::WaitUntilListening() {
  bool tcp = false, metrics = false, unix_socket = false;
  size_t seen = 0;
  {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kStartTimeoutMs);
    while (!(tcp && metrics && unix_socket)) {
      if (!changed_.wait_until(lock, deadline, [&] { return ended_ || lines_.size() > seen; })) break;
      if (lines_.size() == seen) break;
      for (; seen < lines_.size(); ++seen) {
        const std::string message = FieldOf(lines_[seen], "msg"), address = FieldOf(lines_[seen], "address");
        if (message == "metrics listening") metrics = true, metrics_address_ = address;
        if (message != "listening") continue;
        if (address.starts_with("unix:")) {
          unix_socket = true;
        } else {
          tcp = true;
          tcp_address_ = address;
        }
      }
    }
  }
  if (tcp && metrics && unix_socket) return;
  if (pid_ > 0) kill(pid_, SIGKILL);
  Reap(kStopTimeoutMs);
  throw std::runtime_error("replayd did not start; it wrote:\n" + log());
}

std::string Daemon::log() {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const std::string& line : lines_) all += line;
  return all;
}

int Daemon::Reap(int timeout_ms) {
  int status = 0;
  for (int waited_ms = 0;; waited_ms += 5) {
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) break;
    if (waited_ms >= timeout_ms) return -1;
    usleep(5'000);
  }
  pid_ = -1;
  if (reader_.joinable()) reader_.join();
  return status;
}

void Daemon::KillNow() {
  if (!running()) return;
  kill(pid_, SIGKILL);
  const int status = Reap(kStopTimeoutMs);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "replayd had ended before it was killed, status " << status << ":\n"
      << log();
}

void Daemon::Terminate() {
  if (!running()) return;
  kill(pid_, SIGTERM);
  AwaitExit();
}

void Daemon::AwaitExit() {
  if (!running()) return;
  const int status = Reap(kStopTimeoutMs);
  if (status == -1) {
    kill(pid_, SIGKILL);
    Reap(kStopTimeoutMs);
    ADD_FAILURE() << "replayd did not end within " << kStopTimeoutMs << " ms:\n" << log();
    return;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "replayd ended with "
      << (WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status))
                            : "signal " + std::to_string(WTERMSIG(status)))
      << ":\n"
      << log();
}

uint64_t Daemon::rss_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

size_t Daemon::open_files() const {
  size_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd", error)) {
    (void)entry;
    ++count;
  }
  return count;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  RawClient client(address);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  client.Send({reinterpret_cast<const uint8_t*>(request.data()), request.size()});
  std::string answer;
  char bytes[65'536];
  while (client.Readable(kReplyDeadline)) {
    const ssize_t got = read(client.fd(), bytes, sizeof bytes);
    if (got <= 0) break;
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

}  // namespace replay::test
