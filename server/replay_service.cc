#include "server/replay_service.h"

#include <boost/asio/post.hpp>

#include <utility>

#include "server/check.h"

namespace replay::server {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

// Trajectories decided for waiters in one go before others get their turn: about 0.4 ms.
constexpr uint32_t kPumpCost = 4096;

Verdict Draining() {
  Verdict verdict = Verdict::Failed(ErrorCode::kUnavailable, "the server is shutting down: try again when it is back");
  verdict.reason = WaitReason::kDraining;
  return verdict;
}

}  // namespace

Verdict Dropped(const BufferHost& host) {
  return Verdict::Failed(ErrorCode::kBufferDropped, "buffer \"" + host.name + "\" was dropped");
}

Verdict EndVerdict(const Waiter& waiter) {
  switch (waiter.end) {
    case Waiter::End::kTimedOut: {
      Verdict verdict = Verdict::Failed(ErrorCode::kTimedOut, waiter.Why());
      verdict.reason = waiter.Reason();
      return verdict;
    }
    case Waiter::End::kBufferDropped:
      return Verdict::Failed(ErrorCode::kBufferDropped, "buffer \"" + waiter.buffer + "\" was dropped while the call waited");
    case Waiter::End::kDraining:
      return Draining();
    default:
      return Verdict::Failed(ErrorCode::kUnavailable, "the peer closed the connection while its call waited");
  }
}

struct InsertWaiter final : Waiter {
  InsertWaiter(const ReplayService& replay_service, BufferHost& buffer_host, InsertCall& waiting_call, const Caller& caller)
      : Waiter(buffer_host.home, caller, Verb::kInsert), service(replay_service), host(buffer_host), call(waiting_call) {
    buffer = host.name;
  }
  bool Attempt() override {
    if (service.RefuseUnkept(host, call)) return true;
    call.verdict = host.buffer->Insert(call.request, &call.result);
    if (call.verdict.waits()) return false;
    if (call.verdict.done()) host.last_produced = steady_clock::now();
    return true;
  }
  std::string Why() const override {
    std::string why = host.buffer ? host.buffer->WhyInsertWaits(host.buffer->CountStored(call.request)) : "";
    return why.empty() ? "waits behind earlier inserts" : why;
  }
  WaitReason Reason() const override { return WaitReason::kPacing; }
  uint32_t Cost() const override { return static_cast<uint32_t>(call.request.frames.size()); }

  const ReplayService& service;
  BufferHost& host;
  InsertCall& call;
};

struct SampleWaiter final : Waiter {
  SampleWaiter(const ReplayService& replay_service, BufferHost& buffer_host, SampleCall& waiting_call, const Caller& caller)
      : Waiter(buffer_host.home, caller, Verb::kSample), service(replay_service), host(buffer_host), call(waiting_call) {
    buffer = host.name;
  }
  bool Attempt() override {
    call.verdict = host.buffer->Sample(call.request, &call.result);
    service.LookIfAbsent(host, call);
    return !call.verdict.waits();
  }
  std::string Why() const override { return service.WhySampleWaits(host, call.request); }
  // What it waits for itself or, if that is nothing, what the head of the queue waits for.
  WaitReason Reason() const override {
    const Waiter* head = host.sample_waiters.empty() ? this : host.sample_waiters.front();
    const WaitReason own = host.buffer ? host.buffer->WhatSampleWaitsFor(call.request) : WaitReason::kNone;
    if (own == WaitReason::kNone && head != this) return head->Reason();
    return service.SilenceOf(host) ? WaitReason::kNoProducer : own;
  }
  uint32_t Cost() const override { return call.request.count; }

  const ReplayService& service;
  BufferHost& host;
  SampleCall& call;
};

struct VersionWaiter final : Waiter {
  VersionWaiter(IoThread& own_thread, const Request& waiting_request, PolicyVersion& found, const Caller& caller)
      : Waiter(own_thread, caller, Verb::kWaitVersion), thread(own_thread), request(waiting_request), result(found) {}
  bool Attempt() override {
    const PolicyVersion& than = request.version;
    const PolicyVersion* later = thread.versions->Later(than.run_id, than.epoch, request.has_version ? &than.version : nullptr);
    if (later) result = *later;
    return later != nullptr;
  }
  std::string Why() const override {
    const PolicyVersion* newest = thread.versions->Newest(request.version.run_id);
    if (!newest) return "run \"" + request.version.run_id + "\" has not published a version";
    return "the newest version of run \"" + request.version.run_id + "\" is " + std::to_string(newest->version) + " of epoch " +
           std::to_string(newest->epoch);
  }
  WaitReason Reason() const override { return WaitReason::kVersion; }

