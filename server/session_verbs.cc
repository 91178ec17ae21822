// The rest of session.h: the verbs that are asked for rarely.

#include <utility>

#include "server/session.h"

namespace replay::server {

Awaitable<void> Session::FinishOther() {
  if (request_.verb == Verb::kUpdate && !co_await TakeColumns()) co_return;
  switch (request_.verb) {
    case Verb::kCreateBuffer:
      Reply(co_await service_.CreateBuffer(thread_, request_));
      co_return;
    case Verb::kAlterBuffer:
      Reply(co_await service_.AlterBuffer(thread_, request_));
      if (const auto altered = service_.Find(thread_, request_.buffer)) HoldReplies(altered);
      co_return;
    case Verb::kDropBuffer:
      Reply(co_await service_.DropBuffer(thread_, request_));
      co_return;
    case Verb::kPublishVersion: {
      const Verdict verdict = co_await service_.PublishVersion(thread_, request_.version);
      if (verdict.done()) {
        thread_.encoder.Version(request_.id, request_.version, output_);
      } else {
        Reply(verdict);
      }
      co_return;
    }
    case Verb::kWaitVersion: {
      co_await PrepareToWait();
      PolicyVersion found;
      const Verdict verdict = co_await service_.WaitVersion(thread_, request_, AsCaller(), found);
      if (verdict.done()) {
        thread_.encoder.Version(request_.id, found, output_);
      } else {
        Reply(verdict);
      }
      co_return;
    }
    case Verb::kVersions: {
      thread_.encoder.Versions(request_.id, thread_.versions->List(request_.version.run_id, kMaxVersionsListed), output_);
      co_return;
    }
    case Verb::kStats: {
      if (!request_.buffer.empty() && !service_.Find(thread_, request_.buffer)) break;
      ServerStats stats;
      co_await service_.Stats(thread_, request_.buffer, stats);
      thread_.encoder.Stats(request_.id, stats, output_);
      co_return;
    }
    case Verb::kWaiters: {
      if (!request_.buffer.empty() && !service_.Find(thread_, request_.buffer)) break;
      std::vector<WaiterInfo> waiters;
      co_await service_.Waiters(thread_, request_.buffer, waiters);
      thread_.encoder.Waiters(request_.id, waiters, output_);
      co_return;
    }
    default:  // The others name a buffer, or it is a Sample of one that is not there.
      if (std::shared_ptr<BufferHost> host = service_.Find(thread_, request_.buffer)) {
        co_await FinishWithBuffer(std::move(host));
        co_return;
      }
  }
  Fail(ErrorCode::kNotFound, WaitReason::kNone, NoSuchBuffer(request_.buffer));
}

Awaitable<void> Session::FinishWithBuffer(std::shared_ptr<BufferHost> host) {
  ReplayService::GetResult result;  // of the verbs at the end
  const bool is_kept = request_.verb == Verb::kReserveGroup || request_.verb == Verb::kAcknowledge ||
                       request_.verb == Verb::kUpdate || request_.verb == Verb::kDelete;
  if (is_kept)
    if (const Verdict verdict = service_.WhyNotKept(*host); !verdict.done()) co_return Reply(verdict);
  switch (request_.verb) {
    case Verb::kReportCost:
      co_await service_.ReportCost(thread_, host, request_.cost);
      HoldReplies(host);
      co_return thread_.encoder.Done(request_.id, output_);
    case Verb::kReserveGroup: {
      co_await PrepareToWait();
      ReserveCall call{request_.reserve};
      co_await service_.Reserve(thread_, host, call, AsCaller());
      HoldReplies(host);
      if (!call.verdict.done()) co_return Reply(call.verdict);
      co_return thread_.encoder.Reserve(request_.id, call.result, output_);
    }
    case Verb::kAdmit: {
      co_await PrepareToWait();
      AdmitCall call{request_.admit};
      co_await service_.Admit(thread_, host, call, AsCaller());
      if (!call.verdict.done()) co_return Reply(call.verdict);
      co_return thread_.encoder.Admit(request_.id, call.result, output_);
    }
    case Verb::kAcknowledge: {
      uint32_t count = 0;
      const Verdict verdict = co_await service_.Acknowledge(thread_, host, request_.acknowledge, count);
      HoldReplies(host);
      if (!verdict.done()) co_return Reply(verdict);
      co_return thread_.encoder.Acknowledge(request_.id, count, output_);
    }
    case Verb::kGet:
      co_await service_.Get(thread_, host, request_, result, AsCaller());
      if (!result.verdict.done()) co_return Reply(result.verdict);
      co_return thread_.encoder.Get(request_.id, result.items, result.found, result.more, output_);
    case Verb::kUpdate:
      co_await service_.Update(thread_, host, request_, result);
      HoldReplies(host);
      if (!result.verdict.done()) co_return Reply(result.verdict);
      co_return thread_.encoder.Update(request_.id, result.outcomes, result.revisions, output_);
    case Verb::kHistory:
      co_await service_.History(thread_, host, request_, result);
      if (!result.verdict.done()) co_return Reply(result.verdict);
      co_return thread_.encoder.History(request_.id, result.prompts, result.more, output_);
    default:  // Delete
      co_await service_.Delete(thread_, host, request_, result);
      HoldReplies(host);
      if (!result.verdict.done()) co_return Reply(result.verdict);
      co_return thread_.encoder.Delete(request_.id, result.deleted, output_);
  }
}

}  // namespace replay::server
