#pragma once
// A server of a few lines for tests of the client: blocking sockets, a thread for each connection, and a script that decides
// what is answered, cut off or held back. Tests say what arrives and what is replied as plain structs.
//
//   FakeServer server([](FakeServer::Request& request) { request.Reply(InsertReply({.count = 1})); });
//   Client client({.address = server.address()});
//
// Hello is answered by itself (with `generation`), unless a script for it is set. The script runs on the connection's thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "replay/client.h"
#include "schema/message.h"

namespace replay::testing {

class FakeServer {
 public:
  class Request {
   public:
    std::string verb;  // "hello", "insert", …
    uint64_t id = 0;
    uint32_t timeout_ms = 0;
    int connection = 0;  // 1, 2, 3 … in the order they were accepted
    std::string buffer;
    // Insert.
    uint64_t writer = 0, sequence = 0, acknowledged_through = 0;
    std::vector<std::string> ids;  // of its trajectories
    // Sample.
    int64_t step = 0;
    uint32_t count = 0, given_back = 0;
    // CreateBuffer, AlterBuffer: "capacity_items=5 retention=positive_bias …", and the named fields.
    std::string options;
    std::vector<std::string> fields;

    // Everything the peer gets is bytes: Send may send half a reply, or none.
    void Send(std::span<const uint8_t> bytes);
    void Send(const std::vector<uint8_t>& bytes) { Send(std::span<const uint8_t>(bytes)); }
    void Close() { closed_ = true; }  // once the script returns

   private:
    friend class FakeServer;
    int fd_ = -1;
    bool closed_ = false;
  };
  using Script = std::function<void(Request&)>;

  explicit FakeServer(Script script, uint64_t generation = 1);
  ~FakeServer();
  // Another life on the same address: connections are cut, and Hello says `generation` from now on.
  void Restart(uint64_t generation);
  // Refuses connections until Restart.
  void GoAway();
  void SetMaxPayload(uint64_t bytes) { max_payload_bytes_ = bytes; }
  void SetHello(Script script);  // before the first connection

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int connections() const { return accepted_; }

 private:
  void Listen();
  void Accept(int listener);
  void Serve(int fd, int connection);
  void CutConnections();

  Script script_, hello_;
  std::atomic<uint64_t> generation_, max_payload_bytes_{0};
  std::atomic<int> accepted_{0};
  uint16_t port_ = 0;
  std::atomic<int> listener_{-1};
  std::thread accepter_;
  std::mutex mutex_;
  std::list<std::thread> threads_;
  std::vector<int> open_fds_;
};

// --- Replies as bytes --------------------------------------------------------------------------------------------------------------
std::vector<uint8_t> OkReply(uint64_t id);
std::vector<uint8_t> ErrorReply(uint64_t id, ErrorCode code, const std::string& message, WaitReason reason = WaitReason::kNone);
std::vector<uint8_t> HelloReply(uint64_t id, uint64_t generation, uint32_t version = kProtocolVersion,
                                uint64_t max_payload_bytes = 0);
std::vector<uint8_t> InsertReply(uint64_t id, const InsertReceipt& receipt);
// One draw of each frame. `frame_bytes`: what is said about their sizes, when it shall differ from the truth.
std::vector<uint8_t> SampleReply(uint64_t id, int64_t step, const std::vector<Frame>& frames,
                                 std::vector<uint32_t> frame_bytes = {}, const std::vector<uint64_t>& candidates = {});
std::vector<uint8_t> GetReply(uint64_t id, const std::vector<Frame>& frames, size_t item_count);
std::vector<uint8_t> VersionReply(uint64_t id, const PolicyVersion& version);

// A small valid trajectory, and its frame.
Trajectory SmallTrajectory(const std::string& id);
Frame SmallFrame(const std::string& id);

}  // namespace replay::testing
