#include "replay/client.h"

#include <atomic>
#include <future>
#include <utility>

#include "client/calls.h"
#include "client/codec.h"
#include "client/network.h"
#include "client/trajectory.h"
#include "schema/names.h"

namespace replay {
namespace {

// The background thread answers by every call's deadline, unless a callback blocks it.
constexpr milliseconds kGrace{1'000};

}  // namespace

// The client's own codes follow those of the protocol.
static_assert(kErrorCodeNames.size() == static_cast<size_t>(ErrorCode::kOutcomeUnknown));
static_assert(kWaitReasonNames.size() == static_cast<size_t>(WaitReason::kVersion) + 1);

std::string_view ToString(ErrorCode code) {
  if (code == ErrorCode::kOutcomeUnknown) return "outcome_unknown";
  if (code == ErrorCode::kContentLost) return "content_lost";
  const auto index = static_cast<size_t>(code);
  return index < kErrorCodeNames.size() ? kErrorCodeNames[index] : "unknown";
}

std::string_view ToString(WaitReason reason) {
  const auto index = static_cast<size_t>(reason);
  return index < kWaitReasonNames.size() ? kWaitReasonNames[index] : "unknown";
}

std::string Error::ToString() const {
  std::string text(replay::ToString(code));
  if (reason != WaitReason::kNone) text += " (" + std::string(replay::ToString(reason)) + ")";
  return message.empty() ? text : text + ": " + message;
}

class Client::Impl {
 public:
  explicit Impl(ClientOptions options)
      : network_(std::make_shared<Network>(std::move(options))), calls_(std::make_shared<Calls>(network_->reactor())) {}
  ~Impl() { calls_->Stop(); }

  const std::shared_ptr<Network>& network() const { return network_; }
  IdMaker& ids() { return ids_; }

  // A call under construction: its identity, how long the server may wait and when the client gives up.
  struct Plan {
    RequestHead head;
    bool repeatable = false;
    bool may_wait = false;
    Clock::time_point deadline;
  };
  Plan NewPlan(bool repeatable) { return NewPlan(repeatable, milliseconds(0), false); }
  Plan NewPlan(bool repeatable, milliseconds wait) { return NewPlan(repeatable, wait, true); }

  // `done` gets the decoded reply, or the error that `request` is.
  template <typename T>
  void Start(const Plan& plan, Result<Frame> request, std::vector<Frame> payload, Result<T> (*decode)(const ReceivedReply&),
             std::function<void(Result<T>)> done) {
    if (!request) return done(request.error());
    auto on_end = [decode, done = std::move(done)](Result<CallResult> result) {
      if (!result) return done(result.error());
      done(decode(result->reply));
    };
    StartRaw(plan, std::move(*request), std::move(payload), std::move(on_end));
  }

  void StartRaw(const Plan& plan, Frame request, std::vector<Frame> payload, std::function<void(Result<CallResult>)> done) {
    calls_->Start(Call{.control = std::move(request),
                       .payload = std::move(payload),
                       .id = plan.head.id,
                       .repeatable = plan.repeatable,
                       .may_wait = plan.may_wait,
                       .deadline = plan.deadline,
                       .done = std::move(done)});
  }

  // Runs an asynchronous form and waits for what it says.
  template <typename T, typename Begin>
  Result<T> Wait(Clock::time_point deadline, Begin begin) {
    if (network_->reactor()->OnThread())
      return Error{ErrorCode::kFailedPrecondition,
                   "a blocking call within a callback would wait for itself: use the Async form"};
    auto promise = std::make_shared<std::promise<Result<T>>>();
    auto future = promise->get_future();
    begin(std::function<void(Result<T>)>([promise](Result<T> result) { promise->set_value(std::move(result)); }));
    if (future.wait_until(deadline + kGrace) != std::future_status::ready)
      return Error{ErrorCode::kOutcomeUnknown, "the client's background thread does not answer: a callback blocks it"};
    return future.get();
  }

  template <typename T>
  Result<T> Invoke(const Plan& plan, Result<Frame> request, Result<T> (*decode)(const ReceivedReply&),
                   std::vector<Frame> payload = {}) {
    return Wait<T>(plan.deadline, [&](std::function<void(Result<T>)> done) {
      Start<T>(plan, std::move(request), std::move(payload), decode, std::move(done));
    });
  }

 private:
  Plan NewPlan(bool repeatable, milliseconds wait, bool may_wait) {
    wait = ClampWait(wait);
    return {.head = {.id = next_id_.fetch_add(1, std::memory_order_relaxed), .timeout_ms = static_cast<uint32_t>(wait.count())},
            .repeatable = repeatable,
            .may_wait = may_wait,
            .deadline = Clock::now() + wait + ClampWait(network_->reactor()->options.call_timeout)};
  }

