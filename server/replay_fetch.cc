// The part of replay_service.h for frames that are on disk only: they leave memory, and are read when somebody asks for them.
//
//   decided: some of the frames are absent ──► a view of the disk, at once ──► memory for them ──► readers ──► the reply
//
// What leaves the buffer meanwhile leaves the disk too, but not the view.

#include <boost/asio/post.hpp>

#include <algorithm>
#include <utility>

#include "server/log.h"
#include "server/replay_service.h"

namespace replay::server {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kScanPageBytes = 64ull << 20;
constexpr size_t kMostJobs = 4;
// What has been drawn is read, whatever the time that the call may still wait: it counts as drawn.
constexpr std::chrono::milliseconds kLeastWait{1'000};

using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;

void Collect(std::vector<Frame>& frames, std::vector<Frame*>* absent) {
  for (Frame& frame : frames)
    if (frame.is_absent()) absent->push_back(&frame);
}

std::vector<Frame*> AbsentOf(SampleResult& result) {
  std::vector<Frame*> absent;
  Collect(result.frames, &absent);
  for (ColumnOf& each : result.columns)
    if (each.column.is_absent()) absent.push_back(&each.column);
  return absent;
}

std::vector<Frame*> AbsentOf(std::vector<StoredItem>& items) {
  std::vector<Frame*> absent;
  for (StoredItem& item : items) {
    if (item.frame.is_absent()) absent.push_back(&item.frame);
    Collect(item.columns, &absent);
  }
  return absent;
}

// Frames that are being read; shared by who waits and who reads.
struct Reading {
  explicit Reading(const Executor& executor) : timer(executor) {}
  struct Entry {
    uint64_t number = 0;
    Frame frame;
    StorageError error = {};
  };
  std::vector<Entry> entries;
  std::atomic<size_t> jobs_left{0};
  Timer timer;
  bool done = false;  // of who waits
};

}  // namespace

void ReplayService::LookIfAbsent(const BufferHost& host, SampleCall& call) const {
  call.view = nullptr;
  if (host.kept_id > 0 && call.verdict.done() && !AbsentOf(call.result).empty()) call.view = storage_.Look();
}

Awaitable<Verdict> ReplayService::Fetch(IoThread& thread, const BufferHost& host, std::vector<Frame*> absent,
                                        std::shared_ptr<const Database::View> view, Caller caller, Verb verb) {
  uint64_t bytes = 0;
  for (const Frame* frame : absent) bytes += frame->size();
  caller.deadline = std::max(caller.deadline, steady_clock::now() + kLeastWait);
  Awaitable<Verdict> reserve = ReserveMemory(thread, bytes, host.name, caller, verb);
  Verdict reserved = co_await std::move(reserve);
  if (!reserved.done()) co_return reserved;

  const auto reading = std::make_shared<Reading>(thread.executor());
  for (const Frame* frame : absent) reading->entries.push_back({frame->number(), Frame::Allocate(frame->size(), &budget_)});
  const size_t jobs = std::min(kMostJobs, absent.size());
  reading->jobs_left = jobs;
  for (size_t job = 0; job < jobs; ++job) {
    storage_.Read([reading, view, job, jobs, id = host.kept_id, executor = thread.executor()] {
      for (size_t i = job; i < reading->entries.size(); i += jobs) {
        Reading::Entry& entry = reading->entries[i];
        entry.error = KeptBuffers::ReadFrame(*view, id, entry.number, &entry.frame);
      }
      if (reading->jobs_left.fetch_sub(1) > 1) return;
      asio::post(executor, [reading] {
        reading->done = true;
        reading->timer.cancel();
      });
    });
  }
  while (!reading->done) {
    reading->timer.expires_at(SteadyTime::max());
    boost::system::error_code cancelled;
    co_await reading->timer.async_wait(asio::redirect_error(kUseAwaitable, cancelled));
  }
  spill_reads.fetch_add(absent.size(), std::memory_order_relaxed);
  spill_read_bytes.fetch_add(bytes, std::memory_order_relaxed);
  for (size_t i = 0; i < absent.size(); ++i) {
    Reading::Entry& entry = reading->entries[i];
    if (entry.error.failed()) {
      spill_read_errors.fetch_add(1, std::memory_order_relaxed);
      Log(LogLevel::kError, "a frame cannot be read from storage.path",
          {{"buffer", host.name}, {"error", entry.error.message}});
      co_return Verdict::Failed(ErrorCode::kCorrupted, "buffer \"" + host.name + "\": " + entry.error.message);
    }
    *absent[i] = std::move(entry.frame);
  }
  co_return Verdict::Done();
}

// --- Sample ------------------------------------------------------------------------------------------------------------------

Awaitable<void> ReplayService::FetchSample(IoThread& thread, std::shared_ptr<BufferHost> host, SampleCall& call,
                                           Caller caller) {
  Awaitable<Verdict> fetch = Fetch(thread, *host, AbsentOf(call.result), std::move(call.view), caller, Verb::kSample);
  call.verdict = co_await std::move(fetch);
  if (call.verdict.done()) co_return;
  Awaitable<void> credit = Credit(thread, *host, call.request, call.result);
  co_await std::move(credit);
  call.result.Clear();
}

Awaitable<void> ReplayService::CreditAtHome(BufferHost& host, const SampleRequest& request, const SampleResult& result) {
  if (!host.buffer) co_return;
  if (request.consumer.empty()) host.buffer->CreditDraws(result);
  Pump(host);
}

Awaitable<void> ReplayService::Credit(IoThread& thread, BufferHost& host, const SampleRequest& request,
                                      const SampleResult& result) {
  Awaitable<void> credit = CreditAtHome(host, request, result);
  co_await RunOn(host.home, thread, std::move(credit));
}

// --- Get ---------------------------------------------------------------------------------------------------------------------

Awaitable<void> ReplayService::GetAtHome(BufferHost& host, const Request& request, GetResult& result) {
  if (!host.buffer) {
    result.verdict = Dropped(host);
    co_return;
  }
  if (request.ids.empty()) {
    if (request.limit == 0) {
      result.verdict = Verdict::Failed(ErrorCode::kInvalidArgument, "limit is 0: without ids it must be at least 1");
      co_return;
    }
    const uint32_t limit = std::min(request.limit, kMaxTrajectoriesPerInsert);
    // What is read from disk needs memory for the page.
    const uint64_t most_bytes = host.kept_id > 0 ? std::min(kScanPageBytes, config_.in_flight_bytes / 4) : kScanPageBytes;
    result.more = host.buffer->Scan(request.after_item, limit, most_bytes, &result.items, request.column_names);
  }
  for (uint32_t i = 0; i < request.ids.size(); ++i) {
    StoredItem item;
    if (!host.buffer->Get(request.ids[i], &item, request.column_names)) continue;
    result.found.push_back(i);
    result.items.push_back(std::move(item));
  }
  uint64_t payload_bytes = 0;
  for (const StoredItem& item : result.items) payload_bytes += item.payload_bytes();
  if (payload_bytes > kMaxReplyPayloadBytes)
    result.verdict =
        Verdict::Failed(ErrorCode::kResourceExhausted, "the items have " + std::to_string(payload_bytes) +
                                                           " bytes with their columns: a reply holds at most " +
                                                           std::to_string(kMaxReplyPayloadBytes) + "; ask for fewer");
  if (host.kept_id > 0 && result.verdict.done() && !AbsentOf(result.items).empty()) result.view = storage_.Look();
}

Awaitable<void> ReplayService::Get(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request,
                                   GetResult& result, Caller caller) {
  Awaitable<void> work = GetAtHome(*host, request, result);
  co_await RunOn(host->home, thread, std::move(work));
  if (!result.view) co_return;
  Awaitable<Verdict> fetch = Fetch(thread, *host, AbsentOf(result.items), std::move(result.view), caller, Verb::kGet);
  result.verdict = co_await std::move(fetch);
}

// --- Spill -------------------------------------------------------------------------------------------------------------------

void ReplayService::Spill(IoThread& thread) {
  const auto meant = static_cast<int64_t>(config_.memory_limit_bytes - config_.in_flight_bytes);
  if (!storage_.keeps_data() || budget_.used_bytes() <= meant) return;
  std::vector<BufferHost*> hosts;
  for (const auto& [name, host] : *thread.directory)
    if (&host->home == &thread && host->buffer && host->kept_id > 0) hosts.push_back(host.get());
  std::sort(hosts.begin(), hosts.end(),
            [](const BufferHost* a, const BufferHost* b) { return a->buffer->resident_bytes() > b->buffer->resident_bytes(); });
  for (BufferHost* host : hosts) {
    const int64_t over = budget_.used_bytes() - meant;
    if (over <= 0) return;
    host->buffer->Spill(static_cast<uint64_t>(over), host->written_frame.load(std::memory_order_acquire));
  }
}

}  // namespace replay::server
