#pragma once
// The protocol by hand: a blocking socket that sends exactly the bytes a test gives it and takes replies apart.
//
//   RawClient client(daemon.address());
//   client.Send(HelloBytes(1));
//   RawReply hello = client.Receive();                        // throws NoReply at the deadline or when the peer closes
//   client.Send(InsertBytes({.buffer = "rollouts"}, {MakeTrajectory()}));
//   EXPECT_EQ(1u, client.Receive().get().getInsert().getCount());
//
// Every wait has a deadline. One thread.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "schema/message.h"
#include "schema/protocol.capnp.h"

namespace replay::test {

using Bytes = std::vector<uint8_t>;
using std::chrono::milliseconds;

// Sanitizers make everything several times slower, and the tests' machines are busy.
inline constexpr milliseconds kReplyDeadline{20'000};

// --- Requests as bytes -------------------------------------------------------------------------------------------------------
Bytes RequestBytes(uint64_t id, uint32_t timeout_ms, const std::function<void(schema::Request::Builder)>& fill,
                   const std::vector<Frame>& payload = {});
Bytes HelloBytes(uint64_t id = 1);
Bytes PingBytes(uint64_t id);

struct InsertArgs {
  uint64_t id = 2;
  std::string buffer = "rollouts";
  uint32_t timeout_ms = 0;
  uint64_t writer = 0;  // 0: no receipts
  uint64_t sequence = 0;
  uint64_t acknowledged_through = 0;
};
Bytes InsertBytes(const InsertArgs& args, const std::vector<Frame>& frames);

struct SampleArgs {
  uint64_t id = 3;
  std::string buffer = "rollouts";
  uint32_t timeout_ms = 0;
  uint32_t count = 1;
  std::optional<int64_t> step = {};
};
Bytes SampleBytes(const SampleArgs& args);
Bytes StatsBytes(uint64_t id, const std::string& buffer = "");
Bytes GetBytes(uint64_t id, const std::string& buffer, const std::vector<std::string>& ids);
Bytes ScanBytes(uint64_t id, const std::string& buffer, uint64_t after, uint32_t limit);
Bytes DeleteBytes(uint64_t id, const std::string& buffer, const std::vector<std::string>& ids);
Bytes DropBytes(uint64_t id, const std::string& buffer);
Bytes PublishBytes(uint64_t id, int64_t version, int64_t step, uint64_t epoch = 0, const std::string& run = "");
Bytes WaitVersionBytes(uint64_t id, uint32_t timeout_ms, std::optional<int64_t> version, uint64_t epoch = 0,
                       const std::string& run = "");
Bytes Concatenate(std::initializer_list<Bytes> parts);

// --- Replies -----------------------------------------------------------------------------------------------------------------
class RawReply {
 public:
  RawReply(Preamble preamble, std::vector<uint64_t> control, Bytes payload);
  schema::Reply::Reader get() const { return reader_->Root<schema::Reply>(); }
  uint64_t id() const { return get().getId(); }
  schema::ErrorCode code() const { return get().getCode(); }
  schema::WaitReason reason() const { return get().getWaitReason(); }
  std::string message() const { return get().getMessage(); }
  bool ok() const { return code() == schema::ErrorCode::OK; }
  // The payload cut up by the sizes the reply lists; throws if they do not add up.
  std::vector<Frame> Frames() const;
  const Bytes& payload() const { return payload_; }
  // "3 ok", "3 timedOut minSize: 0 of 8 items present": for comparing and for failures.
  std::string ToString() const;

 private:
  std::unique_ptr<std::vector<uint64_t>> control_;  // where it is when the reply is moved
  Bytes payload_;
  std::unique_ptr<ControlReader> reader_;
};
std::string CodeName(schema::ErrorCode code);
std::string ReasonName(schema::WaitReason reason);

struct NoReply : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// --- The connection ----------------------------------------------------------------------------------------------------------
class RawClient {
 public:
  // "host:port" or "unix:/path"; throws std::runtime_error if it cannot connect. `hello`: also says hello.
  explicit RawClient(const std::string& address, bool hello = false);
  ~RawClient() { Close(); }
  RawClient(RawClient&& other) noexcept;
  RawClient& operator=(RawClient&& other) noexcept;

  // False: the peer is gone, or takes no more bytes until the deadline.
  bool Send(std::span<const uint8_t> bytes, milliseconds deadline = kReplyDeadline);
  RawReply Receive(milliseconds deadline = kReplyDeadline);
  RawReply Call(const Bytes& request) {
    Send(request);
    return Receive();
  }
  // Reads and drops until the peer closes; false: it did not by the deadline.
  bool WaitClosed(milliseconds deadline = kReplyDeadline);
  // True if bytes or a close can be read by then.
  bool Readable(milliseconds deadline) const;
  void HalfClose();  // no more bytes from us
  void Reset();      // close with RST (TCP)
  void Close();
  int fd() const { return fd_; }

 private:
  void ReadExactly(uint8_t* bytes, size_t count, std::chrono::steady_clock::time_point deadline);
  int fd_ = -1;
};

// --- What tests look at in Stats ---------------------------------------------------------------------------------------------
struct BufferCounts {
  uint64_t items = 0, bytes = 0, offered = 0, accepted = 0, duplicate = 0, rejected = 0, removed = 0, drawn = 0, samples = 0;
  uint64_t waiting_inserts = 0, waiting_samples = 0;
  uint32_t producers = 0, consumers = 0;
  // "" or the invariant that does not hold.
  std::string Violation() const;
};
struct ServerCounts {
  uint64_t connections = 0, accepted = 0, memory_used_bytes = 0, generation = 0;
  uint64_t live_bytes = 0, waiting = 0;  // of all buffers
};
BufferCounts StatsOf(RawClient& client, const std::string& buffer = "rollouts");
ServerCounts ServerStatsOf(RawClient& client);
// Asks until `done` holds of the answer or the deadline passes; returns the last answer.
BufferCounts StatsUntil(RawClient& client, const std::function<bool(const BufferCounts&)>& done,
                        const std::string& buffer = "rollouts", milliseconds deadline = kReplyDeadline);

}  // namespace replay::test
