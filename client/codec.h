#pragma once
// Control messages from and to plain structs, so that nothing behind this file sees Cap'n Proto.
//
//   Encode…: the arguments of a call → preamble and control message of its Request, ready to send
//   Decode…: a Reply as it was received → the value of the call, or the Error that it carries
//
// Bytes that do not mean a reply to the call are kProtocolViolation. Nothing here throws. Any thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/column.h"
#include "replay/client.h"
#include "schema/message.h"

namespace replay {

// A reply as it came: the control message, and its payload frame by frame with checksums compared.
struct ReceivedReply {
  std::vector<uint64_t> control;
  std::vector<Frame> frames;
  std::vector<Frame> columns;
};

struct RequestHead {
  uint64_t id = 0;
  uint32_t timeout_ms = 0;  // how long the server may wait; 0: now
};

// --- Requests ------------------------------------------------------------------------------------------------------------------
// A result without a frame is impossible; an Error (kInvalidArgument) names the argument, the value and the rule.
Frame EncodeHello(const RequestHead& head, std::string_view client_name);
Frame EncodePing(const RequestHead& head);
Result<Frame> EncodeCreateBuffer(const RequestHead& head, std::string_view name, const BufferOptions& options);
Result<Frame> EncodeAlterBuffer(const RequestHead& head, std::string_view name, const BufferOptions& options);
Frame EncodeDropBuffer(const RequestHead& head, std::string_view name);
Frame EncodeSample(const RequestHead& head, std::string_view buffer, const SampleOptions& options);
Result<Frame> EncodeGet(const RequestHead& head, std::string_view buffer, std::span<const std::string> ids,
                        std::span<const std::string> columns = {});
Frame EncodeScan(const RequestHead& head, std::string_view buffer, uint64_t after, uint32_t limit,
                 std::span<const std::string> columns = {});
Result<Frame> EncodeDelete(const RequestHead& head, std::string_view buffer, std::span<const std::string> ids);
struct EncodedUpdate {
  Frame control;
  std::vector<Frame> columns;  // the payload
};
Result<EncodedUpdate> EncodeUpdate(const RequestHead& head, std::string_view buffer, std::span<const ItemUpdate> updates);
Result<Frame> EncodeHistory(const RequestHead& head, std::string_view buffer, std::string_view source, int64_t after,
                            uint32_t limit);
Result<Frame> EncodePublishVersion(const RequestHead& head, const PolicyVersion& version);
Frame EncodeWaitVersion(const RequestHead& head, std::string_view run_id, uint64_t epoch, std::optional<int64_t> version);
Frame EncodeReportCost(const RequestHead& head, std::string_view buffer, const Cost& cost);
Frame EncodeStats(const RequestHead& head, std::string_view buffer);
Frame EncodeWaiters(const RequestHead& head, std::string_view buffer);
Frame EncodeVersions(const RequestHead& head, std::string_view run_id);
Frame EncodeAcknowledge(const RequestHead& head, std::string_view buffer, uint64_t lease, std::span<const uint64_t> items,
                        bool give_back);
enum class ReserveAction : uint8_t { kReserve, kCommit, kDrop };  // same order as the protocol's
Result<Frame> EncodeReserveGroup(const RequestHead& head, std::string_view buffer, const Reservation& reservation,
                                 ReserveAction action);
Frame EncodeAdmit(const RequestHead& head, std::string_view buffer, const AdmissionRequest& admission);

// "" or why it is none.
std::string CheckLevel(std::string_view level);
struct InsertHead {
  std::string_view buffer;
  Key128 writer;  // zero: the server keeps no receipt
  uint64_t sequence = 0;
  uint64_t acknowledged_through = 0;
  bool partial = false;
  std::string_view level{};  // "": the buffer's; else one of kLevelNames
};
// Valid until the builder's next message: a Writer encodes many.
std::span<const uint8_t> EncodeInsert(ControlBuilder& builder, const RequestHead& head, const InsertHead& insert,
                                      std::span<const Frame> frames, std::span<const EncodedColumn> columns = {});

// --- Replies -------------------------------------------------------------------------------------------------------------------
// What a receiver must know before it reads the payload.
struct ReplyHead {
  uint64_t id = 0;
  std::vector<uint32_t> frame_bytes;
  std::vector<uint32_t> column_bytes;
  bool holds = false;          // What was drawn is held as long as the connection lives.
  std::optional<Error> error;  // of the server
};
Result<Done> DecodeHead(std::span<const uint64_t> control, ReplyHead* head);

struct ServerHello {
  std::string version;
  uint64_t generation = 0;
  uint64_t max_payload_bytes = kMaxRequestPayloadBytes;  // of a request; a server may take less than the protocol allows
};
Result<ServerHello> DecodeHello(const ReceivedReply& reply);
Result<Done> DecodeDone(const ReceivedReply& reply);
Result<InsertReceipt> DecodeInsert(const ReceivedReply& reply);
Result<Batch> DecodeSample(const ReceivedReply& reply);
Result<std::vector<StoredTrajectory>> DecodeGet(const ReceivedReply& reply);
Result<uint32_t> DecodeDelete(const ReceivedReply& reply);
Result<std::vector<UpdateResult>> DecodeUpdate(const ReceivedReply& reply);
Result<uint32_t> DecodeAcknowledge(const ReceivedReply& reply);
Result<ReservedGroup> DecodeReserveGroup(const ReceivedReply& reply);
Result<Admission> DecodeAdmit(const ReceivedReply& reply);
Result<HistoryPage> DecodeHistory(const ReceivedReply& reply);
Result<PolicyVersion> DecodeVersion(const ReceivedReply& reply);
Result<std::vector<PolicyVersion>> DecodeVersions(const ReceivedReply& reply);
Result<ServerStats> DecodeStats(const ReceivedReply& reply);
Result<std::vector<WaiterInfo>> DecodeWaiters(const ReceivedReply& reply);

}  // namespace replay
