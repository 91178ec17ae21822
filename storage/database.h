#pragma once
// The small rows that outlive the daemon, in RocksDB: keys in order, changed a batch at a time.
//
// What Write has said yes to survives a power cut. Nothing is written while less is free than the reserve of the folder, since
// RocksDB of Debian 12 can abort the process on a full disk. After a write that failed on the way, no other is tried: whether
// its bytes are there shows only when the daemon starts again, and a later one must not be there without it.
//
// A flipped bit in a row of the log is an error at Open and not, as by RocksDB's default, the silent end of what was written; a
// torn tail, which a power cut may leave of a write that was not answered, is cut. (In the header of a record a flipped bit can
// still pass for such a tail.)
//
// One thread. All calls may block.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "storage/data_folder.h"

namespace replay {

// A kind of rows: a column family of RocksDB.
enum class Rows : uint8_t { kVersions, kCount };

class Database {
 public:
  struct Change {
    Rows rows;
    std::string key;
    std::optional<std::string> value;  // none: the row is deleted
  };

  // `folder` is open, and outlives it.
  static StorageError Open(const DataFolder& folder, std::unique_ptr<Database>* database);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // All of them or none.
  StorageError Write(std::span<const Change> changes);
  // In the order of their keys, from `from` on, until `visit` returns false. It must not write.
  using Visit = std::function<bool(std::string_view key, std::string_view value)>;
  StorageError ForEach(Rows rows, std::string_view from, const Visit& visit) const;

 private:
  struct Tables;
  Database(const DataFolder& folder, std::unique_ptr<Tables> tables);

  const DataFolder& folder_;
  const std::unique_ptr<Tables> tables_;
  StorageError broken_;  // what a write failed with
};

// A number as eight bytes whose order is the order of the numbers.
std::string BigEndian(uint64_t number);
// Of the first eight bytes; nullopt if there are fewer.
std::optional<uint64_t> FromBigEndian(std::string_view bytes);

}  // namespace replay
