// The rest of replay_service.h: the verbs that never wait for a condition, and those of the control thread.

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "schema/validate.h"
#include "server/replay_service.h"

namespace replay::server {
namespace {

uint64_t RandomGeneration() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;
}

int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string NoSuchBuffer(const std::string& name) { return "there is no buffer \"" + name + "\""; }

ReplayService::ReplayService(const ServerConfig& config, std::vector<std::unique_ptr<IoThread>>& threads, MemoryBudget& budget,
                             StorageThread& storage)
    : config_(config),
      threads_(threads),
      budget_(budget),
      storage_(storage),
      generation_(RandomGeneration()),
      started_(std::chrono::steady_clock::now()) {}

// --- Create, alter, drop -------------------------------------------------------------------------------------------------

// Registers a buffer with the control thread; `next` is the directory with it. Synchronous: two requests cannot interleave.
Verdict ReplayService::Declare(const std::string& name, BufferOptions options, std::shared_ptr<const Directory>* next) {
  if (std::string error = ValidateBufferName(name); !error.empty()) return Verdict::Failed(ErrorCode::kInvalidArgument, error);
  const Directory& directory = *control().directory;
  if (directory.contains(name)) return Verdict::Failed(ErrorCode::kAlreadyExists, "buffer \"" + name + "\" exists already");
  if (dropping_.contains(name))
    return Verdict::Failed(ErrorCode::kAlreadyExists, "buffer \"" + name + "\" is being dropped: try again");
  if (directory.size() >= config_.max_buffers)
    return Verdict::Failed(ErrorCode::kResourceExhausted,
                           "there are " + std::to_string(directory.size()) + " buffers: limits.max_buffers allows no more");
  if (std::string error = CheckOptions(&options); !error.empty()) return Verdict::Failed(ErrorCode::kInvalidArgument, error);
  // What is kept on disk may be more than memory has room for.
  const uint64_t unassigned = config_.memory_limit_bytes - config_.in_flight_bytes - assigned_bytes_;
  if (options.capacity_bytes == 0) options.capacity_bytes = unassigned / 4;
  if (options.capacity_bytes == 0 || (options.capacity_bytes > unassigned && !storage_.keeps_data()))
    return Verdict::Failed(ErrorCode::kResourceExhausted, "capacity_bytes is " + std::to_string(options.capacity_bytes) + ": " +
                                                              std::to_string(unassigned) +
                                                              " bytes of the memory limit are unassigned");
  if (!storage_.keeps_data()) assigned_bytes_ += options.capacity_bytes;
  IoThread& home = *threads_[next_home_++ % threads_.size()];
  auto changed = std::make_shared<Directory>(directory);
  const auto host = std::make_shared<BufferHost>(home, std::make_unique<Buffer>(name, options, control().versions));
  if (storage_.keeps_data()) host->kept_id = next_kept_id_++;
  changed->emplace(name, host);
  *next = std::move(changed);
  control().directory = *next;
  return Verdict::Done();
}

std::string ReplayService::DeclareBuffers() {
  for (auto& thread : threads_) thread->versions = storage_.versions().newest();
  if (std::string error = DeclareLoaded(); !error.empty()) return error;
  for (const auto& [name, options] : config_.buffers) {
    if (const auto kept = control().directory->find(name); kept != control().directory->end()) {
      WarnOfDifferences(name, options, kept->second->declared);
      continue;
    }
    std::shared_ptr<const Directory> next;
    const Verdict verdict = Declare(name, options, &next);
    if (!verdict.done()) return "buffer \"" + name + "\": " + verdict.message;
    for (auto& thread : threads_) thread->directory = next;
    KeepNew(*next->find(name)->second);
  }
  return "";
}

namespace {

Awaitable<void> InstallDirectory(IoThread& thread, std::shared_ptr<const Directory> directory) {
  thread.directory = std::move(directory);
  co_return;
}

}  // namespace

// The control thread sends in order, so that the newest directory is installed last everywhere.
Awaitable<void> ReplayService::InstallEverywhere(std::shared_ptr<const Directory> directory) {
  for (auto& thread : threads_) {
    if (thread.get() == &control()) continue;  // Has it already.
    Awaitable<void> install = InstallDirectory(*thread, directory);
    co_await RunOn(*thread, control(), std::move(install));
  }
}

namespace {

// What was published while the buffer was in no directory.
Awaitable<void> PublishAtHome(BufferHost& host) {
  if (host.buffer) host.buffer->OnPublish(host.home.versions);
  co_return;
}

}  // namespace

Awaitable<Verdict> ReplayService::CreateOnControl(const Request& request) {
  std::shared_ptr<const Directory> next;
  if (Verdict full = WhyNotKept(); storage_.keeps_data() && !full.done()) co_return full;
  Verdict verdict = Declare(request.buffer, request.options, &next);
  if (!verdict.done()) co_return verdict;
  const std::shared_ptr<BufferHost> host = next->find(request.buffer)->second;
  if (host->kept_id > 0) {
    // Nobody has it yet but calls of this thread that come in meanwhile; their records follow in the queue.
    auto state = std::make_shared<SavedState>(*host->buffer);
    StartKeeping(*host);
    std::function<StorageError(KeptBuffers&)> create = [id = host->kept_id, name = host->name, state](KeptBuffers& kept) {
      return kept.Create(id, name, *state);
    };
    Awaitable<Verdict> keep = KeepOnControl(std::move(create));
    verdict = co_await std::move(keep);
  }
  co_await InstallEverywhere(control().directory);  // Others may have come and gone while the disk was waited for.
  Awaitable<void> publish = PublishAtHome(*host);
  co_await RunOn(host->home, control(), std::move(publish));
  co_return verdict;
}

namespace {

Awaitable<std::string> AlterAtHome(BufferHost& host, const BufferOptions& options) {
  co_return host.buffer ? host.buffer->Alter(options) : "the buffer was dropped";
}

}  // namespace

Awaitable<Verdict> ReplayService::AlterOnControl(const Request& request) {
  const std::shared_ptr<BufferHost> host = Find(control(), request.buffer);
  if (!host) co_return Verdict::Failed(ErrorCode::kNotFound, NoSuchBuffer(request.buffer));
  if (host->altering)
    co_return Verdict::Failed(ErrorCode::kFailedPrecondition, "buffer \"" + host->name + "\" is being altered by another call");
  BufferOptions options = host->declared;
  for (const std::string& name : request.option_names) {
    if (!CopyOption(name, request.options, &options))
      co_return Verdict::Failed(ErrorCode::kInvalidArgument, "fields has \"" + name + "\", which is not an option of a buffer");
  }
  if (options.capacity_bytes == 0) options.capacity_bytes = host->declared.capacity_bytes;
  if (std::string error = CheckOptions(&options); !error.empty()) co_return Verdict::Failed(ErrorCode::kInvalidArgument, error);
  const uint64_t others = storage_.keeps_data() ? 0 : assigned_bytes_ - host->declared.capacity_bytes;
  const uint64_t available = config_.memory_limit_bytes - config_.in_flight_bytes - others;
  if (options.capacity_bytes > available && !storage_.keeps_data())
    co_return Verdict::Failed(ErrorCode::kResourceExhausted, "capacity_bytes is " + std::to_string(options.capacity_bytes) +
                                                                 ": " + std::to_string(available) +
                                                                 " bytes of the memory limit are left for it");
  // Both sizes count while the change is under way.
  const uint64_t reserved = std::max(options.capacity_bytes, host->declared.capacity_bytes);
  if (!storage_.keeps_data()) assigned_bytes_ = others + reserved;
  host->altering = true;
  Awaitable<std::string> alter = AlterAtHome(*host, options);
  const std::string error = co_await RunOn(host->home, control(), std::move(alter));
  host->altering = false;
  if (error.empty()) host->declared = options;
  if (!storage_.keeps_data()) assigned_bytes_ = assigned_bytes_ - reserved + host->declared.capacity_bytes;
  if (!error.empty()) co_return Verdict::Failed(ErrorCode::kFailedPrecondition, error);
  Awaitable<void> pump = PumpAtHome(*host);
  co_await RunOn(host->home, control(), std::move(pump));
  co_return Verdict::Done();
}

Awaitable<void> ReplayService::PumpAtHome(BufferHost& host) {
  if (host.buffer) Pump(host);
  co_return;
}

Awaitable<void> ReplayService::DropAtHome(BufferHost& host, std::unique_ptr<Buffer>& dropped) {
  HandOver(host);  // Replies wait for what it has decided.
  dropped = std::move(host.buffer);
  for (std::list<Waiter*>* queue : {&host.insert_waiters, &host.sample_waiters, &host.admit_waiters}) {
    for (Waiter* waiter : *queue) waiter->Finish(Waiter::End::kBufferDropped);
  }
  co_return;
}

Awaitable<Verdict> ReplayService::DropOnControl(const Request& request) {
  const std::shared_ptr<BufferHost> host = Find(control(), request.buffer);
  if (!host) co_return Verdict::Failed(ErrorCode::kNotFound, NoSuchBuffer(request.buffer));
  if (host->altering)
    co_return Verdict::Failed(ErrorCode::kFailedPrecondition, "buffer \"" + host->name + "\" is being altered by another call");
  auto changed = std::make_shared<Directory>(*control().directory);
  changed->erase(host->name);
  control().directory = changed;
  if (host->kept_id > 0) dropping_.insert(host->name);
  co_await InstallEverywhere(std::move(changed));
  std::unique_ptr<Buffer> dropped;
  Awaitable<void> drop = DropAtHome(*host, dropped);
  co_await RunOn(host->home, control(), std::move(drop));
  dropped.reset();
  if (host->kept_id == 0) {
    assigned_bytes_ -= host->declared.capacity_bytes;
    co_return Verdict::Done();
  }
  std::function<StorageError(KeptBuffers&)> drop_rows = [id = host->kept_id](KeptBuffers& kept) { return kept.Drop(id); };
  Awaitable<Verdict> keep = KeepOnControl(std::move(drop_rows));
  Verdict verdict = co_await std::move(keep);
  dropping_.erase(host->name);
  co_return verdict;
}

Awaitable<Verdict> ReplayService::CreateBuffer(IoThread& thread, const Request& request) {
  Awaitable<Verdict> work = CreateOnControl(request);
  co_return co_await RunOn(control(), thread, std::move(work));
}

Awaitable<Verdict> ReplayService::AlterBuffer(IoThread& thread, const Request& request) {
  Awaitable<Verdict> work = AlterOnControl(request);
  co_return co_await RunOn(control(), thread, std::move(work));
}

Awaitable<Verdict> ReplayService::DropBuffer(IoThread& thread, const Request& request) {
  Awaitable<Verdict> work = DropOnControl(request);
  co_return co_await RunOn(control(), thread, std::move(work));
}

// --- Policy versions -----------------------------------------------------------------------------------------------------------

Awaitable<void> ReplayService::InstallVersions(IoThread& thread, PolicyVersions::Snapshot versions) {
  thread.versions = versions;
  const std::shared_ptr<const Directory> directory = thread.directory;
  for (const auto& [name, host] : *directory) {
    if (&host->home != &thread || !host->buffer) continue;
    host->buffer->OnPublish(versions);
    Pump(*host);
  }
  for (auto next = thread.version_waiters.begin(); next != thread.version_waiters.end();) {
    Waiter& waiter = **next;
    if (waiter.end == Waiter::End::kPending && waiter.Attempt()) {
      next = thread.version_waiters.erase(next);
      waiter.Finish(Waiter::End::kDecided);
    } else {
      ++next;
    }
  }
  co_return;
}

namespace {

Awaitable<Verdict> PublishIn(VersionRegistry& registry, const PolicyVersion& version, PolicyVersions::Snapshot& next) {
  Verdict verdict = registry.Publish(version);
  next = registry.newest();
  co_return verdict;
}

}  // namespace

// Registries follow one another in the thread that stores them, and come back in that order: a second publish that comes in
// meanwhile builds on this one.
Awaitable<Verdict> ReplayService::PublishOnControl(PolicyVersion& version) {
  if (version.published_at_unix_ns == 0) version.published_at_unix_ns = UnixNanoseconds();
  PolicyVersions::Snapshot next;
  Awaitable<Verdict> publish = PublishIn(storage_.versions(), version, next);
  Verdict verdict;
  if (storage_.keeps_data())
    verdict = co_await asio::co_spawn(storage_.executor(), std::move(publish), kUseAwaitable);
  else
    verdict = co_await std::move(publish);
  if (!verdict.done()) co_return verdict;
  control().versions = next;
  if (control().draining) co_return verdict;  // Nobody waits for it any more, and other threads may have ended.
  for (auto& thread : threads_) {
    Awaitable<void> install = InstallVersions(*thread, next);
    co_await RunOn(*thread, control(), std::move(install));
  }
  co_return Verdict::Done();
}

Awaitable<Verdict> ReplayService::PublishVersion(IoThread& thread, PolicyVersion& version) {
  Awaitable<Verdict> work = PublishOnControl(version);
  co_return co_await RunOn(control(), thread, std::move(work));
}

// --- Get, Delete, Update, ReportCost -----------------------------------------------------------------------------------------------------

namespace {

Awaitable<void> HistoryAtHome(BufferHost& host, const Request& request, ReplayService::GetResult& result) {
  if (!host.buffer) {
    result.verdict = Dropped(host);
  } else if (host.buffer->options().prompt_history == 0) {
    result.verdict = Verdict::Failed(ErrorCode::kFailedPrecondition,
                                     "prompt_history of buffer \"" + host.name + "\" is 0: it remembers no prompts");
  } else if (request.limit == 0) {
    result.verdict = Verdict::Failed(ErrorCode::kInvalidArgument, "limit is 0: it must be at least 1");
  } else {
    const uint32_t limit = std::min(request.limit, kMaxPromptsListed);
    result.more = host.buffer->History(request.source, request.after_index, limit, &result.prompts);
  }
  co_return;
}

Awaitable<void> CostAtHome(BufferHost& host, const CostReport& cost) {
  if (host.buffer) host.buffer->AddCost(cost);
  co_return;
}

Awaitable<void> RejectedAtHome(BufferHost& host, uint64_t trajectories, Key128 writer, uint64_t sequence) {
  if (host.buffer) host.buffer->CountRejected(trajectories, writer, sequence);
  co_return;
}

}  // namespace

Awaitable<void> ReplayService::DeleteAtHome(BufferHost& host, const Request& request, GetResult& result) {
  if (!host.buffer) {
    result.verdict = Dropped(host);
    co_return;
  }
  for (const std::string& id : request.ids) result.deleted += host.buffer->Delete(id);
  if (result.deleted > 0) Pump(host);
}

Awaitable<void> ReplayService::UpdateAtHome(BufferHost& host, const Request& request, GetResult& result) {
  if (!host.buffer) {
    result.verdict = Dropped(host);
    co_return;
  }
  if (std::string why = host.buffer->WhyUpdateRefused(request.updates); !why.empty()) {
    result.verdict = Verdict::Failed(ErrorCode::kInvalidArgument, std::move(why));
    co_return;
  }
  for (const ItemUpdate& update : request.updates)
    result.outcomes.push_back(host.buffer->Update(update, &result.revisions.emplace_back()));
  Pump(host);
}

Awaitable<void> ReplayService::Delete(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request,
                                      GetResult& result) {
  Awaitable<void> work = DeleteAtHome(*host, request, result);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::Update(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request,
                                      GetResult& result) {
  Awaitable<void> work = UpdateAtHome(*host, request, result);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::History(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request,
                                       GetResult& result) {
  Awaitable<void> work = HistoryAtHome(*host, request, result);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::ReportCost(IoThread& thread, std::shared_ptr<BufferHost> host, const CostReport& cost) {
  Awaitable<void> work = CostAtHome(*host, cost);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::CountRejected(IoThread& thread, std::shared_ptr<BufferHost> host, uint64_t trajectories,
                                             Key128 writer, uint64_t sequence) {
  Awaitable<void> work = RejectedAtHome(*host, trajectories, writer, sequence);
  co_await RunOn(host->home, thread, std::move(work));
}

void ReplayService::OnTime(IoThread& thread, SteadyTime now) {
  const uint64_t now_ms = MillisecondsOf(now);
  for (const auto& [name, host] : *thread.directory) {
    if (&host->home != &thread || !host->buffer) continue;
    const bool changed = host->buffer->OnTime(now_ms + host->time_offset_ms);
    if (host->buffer->HoldsReservation()) host->last_produced = now;
    if (changed) Pump(*host);
  }
  Spill(thread);
}

}  // namespace replay::server
