// The background half of a Sampler; see sampler_core.h.
#include "client/sampler_core.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace replay {
namespace {

constexpr milliseconds kPrefetchWait{2'000};  // on the server, without a Next that waits
constexpr milliseconds kPrefetchPause{50};    // after such a wait was in vain
constexpr milliseconds kLeastWait{10};        // between requests that the server may not hold back at all
constexpr auto kNever = Clock::time_point::max();

}  // namespace

Awaitable<void> SamplerCore::Run(std::shared_ptr<SamplerCore> self) {
  while (!self->stopping_) {
    std::optional<UnderWay> request;
    Clock::time_point look_again;
    {
      const std::lock_guard lock(self->mutex_);
      request = self->NextRequest(&look_again);
    }
    if (!request) {
      co_await self->wake_.WaitUntil(look_again);
      continue;
    }
    bool pause = false;
    try {
      if (self->connection_ && self->connection_->LooksAlive()) {
        co_await self->Ask(*request);
      } else {
        pause = !co_await self->Connect();
      }
    } catch (const std::exception& exception) {  // Memory that ran out, which may pass.
      self->OnException(exception.what());
      pause = true;
    }
    if (pause) co_await self->Pause();
  }
  if (self->connection_) self->connection_->Close({ErrorCode::kUnavailable, "the sampler is closing"});
  self->connection_.reset();
  self->ended_.set_value();
}

Awaitable<bool> SamplerCore::Connect() {
  if (connection_) connection_->Close({ErrorCode::kUnavailable, "the server closed the connection"});
  connection_ = std::make_shared<Connection>(reactor_);
  const std::optional<Error> error = co_await connection_->Open(Clock::now() + reactor_->options.connect_timeout);
  const std::lock_guard lock(mutex_);
  if (error) {
    trouble_ = error;
    if (asked_) asked_->tried = true;
    changed_.notify_all();
    co_return false;
  }
  const uint64_t generation = connection_->server().generation;
  if (generation_) ++progress_.reconnects;
  if (generation_ && *generation_ != generation) given_back_ = 0;  // Draws of a server that is no more.
  generation_ = generation;
  next_id_ = 1;
  co_return true;
}

Awaitable<void> SamplerCore::Pause() {
  const auto resume = Clock::now() + back_off_.Next();
  SetPausing(true);
  while (!stopping_ && Clock::now() < resume) co_await pause_.WaitUntil(resume);
  SetPausing(false);
}

void SamplerCore::SetPausing(bool pausing) {
  const std::lock_guard lock(mutex_);
  pausing_ = pausing;
  changed_.notify_all();
}

Awaitable<void> SamplerCore::Ask(UnderWay request) {
  const auto wait = std::chrono::ceil<milliseconds>(std::max(request.answer_due - Clock::now(), Clock::duration(0)));
  const RequestHead head{.id = next_id_++, .timeout_ms = static_cast<uint32_t>(wait.count())};
  SampleOptions sample;
  sample.count = options_.count;
  sample.step = request.step;
  sample.view = options_.view;
  sample.parts = options_.parts;
  sample.columns = options_.columns;
  sample.consumer = options_.consumer;
  sample.rank = options_.rank;
  sample.world_size = options_.world_size;
  {
    const std::lock_guard lock(mutex_);
    sample.given_back = static_cast<uint32_t>(std::min<uint64_t>(given_back_, std::numeric_limits<uint32_t>::max()));
    given_back_ -= sample.given_back;
    under_way_ = request;
  }
  connection_->SetDeadline(Clock::now() + wait + reactor_->options.call_timeout);
  connection_->output().AddFrame(EncodeSample(head, buffer_, sample));
  ReceivedReply reply;
  std::optional<Error> error = co_await connection_->Flush();
  if (!error) error = co_await connection_->Receive(head.id, &reply);
  connection_->ClearDeadline();
  const bool answered = connection_->is_open();
  std::optional<Batch> batch;
  if (!error) {
    Result<Batch> decoded = DecodeSample(reply);
    if (decoded) {
      batch = std::move(*decoded);
    } else {
      error = decoded.error();
    }
  }
  if (batch) {
    back_off_.Reset();
    OnBatch(request, std::move(*batch));
    co_return;
  }
  {
    const std::lock_guard lock(mutex_);
    // Pacing takes back what is given back when it draws: an error says that it has not, a damaged reply that it has.
    if (error->code == ErrorCode::kCorrupted) {
      if (options_.consumer.empty()) given_back_ += options_.count;
    } else if (answered) {
      given_back_ += sample.given_back;
    }
    if (wait < kLeastWait) ask_after_ = Clock::now() + kLeastWait;
  }
  OnError(request, *error);
  if (!answered || error->code == ErrorCode::kUnavailable) co_await Pause();
}

// What was under way is lost, draws included; the next request goes over a new connection.
void SamplerCore::OnException(const char* what) {
  if (connection_) connection_->Close({ErrorCode::kInternal, what});
  connection_.reset();
  const std::lock_guard lock(mutex_);
  under_way_.reset();
  trouble_ = Error{ErrorCode::kInternal, what};
  if (asked_) asked_->tried = true;
  changed_.notify_all();
}

void SamplerCore::OnBatch(const UnderWay& request, Batch batch) {
  const std::lock_guard lock(mutex_);
  under_way_.reset();
  trouble_.reset();
  if (IsWanted(request.step)) {
    ready_.push_back({request.step, std::move(batch)});
  } else {
    GiveBack(batch);
  }
  changed_.notify_all();
}

// A plan is kept for whoever asks again: nothing of it goes back. What is held goes back by itself when its lease ends.
void SamplerCore::GiveBack(const Batch& batch) {
  if (options_.consumer.empty() && batch.lease == 0) given_back_ += batch.draws.size();
  ++progress_.dropped_stale;
}

void SamplerCore::OnError(const UnderWay& request, const Error& error) {
  const std::lock_guard lock(mutex_);
  under_way_.reset();
  if (asked_ && asked_->step == request.step) asked_->tried = true;
  const bool passes = error.code == ErrorCode::kTimedOut || error.code == ErrorCode::kUnavailable ||
                      error.code == ErrorCode::kProtocolViolation;
  if (passes) {  // Asked again: at once for a Next that waits, else after a moment.
    trouble_ = error;
    prefetch_after_ = Clock::now() + kPrefetchPause;
  } else if (asked_ && asked_->step == request.step) {
    error_ = error;
    prefetch_paused_ = true;
  } else {
    prefetch_paused_ = true;
  }
  changed_.notify_all();
}

// What to ask for next, if anything; otherwise when to look again without having been woken.
std::optional<SamplerCore::UnderWay> SamplerCore::NextRequest(Clock::time_point* look_again) {
  const auto now = Clock::now();
  *look_again = kNever;
  if (!last_step_) return std::nullopt;
  if (now < ask_after_) {
    *look_again = ask_after_;
    return std::nullopt;
  }
  if (asked_ && !error_) {
    const bool at_hand = std::any_of(ready_.begin(), ready_.end(), [&](const Ready& r) { return r.step <= asked_->step; });
    if (!at_hand && (now < asked_->deadline || !asked_->tried)) {
      const auto left = std::chrono::floor<milliseconds>(asked_->deadline - now);
      return UnderWay{asked_->step, now + std::clamp(left, milliseconds(0), options_.wait_timeout), true};
    }
  }
  if (prefetch_paused_ || ready_.size() >= options_.prefetch) return std::nullopt;
  if (now < prefetch_after_) {
    *look_again = prefetch_after_;
    return std::nullopt;
  }
  for (uint32_t ahead = 1; ahead <= options_.prefetch; ++ahead) {
    if (*last_step_ > std::numeric_limits<int64_t>::max() - ahead) break;
    const int64_t step = *last_step_ + ahead;
    if (std::any_of(ready_.begin(), ready_.end(), [&](const Ready& ready) { return ready.step == step; })) continue;
    return UnderWay{step, now + std::min(kPrefetchWait, options_.wait_timeout), false};
  }
  return std::nullopt;
}

}  // namespace replay