  IoThread& thread;
  const Request& request;
  PolicyVersion& result;
};

struct MemoryWaiter final : Waiter {
  MemoryWaiter(IoThread& own_thread, ReplayService& replay_service, const StorageThread& storage_thread, uint64_t wanted_bytes,
               const Caller& caller, Verb waiting_verb)
      : Waiter(own_thread, caller, waiting_verb), service(replay_service), storage(storage_thread), bytes(wanted_bytes) {}
  bool Attempt() override {
    return verb == Verb::kInsert ? service.TryReserveForInsert(bytes)
                                 : service.budget().TryReserve(static_cast<int64_t>(bytes));
  }
  std::string Why() const override {
    const MemoryBudget& budget = service.budget();
    return std::to_string(bytes) + " bytes wanted, " + std::to_string(budget.used_bytes()) + " of " +
           std::to_string(budget.limit_bytes()) + " bytes in use";
  }
  // What the disk has yet to take would be room enough.
  WaitReason Reason() const override { return storage.queued_bytes() >= bytes ? WaitReason::kStorage : WaitReason::kMemory; }

  ReplayService& service;
  const StorageThread& storage;
  const uint64_t bytes;
};

BufferHost::BufferHost(IoThread& home_thread, std::unique_ptr<Buffer> hosted)
    : home(home_thread),
      name(hosted->name()),
      buffer(std::move(hosted)),
      last_produced(steady_clock::now()),
      declared(buffer->options()) {
  // Its time begins, or goes on where it stood: while no daemon ran it stood still.
  if (buffer->now_ms() > 0) time_offset_ms = buffer->now_ms() - MillisecondsOf(last_produced);
  buffer->OnTime(MillisecondsOf(last_produced) + time_offset_ms);
}

std::shared_ptr<BufferHost> ReplayService::Find(const IoThread& thread, std::string_view name) const {
  const auto found = thread.directory->find(name);
  return found == thread.directory->end() ? nullptr : found->second;
}

// --- Insert and Sample -------------------------------------------------------------------------------------------------------

bool ReplayService::InsertNow(BufferHost& host, InsertCall& call) {
  if (!host.buffer) {
    call.verdict = Dropped(host);
    return true;
  }
  if (host.home.draining) {
    call.verdict = Draining();
    return true;
  }
  if (RefuseUnkept(host, call)) return true;
  if (!host.insert_waiters.empty()) return false;
  Verdict verdict = host.buffer->Insert(call.request, &call.result);
  if (!verdict.done()) {
    call.verdict = std::move(verdict);
    return !call.verdict.waits();
  }
  call.verdict.BecomeDone();
  host.last_produced = call.received_at;
  if (!host.sample_waiters.empty()) Pump(host);
  return true;
}

bool ReplayService::SampleNow(BufferHost& host, SampleCall& call) {
  if (!host.buffer) {
    call.verdict = Dropped(host);
    return true;
  }
  if (!host.sample_waiters.empty()) return false;
  call.verdict = host.buffer->Sample(call.request, &call.result);
  LookIfAbsent(host, call);
  if (host.insert_waiters.empty()) return !call.verdict.waits();
  // Inserts may go on after a draw, and when a draw finds nothing it may use: the buffer then lets fresher items in, and they may
  // be what this draw needs.
  Pump(host);
  if (call.verdict.waits()) {
    call.verdict = host.buffer->Sample(call.request, &call.result);
    LookIfAbsent(host, call);
    if (call.verdict.done()) Pump(host);
  }
  return !call.verdict.waits();
}

