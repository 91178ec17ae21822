#pragma once
// What the daemon keeps on disk, and the one thread that may block on it. Without storage.path nothing is kept and there is no
// such thread; the registry then belongs to the control thread.
//
//   any thread ── Keep(task) ──► queue ──► write, in order of arrival … ──► one sync for all that was written ──► done, each
//
// A write that finds the disk full stays at the head of the queue and is tried again until there is room: nothing overtakes it,
// nothing is lost. After a write that failed in any other way all others fail as well (database.h).

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "schema/wire.h"
#include "server/config.h"
#include "server/kept_buffers.h"
#include "server/version_registry.h"
#include "storage/data_folder.h"
#include "storage/database.h"

namespace replay::server {

class StorageThread {
 public:
  ~StorageThread() { Stop(); }

  // --- Of the thread that owns this ---------------------------------------------------------------------------------------
  // Before all else: opens the folder and loads what is there. What the database uses of memory is charged to `budget`.
  StorageError Open(const ServerConfig& config, MemoryBudget* budget);
  bool keeps_data() const { return database_ != nullptr; }
  // As it was when the daemon started; empties it.
  std::vector<KeptBuffers::Loaded> TakeLoaded() { return std::move(loaded_); }
  uint64_t next_id() const { return next_id_; }
  // That of the daemon: the same for all that have had the folder; 0 without one.
  uint64_t generation() const { return generation_; }
  void Start();
  // After those that send work have ended; what was sent is carried out.
  void Stop();

  // --- Any thread -----------------------------------------------------------------------------------------------------------
  struct Task {
    std::function<StorageError(KeptBuffers&)> write;
    std::function<void()> written;                  // if given: on the storage thread, once it survives kill -9
    std::function<void(const StorageError&)> done;  // on the storage thread, once it survives a power cut, or has failed
    uint64_t frame_bytes = 0;                       // that it holds in memory
    bool may_be_left_out = false;                   // on a full disk, instead of being waited for
  };
  void Keep(Task task);
  // Of frames that have yet to be written.
  uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  // What the folder has now. `work`, which may block on the disk, then runs on one of a few threads for reading.
  std::shared_ptr<const Database::View> Look() const { return std::make_shared<const Database::View>(*database_); }
  void Read(std::function<void()> work) { asio::post(*readers_, std::move(work)); }
  // Inserts are refused: the room that is left is for what is under way.
  bool is_full() const { return full_.load(std::memory_order_relaxed); }
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }
  Executor executor() { return context_.get_executor(); }

  // --- On the storage thread, or where there is none on the control thread --------------------------------------------------
  VersionRegistry& versions() { return *versions_; }

 private:
  using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
  StorageError LoadIdentity();
  void Work();
  void Break(const StorageError& error);
  void TryAgainLater();
  void SyncWritten();
  void LookForRoom();

  // Of runner_ once it runs.
  DataFolder folder_;
  std::unique_ptr<Database> database_;
  std::optional<VersionRegistry> versions_;
  std::optional<KeptBuffers> buffers_;
  std::vector<KeptBuffers::Loaded> loaded_;
  uint64_t next_id_ = 1;
  uint64_t generation_ = 0;
  std::deque<Task> queue_;
  std::vector<Task> written_;  // and not synced
  bool sync_posted_ = false;
  bool stopping_ = false;
  StorageError broken_;  // what all that follow fail with: none of them may be kept without one before it

  std::atomic<bool> full_{false}, failed_{false};
  std::atomic<uint64_t> queued_bytes_{0};
  asio::io_context context_{1};
  Timer retry_{context_.get_executor()};
  std::optional<asio::executor_work_guard<Executor>> work_;
  std::thread runner_;
  std::optional<asio::thread_pool> readers_;
};

}  // namespace replay::server
