#include "tests/fault/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace replay::fault {

std::string Ended::ToString() const {
  std::string text = status == kRunning    ? "runs"
                     : status == kTimedOut ? "did not come up in time"
                     : status > 128        ? "ended by signal " + std::to_string(status - 128)
                                           : "exit status " + std::to_string(status);
  for (const std::string& line : lines) text += "\n    " + line;
  return text;
}

DaemonProcess::DaemonProcess(std::string replayd, const std::string& folder, const DaemonConfig& config)
    : replayd_(std::move(replayd)),
      config_path_(folder + "/replayd.json"),
      log_path_(folder + "/replayd.log"),
      socket_path_(folder + "/replayd.sock"),
      address_("unix:" + socket_path_) {
  const nlohmann::json text = {
      {"server", {{"listen", {address_}}, {"metrics_listen", ""}, {"io_threads", config.io_threads}, {"max_connections", 256}}},
      {"memory", {{"limit", config.memory}}},
      {"storage", {{"path", config.data}, {"reserve_bytes", config.reserve_bytes}}},
      {"buffers", config.buffers}};
  std::ofstream(config_path_) << text.dump(2) << "\n";
}

bool DaemonProcess::Accepts() const {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (socket_path_.size() >= sizeof to.sun_path) Fail("the path of the socket is too long: " + socket_path_);
  std::memcpy(to.sun_path, socket_path_.c_str(), socket_path_.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool accepted = connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  close(fd);
  return accepted;
}

Ended DaemonProcess::Start(milliseconds patience) {
  Kill();
  ::unlink(socket_path_.c_str());  // So that who connects has the new one.
  const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) FailErrno("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execl(replayd_.c_str(), replayd_.c_str(), "--config", config_path_.c_str(), static_cast<char*>(nullptr));
    dprintf(2, "cannot run %s\n", replayd_.c_str());
    _exit(127);
  }
  close(log);
  const auto deadline = steady_clock::now() + patience;
  Ended ended;
  while (!Reap(&ended)) {
    if (Accepts()) return {};
    if (steady_clock::now() > deadline) {
      Kill();
      return {Ended::kTimedOut, this->log()};
    }
    SleepMs(1);
  }
  return ended;
}

bool DaemonProcess::Reap(Ended* ended) {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return false;
  pid_ = -1;
  *ended = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), log()};
  return true;
}

void DaemonProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

Ended DaemonProcess::Kill() {
  Ended ended;
  if (pid_ <= 0 || Reap(&ended)) return ended;
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return ended;
}

Ended DaemonProcess::Terminate(milliseconds patience) {
  Ended ended;
  if (pid_ <= 0) return ended;
  kill(pid_, SIGTERM);
  for (const auto deadline = steady_clock::now() + patience; !Reap(&ended); SleepMs(1)) {
    if (steady_clock::now() < deadline) continue;
    Kill();
    return {Ended::kTimedOut, log()};
  }
  return ended;
}

std::vector<std::string> DaemonProcess::log() const {
  std::vector<std::string> lines;
  std::ifstream file(log_path_);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace replay::fault
