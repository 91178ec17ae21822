#pragma once
// One connection to the server: opened once, then requests go out and their replies come back in the same order, then closed
// for good. Whoever wants another makes another.
//
//   Open:     resolve the name, connect, Hello                         (bounded by its deadline)
//   Send:     output().AddBytes(request) and AddFrame(payload), Flush
//   Receive:  the next reply; sizes are checked before anything is allocated, the checksum of every frame after
//
// Nothing is retried here. An error means that the connection is closed, except kCorrupted: the reply was read whole, but a
// checksum of its payload does not match. Everything happens on the reactor's thread; Close, from another coroutine there, ends
// what waits.

#include <memory>
#include <optional>
#include <string>

#include "client/codec.h"
#include "client/network.h"

namespace replay {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::shared_ptr<Reactor> reactor);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Awaitable<std::optional<Error>> Open(Clock::time_point deadline);
  OutputQueue& output() { return output_; }
  Awaitable<std::optional<Error>> Flush();
  // `id`: of the oldest request without a reply.
  Awaitable<std::optional<Error>> Receive(uint64_t id, ReceivedReply* reply);
  void Close(Error why);

  // At `deadline` the connection is closed and timed_out. Cheap to move on: the timer looks again when it rings.
  void SetDeadline(Clock::time_point deadline);
  void ClearDeadline() { deadline_ = Clock::time_point::max(); }

  bool is_open() const { return open_; }
  bool timed_out() const { return timed_out_; }
  bool holds() const { return holds_; }  // It has sampled under a lease, which ends with it.
  // Open, and the server has neither closed it nor sent anything unasked. For a connection without a request under way.
  bool LooksAlive();
  const ServerHello& server() const { return server_; }
  const Error& why_closed() const { return *why_closed_; }  // only once it is closed

 private:
  Awaitable<std::optional<Error>> Resolve(Clock::time_point deadline);
  Awaitable<std::optional<Error>> Connect(Clock::time_point deadline);
  Awaitable<std::optional<Error>> Greet();
  Awaitable<std::optional<Error>> ReceiveFrames(const ReplyHead& head, ReceivedReply* reply);
  void ArmTimer();
  Error Break(const boost::system::error_code& error);  // closes
  Error Violation(std::string what);                    // closes

  const std::shared_ptr<Reactor> reactor_;
  Socket socket_;
  InputBuffer input_;
  OutputQueue output_;
  ServerHello server_;
  std::vector<Socket::endpoint_type> endpoints_;
  bool open_ = false;
  bool closed_ = false;
  bool timed_out_ = false;
  bool holds_ = false;
  std::optional<Error> why_closed_;

  Timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point rings_at_ = Clock::time_point::max();
};

}  // namespace replay
