// The part of replay_service.h that keeps buffers on disk, where the daemon has a folder.
//
//   a buffer decides ──► its journal ──► HandOver, once a turn of its thread ──► StorageThread ──► OnKept ──► who waits goes on
//
// A state is saved when the records since come to as much as it, when an eighth of what is live has been inserted since, and when the
// daemon stops: recovery reads a state and records of its size at most.

#include <boost/asio/post.hpp>

#include <algorithm>
#include <utility>

#include "server/archive.h"
#include "server/log.h"
#include "server/replay_service.h"
#include "server/requests_archive.h"

namespace replay::server {
namespace {

constexpr uint64_t kLeastRecordBytes = 16u << 20;
constexpr uint64_t kLeastFrameBytes = 64u << 20;

using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;

std::string BytesOf(BufferOptions options) {
  std::string bytes;
  Archive(&bytes).Save(options);
  return bytes;
}

// The names of the options that differ; those that the configuration leaves to the daemon do not.
std::string Differences(const BufferOptions& configured, const BufferOptions& kept) {
  std::string names;
  for (const std::string_view name : OptionNames()) {
    const bool is_chosen = (name == "capacity_bytes" && configured.capacity_bytes == 0) ||
                           (name == "seed" && !configured.seed) || (name == "tolerance" && configured.tolerance_chosen);
    BufferOptions changed = kept;
    CopyOption(name, configured, &changed);
    if (!is_chosen && BytesOf(changed) != BytesOf(kept)) names.append(names.empty() ? "" : ", ").append(name);
  }
  return names;
}

}  // namespace

void ReplayService::WarnOfDifferences(const std::string& name, const BufferOptions& configured, const BufferOptions& kept) {
  const std::string names = Differences(configured, kept);
  if (names.empty()) return;
  Log(LogLevel::kWarning, "the buffer is as it was kept, not as it is configured: replayctl buffer alter changes it",
      {{"buffer", name}, {"options", names}});
}

Verdict ReplayService::WhyNotKept() const {
  if (storage_.has_failed())
    return Verdict::Failed(ErrorCode::kStorageFailed,
                           "a write to storage.path has failed, so nothing more is taken in: the daemon's log says how");
  if (storage_.is_full())
    return Verdict::Failed(ErrorCode::kStorageFull,
                           "the disk of storage.path is full, up to storage.reserve_bytes: try again once there is room");
  return Verdict::Done();
}

std::string ReplayService::DeclareLoaded() {
  next_kept_id_ = storage_.next_id();
  auto directory = std::make_shared<Directory>();
  for (KeptBuffers::Loaded& loaded : storage_.TakeLoaded()) {
    IoThread& home = *threads_[next_home_++ % threads_.size()];
    const auto host = std::make_shared<BufferHost>(home, std::move(loaded.buffer));
    host->kept_id = loaded.id;
    StartKeeping(*host);
    host->buffer->EndAllLeases();  // The connections that held them are gone.
    host->buffer->OnPublish(control().versions);
    if (!directory->emplace(host->name, host).second)
      return "storage.path has two buffers \"" + host->name + "\": it is damaged";
  }
  for (auto& thread : threads_) thread->directory = directory;
  return "";
}

bool ReplayService::RefuseUnkept(BufferHost& host, InsertCall& call) const {
  Verdict refused = WhyNotKept(host);
  if (refused.done() || host.buffer->IsRepeat(call.request)) return false;
  call.verdict = std::move(refused);
  host.buffer->CountRejected(0, call.request.writer, call.request.sequence);  // The writer is known all the same.
  return true;
}

void ReplayService::StartKeeping(BufferHost& host) {
  host.journal.on_first = [this, weak = host.weak_from_this()] {
    const std::shared_ptr<BufferHost> strong = weak.lock();
    if (strong) asio::post(strong->home.executor(), [this, strong] { HandOver(*strong); });
  };
  host.buffer->SetJournal(&host.journal);
}

// Of the configuration: nobody waits for its rows, the records follow them in the queue.
void ReplayService::KeepNew(BufferHost& host) {
  if (host.kept_id == 0) return;
  auto state = std::make_shared<const SavedState>(*host.buffer);
  storage_.Keep({[id = host.kept_id, name = host.name, state](KeptBuffers& kept) { return kept.Create(id, name, *state); },
                 nullptr, [](const StorageError&) {}});
  StartKeeping(host);
}

// Records are read at the next start, frames that left are on disk until a state no longer names them: both in proportion to what is
// live, and so is what writing states costs.
bool ReplayService::IsStateDue(const BufferHost& host) {
  const uint64_t most_frame_bytes = std::max({kLeastFrameBytes, 4 * host.state_bytes, host.buffer->frame_bytes() / 8});
  return host.record_bytes > std::max(kLeastRecordBytes, host.state_bytes) || host.frame_bytes > most_frame_bytes;
}

void ReplayService::HandOver(BufferHost& host) {
  if (host.journal.entries().empty() || !host.buffer) return;
  auto entries = std::make_shared<const Journal::Entries>(host.journal.Take());
  host.record_bytes += entries->records.size();
  const uint64_t record = host.journal.total();
  uint64_t frame_bytes = 0;
  for (const Frame& each : entries->frames) frame_bytes += each.size();
  const uint64_t frame = entries->frames.empty() ? 0 : entries->frames.back().number();
  const auto shared = host.shared_from_this();
  storage_.Keep({[id = host.kept_id, entries](KeptBuffers& kept) { return kept.Add(id, *entries); },
                 [this, shared, record, frame] {
                   shared->written_records = record;
                   if (frame > 0) shared->written_frame = frame;
                   if (shared->waiting_for_written > 0)
                     asio::post(shared->home.executor(), [this, shared] { WakeKept(*shared); });
                 },
                 [this, shared, record](const StorageError& error) {
                   const bool failed = error.failed();
                   asio::post(shared->home.executor(), [this, shared, record, failed] { OnKept(*shared, record, failed); });
                 },
                 frame_bytes});
  host.frame_bytes += frame_bytes;
  if (!host.saving && IsStateDue(host)) SaveState(host);
}

void ReplayService::SaveState(BufferHost& host) {
  auto state = std::make_shared<const SavedState>(*host.buffer);
  host.saving = true;
  host.record_bytes = host.frame_bytes = 0;
  host.state_bytes = state->bytes.size();
  const auto shared = host.shared_from_this();
  storage_.Keep({[id = host.kept_id, state](KeptBuffers& kept) { return kept.Save(id, *state); }, nullptr,
                 [shared](const StorageError&) { asio::post(shared->home.executor(), [shared] { shared->saving = false; }); },
                 /*frame_bytes=*/0, /*may_be_left_out=*/true});
}

void ReplayService::OnKept(BufferHost& host, uint64_t record, bool failed) {
  if (failed)
    host.keeping_failed.store(true, std::memory_order_relaxed);
  else if (!host.keeping_failed.load(std::memory_order_relaxed))
    host.kept_records.store(record, std::memory_order_release);
  WakeKept(host);
  Spill(host.home);
}

void ReplayService::WakeKept(const BufferHost& host) {
  const bool failed = host.keeping_failed.load(std::memory_order_relaxed);
  for (KeepWaiter* waiter : host.home.keep_waiters)
    if (&waiter->host == &host && (failed || host.Survives(waiter->record, waiter->level))) waiter->timer.cancel();
}

Awaitable<bool> ReplayService::KeptAtHome(BufferHost& host, uint64_t record, AcknowledgementLevel level) {
  KeepWaiter waiter(host.home, host);
  waiter.record = record;
  waiter.level = level;
  // Before the look: the storage thread writes, and then looks whether somebody waits for it.
  if (level == AcknowledgementLevel::kProcess) ++host.waiting_for_written;
  const auto place = host.home.keep_waiters.insert(host.home.keep_waiters.end(), &waiter);
  const auto is_kept = [&] { return host.Survives(record, level); };
  while (!is_kept() && !host.keeping_failed.load(std::memory_order_relaxed) && !host.home.gives_up_keeping) {
    waiter.timer.expires_at(SteadyTime::max());
    boost::system::error_code cancelled;
    co_await waiter.timer.async_wait(asio::redirect_error(kUseAwaitable, cancelled));
  }
  host.home.keep_waiters.erase(place);
  if (level == AcknowledgementLevel::kProcess) --host.waiting_for_written;
  co_return is_kept();
}

Awaitable<bool> ReplayService::Kept(IoThread& thread, std::shared_ptr<BufferHost> host, uint64_t record,
                                    AcknowledgementLevel level) {
  if (host->Survives(record, level)) co_return true;
  Awaitable<bool> work = KeptAtHome(*host, record, level);
  co_return co_await RunOn(host->home, thread, std::move(work));
}

void ReplayService::GiveUpKeeping(IoThread& thread) {
  thread.gives_up_keeping = true;
  for (KeepWaiter* waiter : thread.keep_waiters) waiter->timer.cancel();
}

void ReplayService::SaveAll(IoThread& thread) {
  for (const auto& [name, host] : *thread.directory) {
    if (&host->home != &thread || host->kept_id == 0 || !host->buffer) continue;
    HandOver(*host);
    if (host->record_bytes > 0) SaveState(*host);
  }
}

// Carries out a write, in order with the others, and waits until it survives.
Awaitable<Verdict> ReplayService::KeepOnControl(std::function<StorageError(KeptBuffers&)> write) {
  struct Waiting {
    explicit Waiting(const Executor& executor) : timer(executor) {}
    Timer timer;
    std::optional<StorageError> result;
  };
  auto waiting = std::make_shared<Waiting>(control().executor());
  storage_.Keep({std::move(write), nullptr, [this, waiting](const StorageError& error) {
                   asio::post(control().executor(), [waiting, error] {
                     waiting->result = error;
                     waiting->timer.cancel();
                   });
                 }});
  while (!waiting->result && !control().draining) {
    waiting->timer.expires_after(std::chrono::milliseconds(100));  // Looks at `draining` then.
    boost::system::error_code cancelled;
    co_await waiting->timer.async_wait(asio::redirect_error(kUseAwaitable, cancelled));
  }
  if (!waiting->result)
    co_return Verdict::Failed(ErrorCode::kUnavailable, "the server is shutting down: what was asked for may have been done");
  if (!waiting->result->failed()) co_return Verdict::Done();
  const bool full = waiting->result->problem == StorageProblem::kFull;
  co_return Verdict::Failed(full ? ErrorCode::kStorageFull : ErrorCode::kStorageFailed, waiting->result->message);
}

}  // namespace replay::server
