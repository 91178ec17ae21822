// The part of replay_service.h that draws one batch from several buffers.

#include <utility>

#include "server/joined_sample.h"
#include "server/replay_service.h"

namespace replay::server {
namespace {

// What a buffer must have in common with the others, and whether it takes the request.
struct Look {
  Unit unit = Unit::kTrajectory;
  uint64_t lease_ms = 0;
  std::string refused;
};

Awaitable<void> LookAtHome(BufferHost& host, const SampleRequest& request, Look& look) {
  if (!host.buffer) co_return;  // SampleAtHome says so.
  look.unit = host.buffer->options().unit;
  look.lease_ms = host.buffer->options().lease_ms;
  look.refused = host.buffer->WhySampleRefused(request);
}

}  // namespace

// One buffer after the other, each on its own thread, within the one deadline: no buffer is held while another waits.
Awaitable<void> ReplayService::SampleJoined(IoThread& thread, const std::string& buffer, SampleCall& call, Caller caller) {
  std::vector<Share> shares;
  if (std::string error = ShareOut(buffer, call.request, &shares); !error.empty()) {
    call.verdict = Verdict::Failed(ErrorCode::kInvalidArgument, std::move(error));
    co_return;
  }
  std::vector<std::shared_ptr<BufferHost>> hosts;
  for (const Share& share : shares) {
    hosts.push_back(Find(thread, share.buffer));
    if (hosts.back()) continue;
    call.verdict = Verdict::Failed(ErrorCode::kNotFound, "parts[" + std::to_string(share.request.part_places[0]) +
                                                             "].buffer: " + NoSuchBuffer(share.buffer));
    co_return;
  }
  // Before anything is drawn: one batch has one unit, and a reply names one lease.
  Look first;
  for (size_t i = 0; shares.size() > 1 && i < shares.size(); ++i) {
    Look look;
    Awaitable<void> work = LookAtHome(*hosts[i], shares[i].request, look);
    co_await RunOn(hosts[i]->home, thread, std::move(work));
    if (i == 0) first = look;
    const std::string at =
        "parts[" + std::to_string(shares[i].request.part_places[0]) + "].buffer is \"" + shares[i].buffer + "\": ";
    if (look.unit != first.unit)
      call.verdict =
          Verdict::Failed(ErrorCode::kInvalidArgument, at + "its unit is " + std::string(ToString(look.unit)) + ", that of \"" +
                                                           shares[0].buffer + "\" is " + std::string(ToString(first.unit)));
    else if (look.lease_ms > 0)
      call.verdict =
          Verdict::Failed(ErrorCode::kInvalidArgument, at + "it has leases, and a Sample of several buffers holds nothing");
    else if (!look.refused.empty())
      call.verdict = Verdict::Failed(ErrorCode::kInvalidArgument, "buffer \"" + shares[i].buffer + "\": " + look.refused);
    else
      continue;
    co_return;
  }
  size_t drawn = 0;
  for (; drawn < shares.size(); ++drawn) {
    SampleCall part;
    part.request = shares[drawn].request;
    Awaitable<void> work = SampleAtHome(*hosts[drawn], part, caller);
    co_await RunOn(hosts[drawn]->home, thread, std::move(work));
    if (part.view) co_await FetchSample(thread, hosts[drawn], part, caller);
    call.verdict = std::move(part.verdict);
    if (!call.verdict.done()) {
      if (shares.size() > 1) call.verdict.message = "buffer \"" + shares[drawn].buffer + "\": " + call.verdict.message;
      break;
    }
    shares[drawn].result = std::move(part.result);
  }
  if (drawn == shares.size()) {
    std::string error = Join(call.request, &shares, &call.result);
    if (error.empty()) co_return;
    call.verdict = Verdict::Failed(ErrorCode::kResourceExhausted, std::move(error));
  }
  for (size_t i = 0; i < drawn; ++i) co_await Credit(thread, *hosts[i], shares[i].request, shares[i].result);
}

}  // namespace replay::server