  const std::shared_ptr<Network> network_;  // first: it ends last
  const std::shared_ptr<Calls> calls_;
  IdMaker ids_;
  std::atomic<uint64_t> next_id_{1};
};

namespace {

// "" is allowed where it means all buffers.
std::optional<Error> CheckName(const std::string& name, bool may_be_empty = false) {
  if (may_be_empty && name.empty()) return std::nullopt;
  std::string error = ValidateBufferName(name);
  if (error.empty()) return std::nullopt;
  return Error{ErrorCode::kInvalidArgument, std::move(error)};
}

std::optional<Error> CheckRunId(const std::string& run_id) {
  if (run_id.size() <= kMaxIdBytes) return std::nullopt;
  return Error{ErrorCode::kInvalidArgument, "run_id has " + std::to_string(run_id.size()) + " bytes: at most " +
                                                std::to_string(kMaxIdBytes) + " are allowed"};
}

}  // namespace

Client::Client(ClientOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {}
Client::~Client() = default;

Result<ServerInfo> Client::Ping() {
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Wait<ServerInfo>(plan.deadline, [&](std::function<void(Result<ServerInfo>)> done) {
    auto on_end = [done = std::move(done)](Result<CallResult> result) {
      if (!result) return done(result.error());
      if (const Result<Done> pong = DecodeDone(result->reply); !pong) return done(pong.error());
      done(ServerInfo{result->server.version, result->server.generation, result->round_trip_ms});
    };
    impl_->StartRaw(plan, EncodePing(plan.head), {}, std::move(on_end));
  });
}

Result<Done> Client::CreateBuffer(const std::string& name, const BufferOptions& options) {
  if (auto error = CheckName(name)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<Done>(plan, EncodeCreateBuffer(plan.head, name, options), DecodeDone);
}

Result<Done> Client::AlterBuffer(const std::string& name, const BufferOptions& options) {
  if (auto error = CheckName(name)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<Done>(plan, EncodeAlterBuffer(plan.head, name, options), DecodeDone);
}

Result<Done> Client::DropBuffer(const std::string& name) {
  if (auto error = CheckName(name)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<Done>(plan, EncodeDropBuffer(plan.head, name), DecodeDone);
}

void Client::InsertAsync(const std::string& buffer, std::span<const Trajectory> trajectories, milliseconds timeout,
                         std::function<void(Result<InsertReceipt>)> done) {
  if (auto error = CheckName(buffer)) return done(*error);
  Result<EncodedGroup> group = EncodeGroup(trajectories, impl_->ids());
  if (!group) return done(group.error());
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  ControlBuilder builder;
  const InsertHead head{.buffer = buffer, .writer = {}};
  Frame control = Frame::CopyOf(EncodeInsert(builder, plan.head, head, group->frames, group->columns));
  for (EncodedColumn& each : group->columns) group->frames.push_back(std::move(each.column));  // all that is the payload
  impl_->Start<InsertReceipt>(plan, std::move(control), std::move(group->frames), DecodeInsert, std::move(done));
}

Result<InsertReceipt> Client::Insert(const std::string& buffer, std::span<const Trajectory> trajectories,
                                     milliseconds timeout) {
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  return impl_->Wait<InsertReceipt>(plan.deadline, [&](std::function<void(Result<InsertReceipt>)> done) {
    InsertAsync(buffer, trajectories, timeout, std::move(done));
  });
}

void Client::SampleAsync(const std::string& buffer, const SampleOptions& options, milliseconds timeout,
                         std::function<void(Result<Batch>)> done) {
  if (auto error = CheckName(buffer)) return done(*error);
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  impl_->Start<Batch>(plan, EncodeSample(plan.head, buffer, options), {}, DecodeSample, std::move(done));
}

Result<Batch> Client::Sample(const std::string& buffer, const SampleOptions& options, milliseconds timeout) {
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  return impl_->Wait<Batch>(
      plan.deadline, [&](std::function<void(Result<Batch>)> done) { SampleAsync(buffer, options, timeout, std::move(done)); });
}

Result<std::vector<StoredTrajectory>> Client::Get(const std::string& buffer, std::span<const std::string> ids,
                                                  std::span<const std::string> columns) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<std::vector<StoredTrajectory>>(plan, EncodeGet(plan.head, buffer, ids, columns), DecodeGet);
}

Result<std::vector<StoredTrajectory>> Client::Scan(const std::string& buffer, uint64_t after, uint32_t limit,
                                                   std::span<const std::string> columns) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<std::vector<StoredTrajectory>>(plan, EncodeScan(plan.head, buffer, after, limit, columns), DecodeGet);
}

Result<uint32_t> Client::Delete(const std::string& buffer, std::span<const std::string> ids) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<uint32_t>(plan, EncodeDelete(plan.head, buffer, ids), DecodeDelete);
}

Result<std::vector<UpdateResult>> Client::Update(const std::string& buffer, std::span<const ItemUpdate> updates) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  Result<EncodedUpdate> encoded = EncodeUpdate(plan.head, buffer, updates);
  if (!encoded) return encoded.error();
  return impl_->Invoke<std::vector<UpdateResult>>(plan, std::move(encoded->control), DecodeUpdate, std::move(encoded->columns));
}

Result<uint32_t> Client::Acknowledge(const std::string& buffer, uint64_t lease, std::span<const uint64_t> items,
                                     bool give_back) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<uint32_t>(plan, EncodeAcknowledge(plan.head, buffer, lease, items, give_back), DecodeAcknowledge);
}

Result<ReservedGroup> Client::ReserveGroup(const std::string& buffer, const Reservation& reservation, milliseconds timeout) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  return impl_->Invoke<ReservedGroup>(plan, EncodeReserveGroup(plan.head, buffer, reservation, ReserveAction::kReserve),
                                      DecodeReserveGroup);
}

