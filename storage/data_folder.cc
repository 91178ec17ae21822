#include "storage/data_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace replay {
namespace {

constexpr std::string_view kFormatWords = "replayd data ";
constexpr uint64_t kMaxDefaultReserve = 1ull << 30;

StorageError Failed(std::string what) {
  const int error = errno;
  return {StorageProblem::kIo, std::move(what) + ": " + std::strerror(error)};
}

// Closed when it goes out of scope.
struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
};

// The first bytes of a file, as many as a line of ours has at most.
std::string ReadLine(int fd) {
  char bytes[64];
  const ssize_t got = ::pread(fd, bytes, sizeof bytes, 0);
  std::string line(bytes, got > 0 ? static_cast<size_t>(got) : 0);
  return line.substr(0, line.find('\n'));
}

StorageError SyncFolder(const std::string& path) {
  const File folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.fd >= 0 && ::fsync(folder.fd) == 0 ? StorageError{} : Failed("cannot sync " + path);
}

bool WriteAll(int fd, std::string_view text) {
  return ::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
}

}  // namespace

StorageError FreeBytes(const std::string& path, uint64_t* bytes) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return Failed("cannot tell how much is free at " + path);
  *bytes = uint64_t{status.f_bavail} * status.f_frsize;
  return {};
}

StorageError DefaultReserve(const std::string& path, uint64_t* bytes) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return Failed("cannot tell how large the file system of " + path + " is");
  *bytes = std::min<uint64_t>(uint64_t{status.f_blocks} * status.f_frsize / 20, kMaxDefaultReserve);
  return {};
}

DataFolder::~DataFolder() {
  if (lock_ >= 0) ::close(lock_);
}

StorageError DataFolder::Open(const std::string& path, uint64_t reserve_bytes) {
  path_ = path;
  if (::mkdir(path.c_str(), 0700) == 0) {
    if (StorageError error = SyncFolder(path + "/.."); error.failed()) return error;
  } else if (errno != EEXIST) {
    return Failed("cannot make the folder " + path);
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Failed("cannot open " + path);
  if (!S_ISDIR(status.st_mode)) return {StorageProblem::kIo, path + " is not a folder"};
  if (StorageError error = CheckNobodyElses(); error.failed()) return error;
  if (StorageError error = Lock(); error.failed()) return error;
  reserve_bytes_ = reserve_bytes;
  if (reserve_bytes == 0)
    if (StorageError error = DefaultReserve(path, &reserve_bytes_); error.failed()) return error;
  if (StorageError error = HasRoomFor(0); error.failed()) return error;
  return CheckFormat();
}

StorageError DataFolder::HasRoomFor(uint64_t bytes) const {
  uint64_t free = 0;
  if (StorageError error = FreeBytes(path_, &free); error.failed()) return error;
  if (free >= reserve_bytes_ && free - reserve_bytes_ >= bytes) return {};
  return {StorageProblem::kFull, std::to_string(free) + " bytes are free at " + path_ + ", storage.reserve_bytes is " +
                                     std::to_string(reserve_bytes_) + ": nothing is written until there is more room"};
}

StorageError DataFolder::Sync() const { return SyncFolder(path_); }

StorageError DataFolder::CheckNobodyElses() const {
  std::error_code error;
  std::string other;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename();
    if (name == "FORMAT") return {};
    if (name != "LOCK" && name != "FORMAT.new" && name != "lost+found") other = name;
  }
  if (error) return {StorageProblem::kIo, "cannot list " + path_ + ": " + error.message()};
  if (other.empty()) return {};
  return {StorageProblem::kFormat, path_ + " is not a data folder of replayd: it has no FORMAT, but " + other};
}

StorageError DataFolder::Lock() {
  const std::string name = path_ + "/LOCK";
  lock_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return Failed("cannot open " + name);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed("cannot lock " + name);
    return {StorageProblem::kLocked, path_ + " is in use by process " + ReadLine(lock_)};
  }
  // Who has it is told on a full disk too: a pid of the last holder would be wrong, none is not.
  if (::ftruncate(lock_, 0) != 0) return Failed("cannot write " + name);
  WriteAll(lock_, std::to_string(::getpid()) + "\n");
  return {};
}

StorageError DataFolder::CheckFormat() {
  const std::string name = path_ + "/FORMAT", fresh = name + ".new";
  if (const File file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)); file.fd >= 0) {
    const std::string line = ReadLine(file.fd);
    const char* const end = line.data() + line.size();
    int format = 0;
    if (!line.starts_with(kFormatWords) || std::from_chars(line.data() + kFormatWords.size(), end, format).ptr != end ||
        format < 1)
      return {StorageProblem::kFormat, name + " says \"" + line + "\": expected \"" + std::string(kFormatWords) + "1\""};
    if (format > kFormat)
      return {StorageProblem::kFormat, path_ + " has format " + std::to_string(format) +
                                           ", written by a newer replayd: this one knows " + std::to_string(kFormat)};
    return {};
  }
  if (errno != ENOENT) return Failed("cannot open " + name);
  // Whole or not at all.
  const File file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.fd < 0 || !WriteAll(file.fd, std::string(kFormatWords) + std::to_string(kFormat) + "\n"))
    return Failed("cannot write " + fresh);
  if (::rename(fresh.c_str(), name.c_str()) != 0) return Failed("cannot rename " + fresh);
  return Sync();
}

}  // namespace replay