Awaitable<void> ReplayService::InsertAtHome(BufferHost& host, InsertCall& call, Caller caller) {
  if (InsertNow(host, call)) co_return;
  InsertWaiter waiter(*this, host, call, caller);
  co_await Wait(host.home, host.insert_waiters, waiter);
  if (waiter.end != Waiter::End::kDecided) {
    call.verdict = EndVerdict(waiter);
    if (host.buffer) {
      host.buffer->CountRejected(0, call.request.writer, call.request.sequence);  // The writer is known all the same.
      Pump(host);                                                                 // The next may have waited only for this one.
    }
  }
}

Awaitable<void> ReplayService::SampleAtHome(BufferHost& host, SampleCall& call, Caller caller) {
  if (SampleNow(host, call)) co_return;
  SampleWaiter waiter(*this, host, call, caller);
  co_await Wait(host.home, host.sample_waiters, waiter);
  if (waiter.end != Waiter::End::kDecided) {
    call.verdict = EndVerdict(waiter);
    if (host.buffer) Pump(host);
  }
}

Awaitable<void> ReplayService::Insert(IoThread& thread, std::shared_ptr<BufferHost> host, InsertCall& call, Caller caller) {
  Awaitable<void> work = InsertAtHome(*host, call, caller);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::Sample(IoThread& thread, std::shared_ptr<BufferHost> host, SampleCall& call, Caller caller) {
  if (JoinsBuffers(call.request)) co_return co_await SampleJoined(thread, host->name, call, caller);
  Awaitable<void> work = SampleAtHome(*host, call, caller);
  co_await RunOn(host->home, thread, std::move(work));
  if (!call.view) co_return;
  Awaitable<void> fetch = FetchSample(thread, std::move(host), call, caller);
  co_await std::move(fetch);
}

// Ends when the waiter was decided by a pump, or by deadline, peer, drop or drain. Leaves the queue in every case.
Awaitable<void> ReplayService::Wait(IoThread& home, std::list<Waiter*>& queue, Waiter& waiter) {
  if (home.draining) waiter.end = Waiter::End::kDraining;
  if (waiter.who.deadline <= steady_clock::now()) waiter.end = Waiter::End::kTimedOut;
  if (waiter.end != Waiter::End::kPending) co_return;
  const auto place = queue.insert(queue.end(), &waiter);
  home.peer_watch.Add(waiter.who.fd, &waiter);
  waiter.timer.expires_at(waiter.who.deadline);
  boost::system::error_code cancelled;
  co_await waiter.timer.async_wait(asio::redirect_error(kUseAwaitable, cancelled));
  if (waiter.end == Waiter::End::kPending) waiter.end = Waiter::End::kTimedOut;
  home.peer_watch.Remove(waiter.who.fd);
  if (waiter.end != Waiter::End::kDecided) queue.erase(place);  // A pump has already taken a decided one out.
}

void ReplayService::Pump(BufferHost& host) {
  uint32_t cost = 0;
  // A sample may let an insert go and the other way round: until neither head moves.
  for (bool progress = true; progress;) {
    progress = false;
    for (std::list<Waiter*>* queue : {&host.sample_waiters, &host.insert_waiters, &host.admit_waiters}) {
      while (!queue->empty()) {
        Waiter& head = *queue->front();
        if (head.end != Waiter::End::kPending) break;  // On its way out; it pumps again.
        if (cost >= kPumpCost) {
          if (!std::exchange(host.pump_posted, true)) {
            // The directory or a waiter keeps the host alive; posted work of a dropped host finds no buffer.
            asio::post(host.home.executor(), [this, shared = Find(host.home, host.name), raw = &host] {
              if (shared.get() != raw) return;
              raw->pump_posted = false;
              if (raw->buffer) Pump(*raw);
            });
          }
          return;
        }
        const WaitReason waited_for = head.Reason();
        if (!head.Attempt()) {
          // The first draw that finds nothing it may use lets the inserts go; only then is there something to look at again.
          const WaitReason waits_for = head.Reason();
          progress |= waits_for != waited_for && (waits_for == WaitReason::kStaleness || waits_for == WaitReason::kFilter);
          break;
        }
        cost += head.Cost();
        queue->pop_front();
        head.Finish(Waiter::End::kDecided);
        progress = true;
      }
    }
  }
}

void ReplayService::EndAll(std::list<Waiter*>& queue, Waiter::End how) {
  for (Waiter* waiter : queue) waiter->Finish(how);
}

std::optional<SteadyTime::duration> ReplayService::SilenceOf(const BufferHost& host) const {
  const auto silent = steady_clock::now() - host.last_produced;
  if (silent < milliseconds(config_.no_producer_after_ms)) return std::nullopt;
  if (host.buffer && host.buffer->HoldsReservation()) return std::nullopt;
  return silent;
}

std::string ReplayService::WhySampleWaits(const BufferHost& host, const SampleRequest& request) const {
  if (!host.buffer) return "the buffer was dropped";
  std::string why = host.buffer->WhySampleWaits(request);
  if (why.empty()) why = "waits behind earlier samples";
  if (const auto silence = SilenceOf(host))
    why += "; no connection has inserted for " + std::to_string(duration_cast<std::chrono::seconds>(*silence).count()) + " s";
  return why;
}

Awaitable<Verdict> ReplayService::ReserveMemory(IoThread& thread, uint64_t bytes, const std::string& buffer, Caller caller,
                                                Verb verb) {
  MemoryWaiter waiter(thread, *this, storage_, bytes, caller, verb);
  waiter.buffer = buffer;
  if (waiter.Attempt()) co_return Verdict::Done();
  const auto place = thread.memory_waiters.insert(thread.memory_waiters.end(), &waiter);
  thread.peer_watch.Add(caller.fd, &waiter);
  // Memory is given back on any thread, when the last owner of a frame goes: looked at again every 2 ms.
  while (waiter.end == Waiter::End::kPending) {
    if (thread.draining) {
      waiter.end = Waiter::End::kDraining;
    } else if (Spill(thread); waiter.Attempt()) {
      waiter.end = Waiter::End::kDecided;
    } else if (steady_clock::now() >= caller.deadline) {
      waiter.end = Waiter::End::kTimedOut;
    } else {
      waiter.timer.expires_after(milliseconds(2));
      boost::system::error_code cancelled;
      co_await waiter.timer.async_wait(asio::redirect_error(kUseAwaitable, cancelled));
    }
  }
  thread.peer_watch.Remove(caller.fd);
  thread.memory_waiters.erase(place);
  if (waiter.end == Waiter::End::kDecided) co_return Verdict::Done();
  co_return EndVerdict(waiter);
}

Awaitable<Verdict> ReplayService::WaitVersion(IoThread& thread, const Request& request, Caller caller, PolicyVersion& result) {
  VersionWaiter waiter(thread, request, result, caller);
  if (waiter.Attempt()) co_return Verdict::Done();
  co_await Wait(thread, thread.version_waiters, waiter);
  if (waiter.end == Waiter::End::kDecided) co_return Verdict::Done();
  co_return EndVerdict(waiter);
}

void ReplayService::Drain(IoThread& thread) {
  thread.draining = true;
  EndAll(thread.version_waiters, Waiter::End::kDraining);
  EndAll(thread.memory_waiters, Waiter::End::kDraining);
  for (const auto& [name, host] : *thread.directory) {
    if (&host->home != &thread) continue;
    EndAll(host->sample_waiters, Waiter::End::kDraining);
    EndAll(host->insert_waiters, Waiter::End::kDraining);
    EndAll(host->admit_waiters, Waiter::End::kDraining);
  }
}

void ReplayService::ListWaiters(const std::list<Waiter*>& queue, const std::string& buffer,
                                std::vector<WaiterInfo>& waiters) const {
  const auto now = steady_clock::now();
  const auto to_ms = [](auto span) {
    return static_cast<uint64_t>(std::max<int64_t>(0, duration_cast<milliseconds>(span).count()));
  };
  for (const Waiter* waiter : queue) {
    if (waiters.size() >= kMaxWaitersListed) return;
    if (!buffer.empty() && waiter->buffer != buffer) continue;
    WaiterInfo& info = waiters.emplace_back();
    info.buffer = waiter->buffer;
    info.verb = waiter->verb;
    info.reason = waiter->Reason();
    info.detail = waiter->Why();
    info.waited_ms = to_ms(now - waiter->since);
    info.remaining_ms = to_ms(waiter->who.deadline - now);
    if (waiter->who.peer) info.peer = *waiter->who.peer;
  }
}

}  // namespace replay::server
