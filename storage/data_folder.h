#pragma once
// The folder that a daemon keeps its data in, and whose it is.
//
//   LOCK      flock of the daemon that has it, and its process id for the message to the next; never removed
//   FORMAT    "replayd data 1": what may be opened
//   db/       RocksDB's, see database.h
//
// The lock ends with the process, however it ends: what a daemon that died left behind blocks nobody. A folder that has other
// things in it is left alone; one with a newer format, or on a disk that is full, is refused before anything but LOCK is written
// (RocksDB of Debian 12 can abort the process when it opens a database on a full disk).

#include <cstdint>
#include <string>

namespace replay {

enum class StorageProblem : uint8_t {
  kNone,
  kFull,    // less is free than the reserve; nothing was written
  kIo,      // the system refused, or what is there is damaged
  kLocked,  // another process has it
  kFormat,  // written by a newer version, or not by replayd
};
struct StorageError {
  StorageProblem problem = StorageProblem::kNone;
  std::string message{};
  bool failed() const { return problem != StorageProblem::kNone; }
};

// Bytes that an unprivileged process may still write to the file system of `path`. The error names the path.
StorageError FreeBytes(const std::string& path, uint64_t* bytes);
// 5 % of the file system, 1 GiB at most.
StorageError DefaultReserve(const std::string& path, uint64_t* bytes);

class DataFolder {
 public:
  static constexpr int kFormat = 1;

  DataFolder() = default;
  ~DataFolder();
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  // Makes it, for its owner alone, if it does not exist; its parent must. `reserve_bytes` 0: DefaultReserve.
  StorageError Open(const std::string& path, uint64_t reserve_bytes);

  const std::string& path() const { return path_; }
  uint64_t reserve_bytes() const { return reserve_bytes_; }
  void SetReserve(uint64_t bytes) { reserve_bytes_ = bytes; }
  // That the files made in it are found again after a power cut.
  StorageError Sync() const;
  // kFull if `bytes` more would leave less than the reserve.
  StorageError HasRoomFor(uint64_t bytes) const;

 private:
  StorageError CheckNobodyElses() const;
  StorageError Lock();
  StorageError CheckFormat();

  std::string path_;
  uint64_t reserve_bytes_ = 0;
  int lock_ = -1;
};

}  // namespace replay
