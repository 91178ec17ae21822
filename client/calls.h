#pragma once
// Calls without a Writer or a Sampler: each leases a connection, sends one request, receives one reply, gives it back.
//
// One connection is one ordered conversation, so calls at the same time use a connection each, and a call that waits on the
// server holds up no other. Calls that may wait and calls that may not have a pool each: a Ping gets through however many
// Samples wait. Beyond a pool's size calls queue, within their deadlines.
//
//   never sent                        kUnavailable: it was not done
//   sent, connection broke, a read    sent once more on a new connection
//   sent, connection broke            kOutcomeUnknown (Insert, Sample, Delete …: it may or may not have been done)
//   sent, no reply by the deadline    kTimedOut for a read, else kOutcomeUnknown

#include <array>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <vector>

#include "client/connection.h"

namespace replay {

struct CallResult {
  ReceivedReply reply;
  ServerHello server;
  double round_trip_ms = 0;
};

struct Call {
  Frame control;
  std::vector<Frame> payload;
  uint64_t id = 0;
  bool repeatable = false;  // a read: asking twice changes nothing
  bool may_wait = false;    // on the server
  Clock::time_point deadline;
  std::function<void(Result<CallResult>)> done;  // once, on the background thread
};

class Calls : public std::enable_shared_from_this<Calls> {
 public:
  explicit Calls(std::shared_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}
  // Any thread.
  void Start(Call call);
  // Any thread but the reactor's waits until every call has ended (within a moment: their connections are closed).
  void Stop();

 private:
  struct Pool {
    explicit Pool(size_t most_open) : most(most_open) {}
    const size_t most;
    size_t open = 0;  // leased and idle
    std::vector<std::shared_ptr<Connection>> idle;
    std::deque<Signal*> queue;
    size_t called = 0;  // no longer in the queue, about to take a connection
  };
  static Awaitable<void> Run(std::shared_ptr<Calls> self, Call call);
  Awaitable<Result<CallResult>> Perform(Call& call);
  Awaitable<std::optional<Error>> Exchange(Connection& connection, Call& call, CallResult* result, bool* sent);
  Awaitable<std::shared_ptr<Connection>> Lease(Pool& pool, Clock::time_point deadline);  // null: none became free in time
  void GiveBack(Pool& pool, std::shared_ptr<Connection> connection);
  void CallNext(Pool& pool);
  void StopOnThread();
  void EndIfIdle();

  static constexpr size_t kMostIdle = 8;
  const std::shared_ptr<Reactor> reactor_;
  // The reactor's thread's.
  Pool short_calls_{16};
  Pool waiting_calls_{256};
  std::set<std::shared_ptr<Connection>> busy_;
  size_t active_ = 0;
  bool stopping_ = false;
  bool ended_ = false;  // a callback that starts another call after the end does not end it twice
  std::promise<void> stopped_;
};

}  // namespace replay
