#pragma once
// A Sampler asks for one batch at a time on a connection of its own, and for the next ones before they are wanted.
//
//   Next(s) takes the oldest batch at hand that was asked for a step in [s - max_prefetch_age, s]; without one it is asked for now.
//   In the background batches for s+1 … s+prefetch are asked for, in this order, while fewer than prefetch are at hand.
//   A batch outside [s - max_prefetch_age, s + prefetch] will not be used: it is dropped, and its draws are given back to
//   pacing with the next request. Given back once: not again after a request whose connection broke.
//
// A batch says in `step` the step it was asked for; its staleness is relative to that. A Sample that broke off is not repeated
// as such, another is asked for: the draws of the lost one may count. What nobody waits for is asked with a short wait, so that
// a Next for another step is not held up by it.

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/connection.h"

namespace replay {

class SamplerCore : public std::enable_shared_from_this<SamplerCore> {
 public:
  SamplerCore(std::shared_ptr<Reactor> reactor, std::string buffer, const SamplerOptions& options);
  void Start();
  void Stop();  // waits for the coroutine to end, except on the background thread
  Result<Batch> Next(int64_t step, milliseconds timeout);
  Sampler::Progress progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

 private:
  // A Next that waits.
  struct Asked {
    int64_t step;
    Clock::time_point deadline;
    bool tried = false;  // the server, or the way to it, has answered at least once
  };
  // The one request to the server.
  struct UnderWay {
    int64_t step;
    Clock::time_point answer_due;  // when the server ends its wait
    bool for_next;
  };
  struct Ready {
    int64_t step;
    Batch batch;
  };

  std::optional<Batch> TakeUsable(int64_t step);  // locked, as the next four
  void DropUnusable(int64_t step);
  bool IsWanted(int64_t made_for) const;
  bool AnswerIsNear() const;
  std::optional<UnderWay> NextRequest(Clock::time_point* look_again);
  Result<Batch> WaitForBatch(std::unique_lock<std::mutex>& lock, int64_t step, Clock::time_point deadline);
  void Wake();

  static Awaitable<void> Run(std::shared_ptr<SamplerCore> self);
  Awaitable<bool> Connect();
  Awaitable<void> Ask(UnderWay request);
  Awaitable<void> Pause();
  void SetPausing(bool pausing);
  void OnException(const char* what);
  void GiveBack(const Batch& batch);
  void OnBatch(const UnderWay& request, Batch batch);
  void OnError(const UnderWay& request, const Error& error);

  // Constant after construction.
  const std::shared_ptr<Reactor> reactor_;
  const std::string buffer_;
  const SamplerOptions options_;

  // Under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Ready> ready_;
  std::optional<Asked> asked_;
  std::optional<UnderWay> under_way_;
  std::optional<int64_t> last_step_;  // of Next
  std::optional<Error> error_;        // the answer to the Next that waits
  std::optional<Error> trouble_;      // why there is no batch yet
  bool pausing_ = false;              // between two attempts to reach the server
  bool prefetch_paused_ = false;      // until the next Next: the last one ended in an error
  Clock::time_point prefetch_after_{};
  Clock::time_point ask_after_{};
  uint64_t given_back_ = 0;
  Sampler::Progress progress_;

  // The background thread's.
  std::shared_ptr<Connection> connection_;
  BackOff back_off_;
  Signal wake_, pause_;
  std::optional<uint64_t> generation_;
  uint64_t next_id_ = 1;
  bool stopping_ = false;
  std::promise<void> ended_;
};

}  // namespace replay
