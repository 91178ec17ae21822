#include "client/connection.h"

#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace replay {
namespace {

constexpr uint64_t kHelloId = 0;

struct LookUp {
  explicit LookUp(Executor executor) : ended(executor) {}
  Signal ended;
  bool done = false;
  std::string error;
  std::vector<Socket::endpoint_type> endpoints;
};

// Looks a name up on a thread of its own, which outlives whoever gives up: getaddrinfo cannot be interrupted, and Asio's resolver
// would hold up the end of its io_context for as long as a name server is silent.
void StartLookUp(const std::shared_ptr<Reactor>& reactor, const std::shared_ptr<LookUp>& look_up) {
  const Address& address = reactor->address;
  const auto run = [weak_reactor = std::weak_ptr(reactor), weak_look_up = std::weak_ptr(look_up), host = address.host,
                    port = std::to_string(address.port)] {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG;
    const int status = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    std::vector<Socket::endpoint_type> endpoints;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next)
      endpoints.emplace_back(each->ai_addr, each->ai_addrlen);
    if (found != nullptr) freeaddrinfo(found);
    const std::shared_ptr<Reactor> reached = weak_reactor.lock();
    if (!reached) return;
    asio::post(reached->executor(), [weak_look_up, status, endpoints = std::move(endpoints)]() mutable {
      const std::shared_ptr<LookUp> waiting = weak_look_up.lock();
      if (!waiting) return;
      if (status != 0) waiting->error = gai_strerror(status);
      waiting->endpoints = std::move(endpoints);
      waiting->done = true;
      waiting->ended.Notify();
    });
  };
  std::thread(run).detach();
}

}  // namespace

Clock::duration BackOff::Next() {
  random_ ^= random_ << 13;  // xorshift64: any spread will do
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  const auto delay = std::chrono::duration_cast<Clock::duration>(next_);
  next_ = std::min(most_, next_ * 2);
  return delay / 2 + delay / 2 * static_cast<Clock::rep>(random_ % 1024) / 1024;
}

Connection::Connection(std::shared_ptr<Reactor> reactor)
    : reactor_(std::move(reactor)),
      socket_(reactor_->executor()),
      input_(reactor_->input_blocks),
      timer_(reactor_->executor()) {}

Awaitable<std::optional<Error>> Connection::Open(Clock::time_point deadline) {
  if (!reactor_->address_error.empty()) co_return Error{ErrorCode::kInvalidArgument, reactor_->address_error};
  if (auto error = co_await Resolve(deadline)) co_return error;
  if (auto error = co_await Connect(deadline)) co_return error;
  const int fd = socket_.native_handle();
  ConfigureSocket(fd);
  if (!reactor_->address.is_unix()) ConfigureKeepalive(fd);
  SetDeadline(deadline);
  if (auto error = co_await Greet()) {
    if (!timed_out_) co_return error;
    co_return Error{ErrorCode::kUnavailable, reactor_->address.ToString() + " accepted the connection but did not say hello"};
  }
  ClearDeadline();
  open_ = true;
  co_return std::nullopt;
}

Awaitable<std::optional<Error>> Connection::Resolve(Clock::time_point deadline) {
  const Address& address = reactor_->address;
  if (address.is_unix()) {
    endpoints_.emplace_back(asio::local::stream_protocol::endpoint(address.unix_path));
    co_return std::nullopt;
  }
  boost::system::error_code not_numeric;
  const auto numeric = asio::ip::make_address(address.host, not_numeric);
  if (!not_numeric) {
    endpoints_.emplace_back(asio::ip::tcp::endpoint(numeric, address.port));
    co_return std::nullopt;
  }
  const auto look_up = std::make_shared<LookUp>(reactor_->executor());
  StartLookUp(reactor_, look_up);
  while (!look_up->done && !closed_ && Clock::now() < deadline) {
    // Looks around often enough for Close to be noticed; a look-up that takes this long is in trouble anyway.
    co_await look_up->ended.WaitUntil(std::min(deadline, Clock::now() + milliseconds(50)));
  }
  if (closed_) co_return why_closed_;
  if (!look_up->done) co_return Error{ErrorCode::kUnavailable, "the name \"" + address.host + "\" was not resolved in time"};
  if (!look_up->error.empty())
    co_return Error{ErrorCode::kUnavailable, "the name \"" + address.host + "\" is not known: " + look_up->error};
  endpoints_ = std::move(look_up->endpoints);
  co_return std::nullopt;
}

