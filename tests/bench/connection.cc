#include "tests/bench/connection.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "schema/protocol.capnp.h"
#include "schema/wire.h"
#include "tests/bench/process.h"

namespace replay::bench {
namespace {

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// What a struct pointer of one segment leads to.
struct StructAt {
  const uint8_t* data;
  const uint8_t* pointers;
};
StructAt Follow(const uint8_t* pointer) {
  const auto offset_words = static_cast<int32_t>(Load<uint32_t>(pointer)) >> 2;
  const uint8_t* data = pointer + 8 + int64_t{offset_words} * 8;
  return {data, data + Load<uint16_t>(pointer + 4) * 8};
}

struct FastReply {
  uint64_t id;
  uint16_t code;
  uint16_t which;
  uint32_t insert_count;
};
FastReply ReadFast(const uint8_t* control) {
  const StructAt reply = Follow(control);
  FastReply fast{Load<uint64_t>(reply.data), Load<uint16_t>(reply.data + 8), Load<uint16_t>(reply.data + 12), 0};
  if (fast.which == schema::Reply::INSERT) fast.insert_count = Load<uint32_t>(Follow(reply.pointers + 8).data + 8);
  return fast;
}

[[noreturn]] void FailReply(const uint8_t* message) {
  const auto preamble = Load<Preamble>(message);
  std::vector<uint64_t> words(preamble.control_words);
  std::memcpy(words.data(), message + sizeof preamble, words.size() * 8);
  ControlReader reader(words.data(), preamble.control_words);
  const auto reply = reader.Root<schema::Reply>();
  Fail("the server answered with error " + std::to_string(static_cast<int>(reply.getCode())) + ": " +
       reply.getMessage().cStr());
}

}  // namespace

std::string ToString(Transport transport) { return transport == Transport::kUnix ? "unix" : "tcp"; }

uint16_t FreePort() {
  const Stream socket_here(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(socket_here.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) FailErrno("bind");
  getsockname(socket_here.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

Stream::~Stream() {
  if (fd_ >= 0) close(fd_);
}

Stream Stream::Connect(const Endpoint& endpoint, Transport transport) {
  sockaddr_storage storage{};
  socklen_t length;
  if (transport == Transport::kUnix) {
    auto& address = reinterpret_cast<sockaddr_un&>(storage);
    address.sun_family = AF_UNIX;
    if (endpoint.unix_path.size() >= sizeof address.sun_path)
      Fail("the path of a Unix socket is too long: " + endpoint.unix_path);
    std::memcpy(address.sun_path, endpoint.unix_path.c_str(), endpoint.unix_path.size() + 1);
    length = sizeof address;
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.tcp_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    length = sizeof address;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    Stream stream(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(stream.fd(), reinterpret_cast<sockaddr*>(&storage), length) == 0) {
      ConfigureSocket(stream.fd());
      const timeval patience{.tv_sec = 30, .tv_usec = 0};  // so that no bench hangs
      setsockopt(stream.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      return stream;
    }
    // EAGAIN: the backlog of a Unix socket is full.
    if (std::chrono::steady_clock::now() > deadline) FailErrno("nobody listens (" + ToString(transport) + ")");
    std::this_thread::sleep_for(std::chrono::milliseconds(errno == EAGAIN ? 1 : 20));
  }
}

void Stream::Send(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) FailErrno("send");
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

size_t Stream::Receive(std::span<uint8_t> into) {
  for (;;) {
    const ssize_t got = recv(fd_, into.data(), into.size(), 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) Fail("the server closed the connection");
    if (errno == EAGAIN) Fail("no answer for 30 s");
    if (errno != EINTR) FailErrno("recv");
  }
}

void Stream::ReceiveAll(std::span<uint8_t> into) {
  while (!into.empty()) into = into.subspan(Receive(into));
}

ControlReply Call(Stream& stream, std::span<const uint8_t> request) {
  stream.Send(request);
  Preamble preamble;
  stream.ReceiveAll({reinterpret_cast<uint8_t*>(&preamble), sizeof preamble});
  if (const std::string error = CheckPreamble(preamble, kMaxReplyControlBytes, kMaxReplyPayloadBytes); !error.empty())
    Fail(error);
  Bytes message(sizeof preamble + preamble.control_words * 8);
  std::memcpy(message.data(), &preamble, sizeof preamble);
  stream.ReceiveAll(std::span(message).subspan(sizeof preamble));
  Bytes payload(preamble.payload_bytes);
  stream.ReceiveAll(payload);
  ControlReply reply{std::vector<uint64_t>(preamble.control_words), preamble.payload_bytes};
  std::memcpy(reply.words.data(), message.data() + sizeof preamble, reply.words.size() * 8);
  ControlReader reader(reply.words.data(), preamble.control_words);
  if (reader.Root<schema::Reply>().getCode() != schema::ErrorCode::OK) FailReply(message.data());
  return reply;
}

Stream Greet(const Endpoint& endpoint, Transport transport) {
  Stream stream = Stream::Connect(endpoint, transport);
  Call(stream, HelloRequest());
  return stream;
}

std::optional<uint64_t> MessageBytes(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Preamble)) return std::nullopt;
  const auto preamble = Load<Preamble>(bytes.data());
  if (preamble.magic != Preamble::kMagic) Fail("a reply does not begin with \"RPLY\"");
  return sizeof preamble + preamble.control_words * uint64_t{8} + preamble.payload_bytes;
}

std::optional<ReplySize> CheckReply(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Preamble)) return std::nullopt;
  const auto preamble = Load<Preamble>(bytes.data());
  if (preamble.magic != Preamble::kMagic) Fail("a reply does not begin with \"RPLY\"");
  const ReplySize size{sizeof preamble + preamble.control_words * uint64_t{8}, preamble.payload_bytes};
  if (size.control_bytes > bytes.size()) return std::nullopt;
  const FastReply reply = ReadFast(bytes.data() + sizeof preamble);
  if (reply.code != 0 || (reply.which == schema::Reply::INSERT && reply.insert_count != 1)) FailReply(bytes.data());
  return size;
}

size_t CountReplies(std::span<const uint8_t> bytes, uint32_t* replies) {
  size_t used = 0;
  for (;;) {
    const auto size = CheckReply(bytes.subspan(used));
    if (!size || size->control_bytes + size->payload_bytes > bytes.size() - used) return used;
    used += size->control_bytes + size->payload_bytes;
    ++*replies;
  }
}

size_t CountRedisOk(std::span<const uint8_t> bytes, uint32_t* replies) {
  const size_t count = bytes.size() / 5;
  for (size_t i = 0; i < count; ++i)
    if (std::memcmp(bytes.data() + i * 5, "+OK\r\n", 5) != 0) Fail("Redis answered something else than +OK");
  *replies += static_cast<uint32_t>(count);
  return count * 5;
}

Bytes CannedInsertReply() {
  ControlBuilder builder(512);
  auto reply = builder.Start<schema::Reply>(512);
  reply.setId(0x1122'3344'5566'7788);
  auto insert = reply.initInsert();
  insert.setFirstItem(1);
  insert.setCount(1);
  insert.setLive(1);
  const auto bytes = builder.Finish(0);
  return Bytes(bytes.begin(), bytes.end());
}

void CheckFastReader() {
  const Bytes canned = CannedInsertReply();
  const FastReply insert = ReadFast(canned.data() + sizeof(Preamble));
  ControlBuilder builder(512);
  auto reply = builder.Start<schema::Reply>(512);
  reply.setCode(schema::ErrorCode::NOT_FOUND);
  reply.setMessage("gone");
  const FastReply error = ReadFast(builder.Finish(0).data() + sizeof(Preamble));
  if (insert.id != 0x1122'3344'5566'7788 || insert.code != 0 || insert.which != schema::Reply::INSERT ||
      insert.insert_count != 1 || error.code != static_cast<uint16_t>(schema::ErrorCode::NOT_FOUND) ||
      error.which != schema::Reply::NONE)
    Fail("the fast reply reader no longer fits protocol.capnp");
}

}  // namespace replay::bench
