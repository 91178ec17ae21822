// The program's half of a Writer; see writer_core.h.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include <utility>

#include "client/writer_core.h"

namespace replay {
namespace {

WriterOptions Bounded(WriterOptions options) {
  // A reply that is missing in the middle keeps later ones in the window: half of what the server remembers is safe.
  options.max_in_flight = std::clamp(options.max_in_flight, 1u, kMaxReceiptsPerWriter / 2);
  options.batch_trajectories = std::clamp(options.batch_trajectories, 1u, kMaxTrajectoriesPerInsert);
  options.batch_bytes = std::min(options.batch_bytes, kMaxRequestPayloadBytes);
  options.linger = ClampWait(options.linger);
  options.insert_timeout = ClampWait(options.insert_timeout);
  options.give_up_after = ClampWait(options.give_up_after);
  options.back_off_first = std::max(ClampWait(options.back_off_first), milliseconds(1));
  options.back_off_most = std::max(ClampWait(options.back_off_most), options.back_off_first);
  return options;
}

std::string Count(uint64_t count, const char* what) { return std::to_string(count) + " " + what + (count == 1 ? "" : "s"); }

}  // namespace

WriterCore::WriterCore(std::shared_ptr<Reactor> reactor, std::string buffer, const WriterOptions& options)
    : reactor_(std::move(reactor)),
      buffer_(std::move(buffer)),
      options_(Bounded(options)),
      batch_limit_(options_.batch_trajectories),
      window_(RandomKey()),
      back_off_(options_.back_off_first, options_.back_off_most, RandomKey().low),
      wake_(reactor_->executor()),
      pause_(reactor_->executor()),
      receiver_ended_(reactor_->executor()) {}

void WriterCore::Start() { asio::co_spawn(reactor_->executor(), Run(shared_from_this()), asio::detached); }

bool WriterCore::HasRoom(const EncodedGroup& group) const {
  if (unanswered_bytes_ > 0 && unanswered_bytes_ + group.bytes > options_.max_in_flight_bytes) return false;
  const bool fits = !open_.units.empty() && open_.frames.size() + group.frames.size() <= batch_limit_ &&
                    open_.bytes + group.bytes <= options_.batch_bytes &&
                    open_.columns.size() + group.columns.size() <= kMaxColumnsPerRequest;
  return fits || requests_ + (open_.units.empty() ? 0 : 1) < options_.max_in_flight;
}

void WriterCore::CloseOpenBundle() {
  closed_.push_back(std::exchange(open_, {}));
  ++requests_;
}

std::string WriterCore::Unanswered() const {
  return Count(requests_ + (open_.units.empty() ? 0 : 1), "request") + " of " +
         (progress_.in_flight == 1 ? "1 trajectory" : std::to_string(progress_.in_flight) + " trajectories") + " unanswered";
}

Error WriterCore::TimedOut(const std::string& what) const {
  Error error{ErrorCode::kTimedOut, what + ": " + Unanswered()};
  if (trouble_) {
    error.reason = trouble_->reason;
    error.message += "; last: " + trouble_->ToString();
  }
  return error;
}

Result<Done> WriterCore::Insert(std::span<const Trajectory> group, milliseconds timeout) {
  static IdMaker ids;  // one for the process: ids differ between its writers
  if (reactor_->OnThread()) return Error{ErrorCode::kFailedPrecondition, "InsertGroup within a callback could wait for itself"};
  if (std::string error = ValidateBufferName(buffer_); !error.empty())
    return Error{ErrorCode::kInvalidArgument, std::move(error)};
  if (std::string error = CheckLevel(options_.level); !error.empty())
    return Error{ErrorCode::kInvalidArgument, std::move(error)};
  if (!reactor_->address_error.empty()) return Error{ErrorCode::kInvalidArgument, reactor_->address_error};
  Result<EncodedGroup> encoded = EncodeGroup(group, ids);
  if (!encoded) return encoded.error();

  const auto deadline = Clock::now() + ClampWait(timeout);
  std::unique_lock lock(mutex_);
  wanted_bytes_ = encoded->bytes;
  if (!HasRoom(*encoded)) Wake();  // the open bundle need not linger
  while (!HasRoom(*encoded)) {
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !HasRoom(*encoded)) {
      wanted_bytes_.reset();
      return TimedOut("no room in the window");
    }
  }
  wanted_bytes_.reset();
  const bool starts_new = open_.units.empty() || open_.frames.size() + encoded->frames.size() > batch_limit_ ||
                          open_.bytes + encoded->bytes > options_.batch_bytes ||
                          open_.columns.size() + encoded->columns.size() > kMaxColumnsPerRequest;
  if (starts_new) {
    if (!open_.units.empty()) CloseOpenBundle();
    opened_at_ = Clock::now();
  }
  progress_.in_flight += encoded->frames.size();
  unanswered_bytes_ += encoded->bytes;
  open_.Append(std::move(*encoded));
  const bool full = open_.frames.size() >= batch_limit_ || open_.bytes >= options_.batch_bytes || options_.linger.count() == 0;
  if (full && requests_ < options_.max_in_flight) CloseOpenBundle();
  if (starts_new || full) Wake();
  return Done{};
}