// Tries one address after the other, each with its share of the time that is left.
Awaitable<std::optional<Error>> Connection::Connect(Clock::time_point deadline) {
  std::string why = "the name has no address";
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (closed_) co_return why_closed_;
    boost::system::error_code error;
    Timer limit(reactor_->executor());
    limit.expires_at(Clock::now() + (deadline - Clock::now()) / static_cast<int64_t>(endpoints_.size() - i));
    auto over = std::make_shared<bool>(false);  // a handler that is already queued must not close what comes after
    const auto on_ring = [weak = weak_from_this(), over](const boost::system::error_code& cancelled) {
      if (cancelled || std::exchange(*over, true)) return;
      boost::system::error_code ignored;
      if (const auto self = weak.lock()) self->socket_.close(ignored);
    };
    limit.async_wait(on_ring);
    co_await socket_.async_connect(endpoints_[i], asio::redirect_error(kUseAwaitable, error));
    const bool rang = std::exchange(*over, true);
    if (closed_) co_return why_closed_;
    if (!error && !rang) co_return std::nullopt;
    why = rang ? "no answer in time" : error.message();
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  co_return Error{ErrorCode::kUnavailable, "not connected to " + reactor_->address.ToString() + ": " + why};
}

Awaitable<std::optional<Error>> Connection::Greet() {
  const RequestHead head{.id = kHelloId};
  output_.AddFrame(EncodeHello(head, reactor_->options.name));
  if (auto error = co_await Flush()) co_return error;
  ReceivedReply reply;
  if (auto error = co_await Receive(kHelloId, &reply)) co_return error;
  Result<ServerHello> hello = DecodeHello(reply);
  if (!hello) {
    Close(hello.error());
    co_return hello.error();
  }
  server_ = std::move(*hello);
  co_return std::nullopt;
}

Awaitable<std::optional<Error>> Connection::Flush() {
  boost::system::error_code error;
  if (!closed_ && co_await output_.Flush(socket_, error)) co_return std::nullopt;
  co_return Break(error);
}

Awaitable<std::optional<Error>> Connection::Receive(uint64_t id, ReceivedReply* reply) {
  boost::system::error_code error;
  while (input_.available().size() < sizeof(Preamble)) {
    if (closed_ || !co_await input_.Fill(socket_, error)) co_return Break(error);
  }
  Preamble preamble;
  std::memcpy(&preamble, input_.available().data(), sizeof preamble);
  input_.Consume(sizeof preamble);
  if (std::string what = CheckPreamble(preamble, kMaxReplyControlBytes, kMaxReplyPayloadBytes); !what.empty())
    co_return Violation(std::move(what));

  reply->control.resize(preamble.control_words);
  reply->frames.clear();
  reply->columns.clear();
  auto* control = reinterpret_cast<uint8_t*>(reply->control.data());
  const uint64_t control_bytes = preamble.control_words * sizeof(uint64_t);
  if (input_.available().size() >= control_bytes) {  // The usual case, without a coroutine of its own.
    std::memcpy(control, input_.available().data(), control_bytes);
    input_.Consume(control_bytes);
  } else if (!co_await input_.ReadBody(socket_, control, control_bytes, error)) {
    co_return Break(error);
  }

  ReplyHead head;
  if (const Result<Done> decoded = DecodeHead(reply->control, &head); !decoded) co_return Violation(decoded.error().message);
  if (head.id != id) {
    // A server that gives up on the whole conversation does not answer a particular request.
    if (!head.error) co_return Violation("the reply is to request " + std::to_string(head.id) + ", not " + std::to_string(id));
    Close(*head.error);
    co_return head.error;
  }
  holds_ |= head.holds;
  uint64_t payload_bytes = 0;
  for (const uint32_t size : head.frame_bytes) {
    if (size < kMinFrameBytes || size > kMaxFrameBytes || size % 8 != 0)
      co_return Violation("a frame is said to have " + std::to_string(size) + " bytes");
    payload_bytes += size;
  }
  for (const uint32_t size : head.column_bytes) {
    if (std::string what = CheckColumnSize(size); !what.empty()) co_return Violation("the size of a column " + what);
    payload_bytes += size;
  }
  if (payload_bytes != preamble.payload_bytes)
    co_return Violation("the frames are said to have " + std::to_string(payload_bytes) + " bytes together, the payload " +
                        std::to_string(preamble.payload_bytes));
  if (payload_bytes == 0) co_return std::nullopt;
  co_return co_await ReceiveFrames(head, reply);
}

