#pragma once
// Files of a checkpoint: plain system calls, each failure an error that names the path and says why.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace replay::model {

struct CheckpointError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void FailErrno(const std::string& path, const char* what) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) FailErrno(path, "cannot be opened");
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  void Write(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = write(fd_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written == 0) errno = ENOSPC;  // nothing written and no error: only when there is no room
      if (written <= 0) FailErrno(path_, "cannot be written");
      at += written;
      size -= static_cast<size_t>(written);
    }
  }
  void Close(bool sync) {
    if (sync && fsync(fd_) != 0) FailErrno(path_, "cannot be synced");
    if (close(std::exchange(fd_, -1)) != 0) FailErrno(path_, "cannot be closed");
  }

 private:
  const std::string path_;
  int fd_;
};

// The names in a folder survive a power cut only when it is synced too. "" is the current one.
inline void SyncFolder(const std::string& folder) {
  const File file(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
  if (fsync(file.fd()) != 0) FailErrno(folder, "cannot be synced");
}

// `path` under a name of this process until it is complete.
inline std::string TemporaryName(const std::string& path) { return path + ".tmp" + std::to_string(getpid()); }

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) FailErrno(path, "cannot be opened");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace replay::model
