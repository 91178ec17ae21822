#include "storage/database.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
// The library is not instrumented: TSan sees its memory accesses in memcpy and in what both sides have of the standard library,
// but not the locks around them.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:librocksdb.so\nrace:librocksdb.so\n"; }
#endif

namespace replay {
namespace {

constexpr std::array<const char*, static_cast<size_t>(Rows::kCount)> kNames = {"versions", "buffers", "states", "records",
                                                                               "frames"};
// What a batch takes beyond its rows: the log's headers, and files that RocksDB makes when it changes to a new log.
constexpr uint64_t kWriteOverhead = 1u << 20;

// RocksDB's own log is a file on the same disk: where a write fails, so does the line about it, and Debian's build aborts the process
// over that before the error comes back. What matters comes back as a status.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options MakeOptions(uint64_t memory_bytes) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.paranoid_checks = true;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = std::clamp<uint64_t>(memory_bytes / 16, 1u << 20, 4u << 20);
  options.db_write_buffer_size = memory_bytes / 2;  // of all families together
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(memory_bytes / 4);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.max_total_wal_size = 256u << 20;
  options.max_background_jobs = 2;
  options.allow_fallocate = false;  // What is free is free.
  options.max_open_files = 256;
  options.info_log = std::make_shared<NoLog>();
  return options;
}

StorageError ErrorOf(const char* what, const std::string& path, const rocksdb::Status& status) {
  return {StorageProblem::kIo, std::string(what) + " " + path + ": " + status.ToString()};
}

rocksdb::Slice AsSlice(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct Database::Tables {
  ~Tables() {
    if (!db) return;
    for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
    db->Close();
  }
  std::string path;
  std::atomic<uint64_t> views{0};
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;  // RocksDB's default, which stays empty, then as kNames
  rocksdb::ColumnFamilyHandle* of(Rows rows) const { return families[1 + static_cast<size_t>(rows)]; }
};

Database::Database(const DataFolder& folder, std::unique_ptr<Tables> tables) : folder_(folder), tables_(std::move(tables)) {}
Database::~Database() = default;

StorageError Database::Open(const DataFolder& folder, std::unique_ptr<Database>* database, uint64_t memory_bytes) {
  auto tables = std::make_unique<Tables>();
  tables->path = folder.path() + "/db";
  const rocksdb::Options options = MakeOptions(memory_bytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted = {{rocksdb::kDefaultColumnFamilyName, options}};
  for (const char* name : kNames) wanted.emplace_back(name, options);
  wanted[1 + static_cast<size_t>(Rows::kFrames)].options.write_buffer_size =
      std::clamp<uint64_t>(memory_bytes / 4, 1u << 20, 64u << 20);
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, tables->path, wanted, &tables->families, &opened);
  if (!status.ok()) return ErrorOf("cannot open", tables->path, status);
  tables->db.reset(opened);
  database->reset(new Database(folder, std::move(tables)));
  return folder.Sync();
}

struct Database::Batch::Changes {
  explicit Changes(const Tables* of) : tables(of) {}
  const Tables* const tables;
  rocksdb::WriteBatch batch{};
  bool puts = false;
  rocksdb::Status status;  // the first that is not good: a key or value too large for RocksDB, which nothing of ours is
  void Note(const rocksdb::Status& next) {
    if (status.ok()) status = next;
  }
};

Database::Batch::Batch(const Database& database) : changes_(std::make_unique<Changes>(database.tables_.get())) {}
Database::Batch::~Batch() = default;

void Database::Batch::Put(Rows rows, std::string_view key, std::string_view value) {
  changes_->puts = true;
  changes_->Note(changes_->batch.Put(changes_->tables->of(rows), AsSlice(key), AsSlice(value)));
}

void Database::Batch::Delete(Rows rows, std::string_view key) {
  changes_->Note(changes_->batch.Delete(changes_->tables->of(rows), AsSlice(key)));
}

void Database::Batch::DeleteRange(Rows rows, std::string_view begin, std::string_view end) {
  changes_->Note(changes_->batch.DeleteRange(changes_->tables->of(rows), AsSlice(begin), AsSlice(end)));
}

uint64_t Database::Batch::bytes() const { return changes_->batch.GetDataSize(); }

StorageError Database::HasRoomFor(uint64_t bytes) const { return folder_.HasRoomFor(bytes + kWriteOverhead); }

StorageError Database::Write(const Batch& batch, Survives survives) {
  if (broken_.failed()) return broken_;
  if (!batch.changes_->status.ok()) return ErrorOf("cannot write to", tables_->path, batch.changes_->status);
  if (batch.changes_->puts)
    if (StorageError error = HasRoomFor(batch.bytes()); error.failed()) return error;
  rocksdb::WriteOptions options;
  options.sync = survives == Survives::kNow;
  const rocksdb::Status status = tables_->db->Write(options, &batch.changes_->batch);
  if (!status.ok()) broken_ = ErrorOf("cannot write to", tables_->path, status);
  return broken_;
}

StorageError Database::Write(std::span<const Change> changes) {
  Batch batch(*this);
  for (const Change& change : changes) {
    if (change.value)
      batch.Put(change.rows, change.key, *change.value);
    else
      batch.Delete(change.rows, change.key);
  }
  return Write(batch, Survives::kNow);
}

StorageError Database::Sync() {
  if (broken_.failed()) return broken_;
  const rocksdb::Status status = tables_->db->SyncWAL();
  if (!status.ok()) broken_ = ErrorOf("cannot write to", tables_->path, status);
  return broken_;
}

StorageError Database::Get(Rows rows, std::string_view key, std::optional<std::string>* value) const {
  value->emplace();
  const rocksdb::Status status = tables_->db->Get(rocksdb::ReadOptions(), tables_->of(rows), AsSlice(key), &**value);
  if (status.IsNotFound()) value->reset();
  return status.ok() || status.IsNotFound() ? StorageError{} : ErrorOf("cannot read", tables_->path, status);
}

Database::View::View(const Database& database)
    : database_(database), snapshot_((++database.tables_->views, database.tables_->db->GetSnapshot())) {}
Database::View::~View() {
  database_.tables_->db->ReleaseSnapshot(static_cast<const rocksdb::Snapshot*>(snapshot_));
  --database_.tables_->views;
}

// A View that begins from here on sees the deletion.
void Database::DropFiles(Rows rows, std::string_view begin, std::string_view end) {
  if (tables_->views > 0) return;
  const rocksdb::Slice first = AsSlice(begin), last = AsSlice(end);
  // Best effort: what stays is deleted all the same.
  rocksdb::DeleteFilesInRange(tables_->db.get(), tables_->of(rows), &first, &last, /*include_end=*/false)
      .PermitUncheckedError();
}

StorageError Database::View::Get(Rows rows, std::string_view key,
                                 const std::function<void(std::optional<std::string_view>)>& use) const {
  const Tables& tables = *database_.tables_;
  rocksdb::ReadOptions options;
  options.snapshot = static_cast<const rocksdb::Snapshot*>(snapshot_);
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = tables.db->Get(options, tables.of(rows), AsSlice(key), &value);
  if (!status.ok() && !status.IsNotFound()) return ErrorOf("cannot read", tables.path, status);
  use(status.ok() ? std::optional(value.ToStringView()) : std::nullopt);
  return {};
}

StorageError Database::ForEach(Rows rows, std::string_view from, const Visit& visit) const {
  const std::unique_ptr<rocksdb::Iterator> at(tables_->db->NewIterator(rocksdb::ReadOptions(), tables_->of(rows)));
  for (at->Seek(AsSlice(from)); at->Valid(); at->Next())
    if (!visit(at->key().ToStringView(), at->value().ToStringView())) return {};
  return at->status().ok() ? StorageError{} : ErrorOf("cannot read", tables_->path, at->status());
}

std::string BigEndian(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

std::optional<uint64_t> FromBigEndian(std::string_view bytes) {
  if (bytes.size() < 8) return std::nullopt;
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

}  // namespace replay