Awaitable<std::optional<Error>> Connection::ReceiveFrames(const ReplyHead& head, ReceivedReply* reply) {
  boost::system::error_code error;
  std::optional<Error> damage;
  for (const uint32_t size : head.frame_bytes) {
    Frame frame = Frame::Allocate(size);
    if (closed_ || !co_await input_.ReadBody(socket_, frame.mutable_data(), size, error)) co_return Break(error);
    if (std::string what = CheckFrameShape(frame.bytes()); !what.empty()) co_return Violation(std::move(what));
    if (!FrameChecksumMatches(frame.bytes()))
      damage = Error{ErrorCode::kCorrupted, "the checksum of trajectory " + std::to_string(reply->frames.size()) +
                                                " of the reply does not match its bytes"};
    reply->frames.push_back(std::move(frame));
  }
  for (const uint32_t size : head.column_bytes) {
    Frame column = Frame::Allocate(size);
    if (closed_ || !co_await input_.ReadBody(socket_, column.mutable_data(), size, error)) co_return Break(error);
    if (!FrameChecksumMatches(column.bytes()))
      damage = Error{ErrorCode::kCorrupted, "the checksum of column " + std::to_string(reply->columns.size()) +
                                                " of the reply does not match its bytes"};
    reply->columns.push_back(std::move(column));
  }
  co_return damage;
}

void Connection::Close(Error why) {
  if (closed_) return;
  closed_ = true;
  open_ = false;
  why_closed_ = std::move(why);
  timer_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

Error Connection::Break(const boost::system::error_code& error) {
  // `error` is empty when the server closed the connection in order.
  Close({ErrorCode::kUnavailable, "the connection to " + reactor_->address.ToString() +
                                      " broke: " + (error ? error.message() : std::string("closed by the server"))});
  return *why_closed_;
}

Error Connection::Violation(std::string what) {
  Close({ErrorCode::kProtocolViolation, reactor_->address.ToString() + " broke the protocol: " + std::move(what)});
  return *why_closed_;
}

void Connection::SetDeadline(Clock::time_point deadline) {
  deadline_ = deadline;
  if (!closed_ && deadline_ < rings_at_) ArmTimer();
}

void Connection::ArmTimer() {
  rings_at_ = deadline_;
  timer_.expires_at(rings_at_);
  const auto on_ring = [weak = weak_from_this()](const boost::system::error_code& cancelled) {
    const auto self = weak.lock();
    if (cancelled || !self || self->closed_) return;
    self->rings_at_ = Clock::time_point::max();
    if (Clock::now() >= self->deadline_) {
      self->timed_out_ = true;
      self->Close({ErrorCode::kTimedOut, self->reactor_->address.ToString() + " did not answer in time"});
    } else if (self->deadline_ != Clock::time_point::max()) {
      self->ArmTimer();
    }
  };
  timer_.async_wait(on_ring);
}

bool Connection::LooksAlive() {
  if (!open_ || !input_.available().empty()) return false;
  char byte;
  const ssize_t got = recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace replay
