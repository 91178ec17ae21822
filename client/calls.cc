#include "client/calls.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace replay {
namespace {

// Made anew each time: a client that its own callback destroyed may close connections while the process ends.
Error Closing() { return {ErrorCode::kUnavailable, "the client is closing"}; }

}  // namespace

void Calls::Start(Call call) { asio::co_spawn(reactor_->executor(), Run(shared_from_this(), std::move(call)), asio::detached); }

void Calls::Stop() {
  asio::post(reactor_->executor(), [self = shared_from_this()] { self->StopOnThread(); });
  if (!reactor_->OnThread()) stopped_.get_future().wait();
}

void Calls::StopOnThread() {
  stopping_ = true;
  for (Pool* pool : {&short_calls_, &waiting_calls_}) {
    for (const auto& connection : pool->idle) connection->Close(Closing());
    pool->idle.clear();
    for (Signal* waiting : pool->queue) waiting->Notify();
  }
  for (const auto& connection : busy_) connection->Close(Closing());
  EndIfIdle();
}

void Calls::EndIfIdle() {
  if (stopping_ && active_ == 0 && !std::exchange(ended_, true)) stopped_.set_value();
}

Awaitable<void> Calls::Run(std::shared_ptr<Calls> self, Call call) {
  ++self->active_;
  std::optional<Result<CallResult>> result;
  try {
    result.emplace(co_await self->Perform(call));
  } catch (const std::exception& exception) {  // out of memory, or a fault of ours: the caller must hear of it
    result.emplace(Error{ErrorCode::kInternal, exception.what()});
  }
  call.done(std::move(*result));
  call.done = nullptr;  // what it holds goes before Stop returns
  --self->active_;
  self->EndIfIdle();
}

Awaitable<Result<CallResult>> Calls::Perform(Call& call) {
  Pool& pool = call.may_wait ? waiting_calls_ : short_calls_;
  CallResult result;
  for (bool first = true;; first = false) {
    if (stopping_) co_return Closing();
    std::shared_ptr<Connection> connection = co_await Lease(pool, call.deadline);
    if (stopping_) co_return Closing();
    if (!connection)
      co_return Error{ErrorCode::kUnavailable, "all " + std::to_string(pool.most) + " connections of this client are in use"};
    busy_.insert(connection);
    bool sent = false;
    std::optional<Error> error = co_await Exchange(*connection, call, &result, &sent);
    busy_.erase(connection);
    const bool usable = connection->is_open(), timed_out = connection->timed_out();
    GiveBack(pool, std::move(connection));
    if (!error) co_return std::move(result);
    if (usable || !sent) co_return *error;
    if (call.repeatable && timed_out) co_return Error{ErrorCode::kTimedOut, error->message};
    if (!call.repeatable)
      co_return Error{ErrorCode::kOutcomeUnknown, error->message + ": the request was sent, it may or may not have been done"};
    if (!first || stopping_ || error->code == ErrorCode::kProtocolViolation) co_return *error;
  }
}

Awaitable<std::optional<Error>> Calls::Exchange(Connection& connection, Call& call, CallResult* result, bool* sent) {
  if (!connection.is_open()) {
    const auto connect_by = std::min(call.deadline, Clock::now() + reactor_->options.connect_timeout);
    if (auto error = co_await connection.Open(connect_by)) co_return error;
  }
  uint64_t payload_bytes = 0;
  for (const Frame& frame : call.payload) payload_bytes += frame.size();
  if (payload_bytes > connection.server().max_payload_bytes)
    co_return Error{ErrorCode::kInvalidArgument, "the request has " + std::to_string(payload_bytes) +
                                                     " bytes: this server takes at most " +
                                                     std::to_string(connection.server().max_payload_bytes) + " at once"};
  connection.SetDeadline(call.deadline);
  *sent = true;
  const auto begin = Clock::now();
  connection.output().AddFrame(call.control);
  for (const Frame& frame : call.payload) connection.output().AddFrame(frame);
  if (auto error = co_await connection.Flush()) co_return error;
  if (auto error = co_await connection.Receive(call.id, &result->reply)) co_return error;
  connection.ClearDeadline();
  result->round_trip_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  result->server = connection.server();
  co_return std::nullopt;
}

Awaitable<std::shared_ptr<Connection>> Calls::Lease(Pool& pool, Clock::time_point deadline) {
  for (;;) {
    while (!pool.idle.empty()) {
      std::shared_ptr<Connection> connection = std::move(pool.idle.back());
      pool.idle.pop_back();
      if (connection->LooksAlive()) co_return connection;
      connection->Close(Closing());
      --pool.open;
    }
    if (pool.open < pool.most) break;
    Signal turn(reactor_->executor());
    pool.queue.push_back(&turn);
    co_await turn.WaitUntil(deadline);
    const bool called = std::erase(pool.queue, &turn) == 0;
    if (called) --pool.called;
    if (stopping_ || Clock::now() >= deadline) {
      if (called) CallNext(pool);
      co_return nullptr;
    }
  }
  ++pool.open;
  co_return std::make_shared<Connection>(reactor_);
}

void Calls::GiveBack(Pool& pool, std::shared_ptr<Connection> connection) {
  connection->ClearDeadline();
  const bool keeps = connection->holds() || pool.idle.size() < kMostIdle + pool.called + pool.queue.size();
  if (connection->is_open() && !stopping_ && keeps) {
    pool.idle.push_back(std::move(connection));
  } else {
    connection->Close(Closing());
    --pool.open;
  }
  CallNext(pool);
}

void Calls::CallNext(Pool& pool) {
  if (pool.queue.empty()) return;
  pool.queue.front()->Notify();
  pool.queue.pop_front();  // the next connection is for the next in the queue
  ++pool.called;
}

}  // namespace replay
