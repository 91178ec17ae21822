#pragma once
// A blocking socket that speaks the wire protocol with pre-built bytes, and the little that is read of each reply.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schema/message.h"
#include "tests/bench/requests.h"

namespace replay::bench {

enum class Transport { kUnix, kTcp };
std::string ToString(Transport transport);  // "unix"

// Where a server listens.
struct Endpoint {
  std::string unix_path;
  uint16_t tcp_port = 0;  // on 127.0.0.1; 0: none
};
uint16_t FreePort();

// A connected file descriptor.
class Stream {
 public:
  Stream() = default;
  explicit Stream(int fd) : fd_(fd) {}
  // Waits up to 10 s for somebody to listen.
  static Stream Connect(const Endpoint& endpoint, Transport transport);
  Stream(Stream&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Stream();

  int fd() const { return fd_; }
  void Send(std::span<const uint8_t> bytes);
  // At least one byte, as many as there are. Fails when the peer has closed.
  size_t Receive(std::span<uint8_t> into);
  void ReceiveAll(std::span<uint8_t> into);

 private:
  int fd_ = -1;
};

// A reply whose control part is kept.
struct ControlReply {
  std::vector<uint64_t> words;
  uint64_t payload_bytes = 0;
};
// One request and its reply; a payload is received and dropped. Fails unless the reply's code is ok.
ControlReply Call(Stream& stream, std::span<const uint8_t> request);
// Connected, and past Hello.
Stream Greet(const Endpoint& endpoint, Transport transport);

// Size of the first message in `bytes`, once its preamble is complete.
std::optional<uint64_t> MessageBytes(std::span<const uint8_t> bytes);

// The first reply in `bytes`, once its control part is complete; fails unless it says ok, and an Insert reply one trajectory.
// Fields are read at their place in the segment, without the generated reader, so that the client's cost stays near that of
// comparing "+OK"; CheckFastReader proves the places against the generated code.
struct ReplySize {
  uint64_t control_bytes;  // with the preamble
  uint64_t payload_bytes;
};
std::optional<ReplySize> CheckReply(std::span<const uint8_t> bytes);
// Counts the whole replies in `bytes` and returns how many bytes they take.
size_t CountReplies(std::span<const uint8_t> bytes, uint32_t* replies);
size_t CountRedisOk(std::span<const uint8_t> bytes, uint32_t* replies);
void CheckFastReader();
// What the daemon answers to an Insert of one trajectory, for servers that stand in for it.
Bytes CannedInsertReply();

}  // namespace replay::bench