Result<InsertReceipt> Client::InsertMembers(const std::string& buffer, std::span<const Trajectory> members,
                                            milliseconds timeout) {
  if (auto error = CheckName(buffer)) return *error;
  Result<EncodedGroup> group = EncodeGroup(members, impl_->ids(), /*partial=*/true);
  if (!group) return group.error();
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  ControlBuilder builder;
  const InsertHead head{.buffer = buffer, .writer = {}, .partial = true};
  Frame control = Frame::CopyOf(EncodeInsert(builder, plan.head, head, group->frames));
  return impl_->Wait<InsertReceipt>(plan.deadline, [&](std::function<void(Result<InsertReceipt>)> done) {
    impl_->Start<InsertReceipt>(plan, std::move(control), std::move(group->frames), DecodeInsert, std::move(done));
  });
}

Result<ReservedGroup> Client::CommitGroup(const std::string& buffer, const std::string& group_id) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<ReservedGroup>(
      plan, EncodeReserveGroup(plan.head, buffer, {.group_id = group_id}, ReserveAction::kCommit), DecodeReserveGroup);
}

Result<ReservedGroup> Client::DropGroup(const std::string& buffer, const std::string& group_id) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<ReservedGroup>(plan, EncodeReserveGroup(plan.head, buffer, {.group_id = group_id}, ReserveAction::kDrop),
                                      DecodeReserveGroup);
}

Result<Admission> Client::Admit(const std::string& buffer, const AdmissionRequest& request, milliseconds timeout) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false, timeout);
  return impl_->Invoke<Admission>(plan, EncodeAdmit(plan.head, buffer, request), DecodeAdmit);
}

Result<HistoryPage> Client::History(const std::string& buffer, const std::string& source, int64_t after, uint32_t limit) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<HistoryPage>(plan, EncodeHistory(plan.head, buffer, source, after, limit), DecodeHistory);
}

Result<PolicyVersion> Client::PublishVersion(const PolicyVersion& version) {
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<PolicyVersion>(plan, EncodePublishVersion(plan.head, version), DecodeVersion);
}

Result<PolicyVersion> Client::WaitVersion(const std::string& run_id, uint64_t epoch, std::optional<int64_t> version,
                                          milliseconds timeout) {
  if (auto error = CheckRunId(run_id)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true, timeout);
  return impl_->Invoke<PolicyVersion>(plan, EncodeWaitVersion(plan.head, run_id, epoch, version), DecodeVersion);
}

Result<std::vector<PolicyVersion>> Client::Versions(const std::string& run_id) {
  if (auto error = CheckRunId(run_id)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<std::vector<PolicyVersion>>(plan, EncodeVersions(plan.head, run_id), DecodeVersions);
}

Result<Done> Client::ReportCost(const std::string& buffer, const Cost& cost) {
  if (auto error = CheckName(buffer)) return *error;
  const Impl::Plan plan = impl_->NewPlan(false);
  return impl_->Invoke<Done>(plan, EncodeReportCost(plan.head, buffer, cost), DecodeDone);
}

Result<ServerStats> Client::Stats(const std::string& buffer) {
  if (auto error = CheckName(buffer, true)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<ServerStats>(plan, EncodeStats(plan.head, buffer), DecodeStats);
}

Result<std::vector<WaiterInfo>> Client::Waiters(const std::string& buffer) {
  if (auto error = CheckName(buffer, true)) return *error;
  const Impl::Plan plan = impl_->NewPlan(true);
  return impl_->Invoke<std::vector<WaiterInfo>>(plan, EncodeWaiters(plan.head, buffer), DecodeWaiters);
}

std::unique_ptr<Writer> Client::NewWriter(const std::string& buffer, WriterOptions options) {
  return MakeWriter(impl_->network(), buffer, options);
}

std::unique_ptr<Sampler> Client::NewSampler(const std::string& buffer, SamplerOptions options) {
  return MakeSampler(impl_->network(), buffer, options);
}

}  // namespace replay
