// The verbs of replay_service.h about what is held back: Acknowledge, and ReserveGroup and Admit, which may wait for admission.

#include <boost/asio/post.hpp>

#include <utility>

#include "server/replay_service.h"

namespace replay::server {
namespace {

// What both waiters for admission share.
struct AdmissionWaiter : Waiter {
  AdmissionWaiter(BufferHost& buffer_host, const Caller& caller, Verb waiting_verb)
      : Waiter(buffer_host.home, caller, waiting_verb), host(buffer_host) {
    buffer = host.name;
  }
  WaitReason Reason() const override { return WaitReason::kStaleness; }
  bool BehindOthers() const { return !host.admit_waiters.empty() && host.admit_waiters.front() != this; }
  std::string WhyFor(const AdmitRequest& request) const {
    AdmitResult now;
    if (!host.buffer || !host.buffer->Admit(request, &now).waits()) return "waits behind earlier calls for admission";
    return std::to_string(request.count) + " trajectories wanted, " + std::to_string(now.credits) +
           " admitted: " + std::to_string(now.live) + " are live and " + std::to_string(now.reserved) + " reserved";
  }
  BufferHost& host;
};

}  // namespace

struct ReserveWaiter final : AdmissionWaiter {
  ReserveWaiter(BufferHost& buffer_host, ReserveCall& waiting_call, const Caller& caller)
      : AdmissionWaiter(buffer_host, caller, Verb::kReserveGroup), call(waiting_call) {}
  bool Attempt() override {
    call.verdict = host.buffer->Reserve(call.request, &call.result, BehindOthers());
    return !call.verdict.waits();
  }
  std::string Why() const override { return WhyFor({.count = call.request.size, .batch = call.request.batch}); }
  ReserveCall& call;
};

struct AdmitWaiter final : AdmissionWaiter {
  AdmitWaiter(BufferHost& buffer_host, AdmitCall& waiting_call, const Caller& caller)
      : AdmissionWaiter(buffer_host, caller, Verb::kAdmit), call(waiting_call) {}
  bool Attempt() override {
    call.verdict = host.buffer->Admit(call.request, &call.result, BehindOthers());
    return !call.verdict.waits();
  }
  std::string Why() const override { return WhyFor(call.request); }
  AdmitCall& call;
};

template <typename WaiterType, typename Call>
Awaitable<void> ReplayService::AdmissionAtHome(BufferHost& host, Call& call, Caller caller) {
  if (!host.buffer) {
    call.verdict = Dropped(host);
    co_return;
  }
  WaiterType waiter(host, call, caller);
  // Whoever waits: what renews, ends, only asks or can never be met is decided here.
  if (waiter.Attempt()) {
    if (call.verdict.done()) Pump(host);
    co_return;
  }
  co_await Wait(host.home, host.admit_waiters, waiter);
  if (waiter.end == Waiter::End::kDecided) co_return;
  call.verdict = EndVerdict(waiter);
  if (host.buffer) Pump(host);
}

Awaitable<void> ReplayService::Reserve(IoThread& thread, std::shared_ptr<BufferHost> host, ReserveCall& call, Caller caller) {
  Awaitable<void> work = AdmissionAtHome<ReserveWaiter>(*host, call, caller);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<void> ReplayService::Admit(IoThread& thread, std::shared_ptr<BufferHost> host, AdmitCall& call, Caller caller) {
  Awaitable<void> work = AdmissionAtHome<AdmitWaiter>(*host, call, caller);
  co_await RunOn(host->home, thread, std::move(work));
}

Awaitable<Verdict> ReplayService::AcknowledgeAtHome(BufferHost& host, const AcknowledgeRequest& request, uint32_t& count) {
  if (!host.buffer) co_return Dropped(host);
  Verdict verdict = host.buffer->Acknowledge(request, &count);
  if (verdict.done()) Pump(host);
  co_return verdict;
}

Awaitable<Verdict> ReplayService::Acknowledge(IoThread& thread, std::shared_ptr<BufferHost> host,
                                              const AcknowledgeRequest& request, uint32_t& count) {
  Awaitable<Verdict> work = AcknowledgeAtHome(*host, request, count);
  co_return co_await RunOn(host->home, thread, std::move(work));
}

void ReplayService::EndLeasesOf(std::shared_ptr<BufferHost> host, uint64_t session) {
  asio::post(host->home.executor(), [this, host, session] {
    if (host->buffer && host->buffer->EndLeasesOf(session)) Pump(*host);
  });
}

}  // namespace replay::server
