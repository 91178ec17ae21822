#pragma once
// The small rows that outlive the daemon, in RocksDB: keys in order, changed a batch at a time.
//
// What Write has said yes to survives a power cut, or with kLater the next Sync: so many batches share one. Nothing is written
// while less is free than the reserve of the folder, since RocksDB of Debian 12 can abort the process on a full disk. After a write
// that failed on the way, no other is tried: whether its bytes are there shows only when the daemon starts again, and a later one must
// not be there without it.
//
// A flipped bit in a row of the log is an error at Open and not, as by RocksDB's default, the silent end of what was written; a
// torn tail, which a power cut may leave of a write that was not answered, is cut. (In the header of a record a flipped bit can
// still pass for such a tail.)
//
// One thread, but for Views. All calls may block.

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
enum class Rows : uint8_t { kVersions, kBuffers, kStates, kRecords, kFrames, kCount };

class Database {
 public:
  struct Change {
    Rows rows;
    std::string key;
    std::optional<std::string> value;  // none: the row is deleted
  };

  // `folder` is open, and outlives it. It uses about `memory_bytes`, 4 MiB at least, for what has yet to be sorted into files and for
  // what was read last.
  static StorageError Open(const DataFolder& folder, std::unique_ptr<Database>* database, uint64_t memory_bytes = 64u << 20);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Gives back the room of files that have nothing but rows of a range, which have been deleted, at once and not when RocksDB comes to
  // them. Not while there are Views: they might still need them.
  void DropFiles(Rows rows, std::string_view begin, std::string_view end);

  // Changes that are made all or none. Copies what it is given.
  class Batch {
   public:
    explicit Batch(const Database& database);  // which outlives it
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    void Put(Rows rows, std::string_view key, std::string_view value);
    void Delete(Rows rows, std::string_view key);
    void DeleteRange(Rows rows, std::string_view begin, std::string_view end);  // end: the first that stays
    uint64_t bytes() const;

   private:
    friend class Database;
    struct Changes;
    std::unique_ptr<Changes> changes_;
  };
  enum class Survives : uint8_t { kNow, kLater };
  // What only deletes may use the reserve.
  StorageError Write(const Batch& batch, Survives survives);
  StorageError Write(std::span<const Change> changes);  // now
  StorageError HasRoomFor(uint64_t bytes) const;        // kFull; what is written without asking finds out itself
  // All that was written survives from here on.
  StorageError Sync();

  // The rows as they are now, whatever is written later. Any thread; it ends before the database.
  class View {
   public:
    explicit View(const Database& database);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    // nullopt: there is no such row.
    StorageError Get(Rows rows, std::string_view key, const std::function<void(std::optional<std::string_view>)>& use) const;

   private:
    const Database& database_;
    const void* const snapshot_;
  };

  // nullopt: there is no such row.
  StorageError Get(Rows rows, std::string_view key, std::optional<std::string>* value) const;
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