Result<Done> WriterCore::Flush(milliseconds timeout) {
  if (reactor_->OnThread()) return Error{ErrorCode::kFailedPrecondition, "Flush within a callback would wait for itself"};
  const auto deadline = Clock::now() + ClampWait(timeout);
  std::unique_lock lock(mutex_);
  flushing_ = true;
  Wake();
  const bool done = changed_.wait_until(lock, deadline, [&] { return progress_.in_flight == 0 && !reporting_; });
  flushing_ = false;
  if (!done) return TimedOut("not everything is acknowledged");
  for (std::optional<Error>* news : {&first_failure_, &content_lost_}) {
    if (*news) return *std::exchange(*news, std::nullopt);
  }
  return Done{};
}

void WriterCore::Wake() {
  if (std::exchange(wake_posted_, true)) return;
  asio::post(reactor_->executor(), [self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->wake_posted_ = false;
    }
    self->wake_.Notify();
  });
}

void WriterCore::Stop() {
  asio::post(reactor_->executor(), [self = shared_from_this()] {
    self->stopping_ = true;
    if (self->connection_) self->connection_->Close({ErrorCode::kUnavailable, "the writer is closing"});
    self->wake_.Notify();
    self->pause_.Notify();
  });
  if (!reactor_->OnThread()) ended_.get_future().wait();
}

// --- Writer ----------------------------------------------------------------------------------------------------------------------
class Writer::Impl {
 public:
  Impl(std::shared_ptr<Network> network, std::string buffer, const WriterOptions& options)
      : network_(std::move(network)), core_(std::make_shared<WriterCore>(network_->reactor(), std::move(buffer), options)) {
    core_->Start();
  }
  ~Impl() {
    if (core_->progress().in_flight > 0) core_->Flush(milliseconds(1'000));
    core_->Stop();
  }
  WriterCore& core() { return *core_; }

 private:
  const std::shared_ptr<Network> network_;  // first: it ends last
  const std::shared_ptr<WriterCore> core_;
};

std::unique_ptr<Writer> MakeWriter(std::shared_ptr<Network> network, std::string buffer, const WriterOptions& options) {
  return std::make_unique<Writer>(std::make_shared<Writer::Impl>(std::move(network), std::move(buffer), options));
}

Writer::~Writer() = default;
Result<Done> Writer::InsertGroup(std::span<const Trajectory> group, milliseconds timeout) {
  return impl_->core().Insert(group, timeout);
}
Result<Done> Writer::Insert(const Trajectory& trajectory, milliseconds timeout) {
  return impl_->core().Insert({&trajectory, 1}, timeout);
}
Result<Done> Writer::Flush(milliseconds timeout) { return impl_->core().Flush(timeout); }
void Writer::OnResult(std::function<void(const Result<InsertReceipt>&)> callback) {
  impl_->core().OnResult(std::move(callback));
}
Writer::Progress Writer::progress() const { return impl_->core().progress(); }

}  // namespace replay
