// The program's half of a Sampler; see sampler_core.h.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <utility>

#include "client/sampler_core.h"
#include "client/trajectory.h"

namespace replay {
namespace {

constexpr milliseconds kBackOffFirst{50}, kBackOffMost{5'000};

SamplerOptions Bounded(SamplerOptions options) {
  // A rank that is far ahead lets the plans of the others expire.
  options.prefetch = std::min(options.prefetch, options.consumer.empty() ? 1024u : 1u);
  if (!options.parts.empty()) {
    options.count = 0;
    for (const SamplePart& part : options.parts) options.count += part.count;
  }
  options.max_prefetch_age = std::max<int64_t>(options.max_prefetch_age, 0);
  options.wait_timeout = ClampWait(options.wait_timeout);
  return options;
}

}  // namespace

SamplerCore::SamplerCore(std::shared_ptr<Reactor> reactor, std::string buffer, const SamplerOptions& options)
    : reactor_(std::move(reactor)),
      buffer_(std::move(buffer)),
      options_(Bounded(options)),
      back_off_(kBackOffFirst, kBackOffMost, RandomKey().low),
      wake_(reactor_->executor()),
      pause_(reactor_->executor()) {}

void SamplerCore::Start() { asio::co_spawn(reactor_->executor(), Run(shared_from_this()), asio::detached); }

Result<Batch> SamplerCore::Next(int64_t step, milliseconds timeout) {
  if (reactor_->OnThread()) return Error{ErrorCode::kFailedPrecondition, "Next within a callback would wait for itself"};
  if (std::string error = ValidateBufferName(buffer_); !error.empty())
    return Error{ErrorCode::kInvalidArgument, std::move(error)};
  if (!reactor_->address_error.empty()) return Error{ErrorCode::kInvalidArgument, reactor_->address_error};
  const auto begin = Clock::now();
  const auto deadline = begin + ClampWait(timeout);
  std::unique_lock lock(mutex_);
  DropUnusable(step);
  last_step_ = step;
  prefetch_paused_ = false;
  error_.reset();
  asked_ = Asked{step, deadline};
  Result<Batch> result = WaitForBatch(lock, step, deadline);
  asked_.reset();
  if (result) ++progress_.batches;
  progress_.waited_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  Wake();  // for the prefetch
  return result;
}

// Waits for a batch, an error, or the deadline. At the deadline an answer that the server must be about to give is awaited a
// little longer, since it brings the reason.
Result<Batch> SamplerCore::WaitForBatch(std::unique_lock<std::mutex>& lock, int64_t step, Clock::time_point deadline) {
  const auto hard_deadline = deadline + ClampWait(reactor_->options.call_timeout);
  bool woken = false;
  for (;;) {
    if (std::optional<Batch> batch = TakeUsable(step)) return std::move(*batch);
    if (error_) return *error_;
    const auto now = Clock::now();
    if (now >= hard_deadline || (now >= deadline && !AnswerIsNear())) break;
    if (!std::exchange(woken, true)) Wake();
    changed_.wait_until(lock, now < deadline ? deadline : hard_deadline);
  }
  if (trouble_) return *trouble_;
  return Error{
      ErrorCode::kTimedOut,
      "no batch for step " + std::to_string(step) + " in time" +
          (under_way_ ? ": a request for step " + std::to_string(under_way_->step) + " waits at the server" : std::string())};
}

std::optional<Batch> SamplerCore::TakeUsable(int64_t step) {
  auto oldest = ready_.end();
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    if (it->step <= step && (oldest == ready_.end() || it->step < oldest->step)) oldest = it;
  }
  if (oldest == ready_.end()) return std::nullopt;
  Batch batch = std::move(oldest->batch);
  ready_.erase(oldest);
  return batch;
}

bool SamplerCore::IsWanted(int64_t made_for) const {
  // In unsigned numbers, where a difference cannot overflow.
  const auto step = static_cast<uint64_t>(*last_step_), made = static_cast<uint64_t>(made_for);
  return made_for > *last_step_ ? made - step <= options_.prefetch
                                : step - made <= static_cast<uint64_t>(options_.max_prefetch_age);
}

void SamplerCore::DropUnusable(int64_t step) {
  last_step_ = step;
  std::erase_if(ready_, [&](const Ready& ready) {
    if (IsWanted(ready.step)) return false;
    GiveBack(ready.batch);
    return true;
  });
}

bool SamplerCore::AnswerIsNear() const {
  if (under_way_) return under_way_->for_next || under_way_->answer_due <= asked_->deadline;
  return !asked_->tried && !pausing_;
}

void SamplerCore::Wake() {
  asio::post(reactor_->executor(), [self = shared_from_this()] { self->wake_.Notify(); });
}

void SamplerCore::Stop() {
  asio::post(reactor_->executor(), [self = shared_from_this()] {
    self->stopping_ = true;
    if (self->connection_) self->connection_->Close({ErrorCode::kUnavailable, "the sampler is closing"});
    self->wake_.Notify();
    self->pause_.Notify();
  });
  if (!reactor_->OnThread()) ended_.get_future().wait();
}

// --- Sampler --------------------------------------------------------------------------------------------------------------------
class Sampler::Impl {
 public:
  Impl(std::shared_ptr<Network> network, std::string buffer, const SamplerOptions& options)
      : network_(std::move(network)), core_(std::make_shared<SamplerCore>(network_->reactor(), std::move(buffer), options)) {
    core_->Start();
  }
  ~Impl() { core_->Stop(); }
  SamplerCore& core() { return *core_; }

 private:
  const std::shared_ptr<Network> network_;  // first: it ends last
  const std::shared_ptr<SamplerCore> core_;
};

std::unique_ptr<Sampler> MakeSampler(std::shared_ptr<Network> network, std::string buffer, const SamplerOptions& options) {
  return std::make_unique<Sampler>(std::make_shared<Sampler::Impl>(std::move(network), std::move(buffer), options));
}

Sampler::~Sampler() = default;
Result<Batch> Sampler::Next(int64_t step, milliseconds timeout) { return impl_->core().Next(step, timeout); }
Sampler::Progress Sampler::progress() const { return impl_->core().progress(); }

}  // namespace replay
