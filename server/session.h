#pragma once
// Session: one connection, one ordered conversation. Requests may be sent ahead; replies come in their order.
//
//   loop:  take the next message from the input buffer (flush replies and wait for more if it is not all there)
//          decode, let the service decide (at once, or wait), append the reply
//          after 64 requests or 4 MB: flush, and let other sessions of the thread run
//
// Lives on one I/O thread from accept to close. What ends a conversation is a ProtocolError, caught in Run alone.

#include <chrono>
#include <list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "schema/column.h"
#include "schema/input_buffer.h"
#include "schema/validate.h"
#include "schema/wire.h"
#include "server/codec.h"
#include "server/io_thread.h"
#include "server/replay_service.h"

namespace replay::server {

// The peer broke the protocol; it gets one last reply that says how.
struct ProtocolError : std::runtime_error {
  ProtocolError(ErrorCode error_code, const std::string& what, uint64_t request_id = 0)
      : std::runtime_error(what), code(error_code), id(request_id) {}
  ErrorCode code;
  uint64_t id;
};

class Session {
 public:
  // The connection has been counted in service.connections; the session takes it off at its end.
  Session(IoThread& thread, ReplayService& service, Socket socket, std::string peer);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The whole life of a connection; the session is gone afterwards.
  static Awaitable<void> Run(std::unique_ptr<Session> session);

  // Ends the connection from outside: what waits on the socket returns.
  void Shutdown();
  // True if the peer has held this connection up for longer than the configuration allows; `why` says how.
  bool IsStuck(std::chrono::steady_clock::time_point now, const char** why) const;
  const std::string& peer() const { return peer_; }

 private:
  // Replies go out after this much payload taken in, so that a writer with a window refills it while the rest is being read.
  static constexpr uint64_t kBytesPerSend = 256u << 10;
  static constexpr size_t kKeptScratchBytes = 12u << 10;  // of each kind while a connection is idle: 256 draws take 10 KB

  // What the synchronous part of a request leaves to be done.
  enum class Rest : uint8_t { kNothing, kReadPayload, kInsert, kRejected, kSample, kFetch, kOther };

  Awaitable<void> Converse();
  // The control words of the next message, in place in the input buffer; null if it is not all there.
  const uint8_t* NextMessage();
  // Sends and receives what goes without waiting; kNothing: WaitForInput is next.
  Received FillNow();
  bool SendNow();
  Awaitable<bool> WaitForInput();
  Awaitable<bool> Flush();
  Awaitable<void> EndTurn();
  // Between two messages: gives back what large ones have left behind.
  void ReleaseScratch();

  // Decodes and, if nothing has to be waited for, decides and replies. The hot path: no coroutine is entered.
  Rest Handle(const uint8_t* control);
  Awaitable<void> Finish(Rest rest);
  void HandleHello();

  Rest StartInsert();
  Rest TakePayloadNow();
  bool FrameSizesFit() const;
  std::string WhyFrameSizesDoNotFit() const;
  void AllocateFrames();
  void DropFrames();
  Awaitable<bool> ReadPayload();
  Awaitable<void> DiscardPayload();
  // Fills insert_.request but for the frames. False: a reply that says what is wrong has been made.
  bool ValidatePayload();
  Awaitable<void> FinishInsert(bool payload_taken);
  Awaitable<void> CountRejected();
  void ReplyToInsert();

  uint64_t ColumnBytes() const;
  void AllocateColumns();
  // False: a reply that says what is wrong has been made; of the others too.
  bool ReadColumns(std::vector<FrameColumn>* parsed);
  bool ValidateColumns();
  bool DealColumns();
  Awaitable<bool> TakeColumns();
  Awaitable<bool> ReservePayload();

  void ReplyToSample();
  Awaitable<void> FinishOther();
  Awaitable<void> FinishWithBuffer(std::shared_ptr<BufferHost> host);

  // host_ becomes the buffer of this name, or null; the session is counted once as producer or consumer of it.
  void FindHost(const std::string& name, bool produces);
  // What has been decided in a buffer that is kept: replies go out once that survives.
  void HoldReplies(const std::shared_ptr<BufferHost>& host, AcknowledgementLevel level = AcknowledgementLevel::kDisk);
  bool MayReply();
  void Reply(const Verdict& verdict);
  void Fail(ErrorCode code, WaitReason reason, std::string_view message);
  Caller AsCaller();
  void CountReceived();
  // Before a wait that is not for the socket: sends what is pending, gives memory back.
  Awaitable<void> PrepareToWait();

  IoThread& thread_;
  ReplayService& service_;
  Socket socket_;
  const std::string peer_;
  std::string label_;  // peer and the client's name, for waiters and the log
  InputBuffer input_;
  OutputQueue output_;
  struct Gate {
    std::shared_ptr<BufferHost> host;
    AcknowledgementLevel level;
    uint64_t record = 0;
  };
  std::vector<Gate> gates_;  // what the replies in output_ wait for
  bool ended_ = false;       // They will never be true.
  std::list<Session*>::iterator place_;

  // Of the message being handled.
  Preamble preamble_;
  Request request_;
  std::shared_ptr<BufferHost> host_;
  std::chrono::steady_clock::time_point last_fill_;
  std::chrono::steady_clock::time_point received_at_;  // its first byte
  std::vector<std::span<const uint8_t>> payload_;      // each frame's bytes: in the input buffer, or in frames_
  std::vector<Frame> frames_;
  std::vector<ColumnOf> columns_;  // likewise; empty for most requests
  std::vector<std::span<const uint8_t>> column_payload_;
  std::vector<TrajectoryFacts> facts_;
  GroupScratch group_scratch_;
  LastRun last_run_;
  InsertCall insert_;
  SampleCall sample_;

  int requests_in_turn_ = 0;
  uint64_t bytes_in_turn_ = 0;
  uint64_t bytes_since_send_ = 0;  // of payload taken in since replies were last sent
  uint64_t received_bytes_ = 0;    // of input_, as counted so far
  bool said_hello_ = false;

  // Which buffers this connection has inserted into or sampled from.
  struct Use {
    std::shared_ptr<BufferHost> host;
    bool produces = false;
    bool consumes = false;
  };
  std::vector<Use> uses_;
  // Most connections use one buffer: its entry serves again while the request names it and the directory is the same.
  size_t last_use_ = SIZE_MAX;
  std::shared_ptr<const Directory> directory_;

  const uint64_t number_;  // of this daemon's connections, from 1: what leases know it by

  // For IsStuck.
  const std::chrono::steady_clock::time_point connected_at_;
  std::chrono::steady_clock::time_point reading_since_{};  // in the middle of a message
  std::chrono::steady_clock::time_point blocked_on_write_since_{};
};

}  // namespace replay::server
