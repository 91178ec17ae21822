#include "server/storage_thread.h"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "server/check.h"
#include "server/log.h"

namespace replay::server {
namespace {

constexpr std::chrono::milliseconds kRetryAfter{100};
constexpr uint64_t kMostDatabaseBytes = 256u << 20;
constexpr size_t kReaders = 4;  // They wait for the disk, mostly.
// Below so much above the reserve inserts are refused. Requests that are under way by then, and draws, still find room.
constexpr uint64_t kRoomForMore = 16u << 20;

uint64_t RandomNumber() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;
}

}  // namespace

// What all daemons of a folder have in common: the row of id 0.
StorageError StorageThread::LoadIdentity() {
  std::optional<std::string> row;
  if (StorageError error = database_->Get(Rows::kBuffers, BigEndian(0), &row); error.failed()) return error;
  uint64_t secret = RandomNumber();
  generation_ = RandomNumber();
  if (row) {
    Archive archive(*row, nullptr);
    archive(secret, generation_);
    if (archive.failed() || !archive.at_end()) return {StorageProblem::kIo, "the row of the folder's identity is damaged"};
  }
  SetIdSecret(secret);
  if (row) return {};
  std::string fresh;
  Archive archive(&fresh);
  archive(secret, generation_);
  const Database::Change change{Rows::kBuffers, BigEndian(0), fresh};
  return database_->Write({&change, 1});
}

StorageError StorageThread::Open(const ServerConfig& config, MemoryBudget* budget) {
  if (!config.storage_path.empty()) {
    if (StorageError error = folder_.Open(config.storage_path, config.storage_reserve_bytes); error.failed()) return error;
    const uint64_t memory_bytes = std::min(config.memory_limit_bytes / 8, kMostDatabaseBytes);
    CHECK(budget->TryReserve(static_cast<int64_t>(memory_bytes))) << "an eighth of a memory that nobody uses yet";
    if (StorageError error = Database::Open(folder_, &database_, memory_bytes); error.failed()) return error;
    if (StorageError error = LoadIdentity(); error.failed()) return error;
  }
  versions_.emplace(database_.get());
  if (StorageError error = versions_->Load(); error.failed()) return error;
  if (!keeps_data()) return {};
  buffers_.emplace(database_.get());
  if (StorageError error = buffers_->Load(&loaded_); error.failed()) return error;
  uint64_t items = 0;
  for (const KeptBuffers::Loaded& each : loaded_) {
    items += each.buffer->live();
    next_id_ = each.id + 1;
  }
  Log(LogLevel::kInfo, "storage open",
      {{"path", folder_.path()},
       {"reserve_bytes", std::to_string(folder_.reserve_bytes())},
       {"policy_versions", std::to_string(versions_->newest()->count())},
       {"buffers", std::to_string(loaded_.size())},
       {"items", std::to_string(items)}});
  return {};
}

void StorageThread::Start() {
  if (!keeps_data()) return;
  work_.emplace(executor());
  readers_.emplace(kReaders);
  runner_ = std::thread([this] { context_.run(); });
}

void StorageThread::Stop() {
  if (readers_) readers_->join();
  if (!runner_.joinable()) return;
  asio::post(executor(), [this] {
    stopping_ = true;
    retry_.cancel();
    Work();
    work_.reset();
  });
  runner_.join();
}

void StorageThread::Keep(Task task) {
  queued_bytes_.fetch_add(task.frame_bytes, std::memory_order_relaxed);
  asio::post(executor(), [this, task = std::move(task)]() mutable {
    queue_.push_back(std::move(task));
    Work();
  });
}

void StorageThread::Break(const StorageError& error) {
  broken_ = error;
  failed_ = true;
  Log(LogLevel::kError, "storage failed: nothing more is kept, and inserts are refused", {{"error", error.message}});
}

void StorageThread::TryAgainLater() {
  retry_.expires_after(kRetryAfter);
  retry_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) Work();
  });
}

void StorageThread::Work() {
  while (!queue_.empty()) {
    const StorageError error = broken_.failed() ? broken_ : queue_.front().write(*buffers_);
    const bool is_left_out = error.problem == StorageProblem::kFull && queue_.front().may_be_left_out;
    if (error.problem == StorageProblem::kFull && !broken_.failed() && !stopping_ && !is_left_out) {
      if (!full_.exchange(true)) Log(LogLevel::kWarning, "storage full: inserts are refused", {{"error", error.message}});
      TryAgainLater();
      break;
    }
    if (error.failed() && !broken_.failed() && !is_left_out) Break(error);
    Task task = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_.fetch_sub(task.frame_bytes, std::memory_order_relaxed);
    if (error.failed()) {
      task.done(error);
      continue;
    }
    if (task.written) task.written();
    written_.push_back(std::move(task));
  }
  if (!written_.empty() && !std::exchange(sync_posted_, true))
    asio::post(executor(), [this] { SyncWritten(); });  // Behind the tasks that have arrived by now.
  LookForRoom();
}

void StorageThread::SyncWritten() {
  sync_posted_ = false;
  const StorageError error = database_->Sync();
  if (error.failed() && !broken_.failed()) Break(error);
  for (Task& task : std::exchange(written_, {})) task.done(error);
}

void StorageThread::LookForRoom() {
  if (!queue_.empty() || stopping_) return;
  const StorageError error = folder_.HasRoomFor(kRoomForMore);
  const bool is_full = error.problem == StorageProblem::kFull;
  if (full_.exchange(is_full) != is_full)
    Log(LogLevel::kWarning, is_full ? "storage full: inserts are refused" : "storage has room again",
        {{"error", error.message}});
  if (is_full) TryAgainLater();
}

}  // namespace replay::server
