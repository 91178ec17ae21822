#pragma once
// Control messages to plain structs and back: the one place of the server that reads and builds the protocol's messages.
//
// A Request is reused message after message, so that steady traffic allocates nothing. Replies are built in one segment and
// appended to the connection's output queue.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/message.h"
#include "schema/wire.h"
#include "server/buffer.h"
#include "server/policy_versions.h"
#include "server/verdict.h"

namespace replay::server {

enum class Verb : uint8_t {  // Same order as the protocol's.
  kHello,
  kCreateBuffer,
  kAlterBuffer,
  kDropBuffer,
  kInsert,
  kSample,
  kGet,
  kDelete,
  kPublishVersion,
  kWaitVersion,
  kReportCost,
  kStats,
  kWaiters,
  kVersions,
  kPing,
  kUpdate,
  kReserveGroup,
  kAdmit,
  kAcknowledge,
  kHistory,
  kCount
};
std::string_view ToString(Verb verb);  // "Insert": the one spelling, also in metrics

// The size of a column frame in the payload.
struct ColumnSize {
  uint32_t frame = 0;  // index of its core frame, or of its update
  uint32_t bytes = 0;
};

struct Request {
  uint64_t id = 0;
  uint32_t timeout_ms = 0;
  Verb verb = Verb::kPing;
  std::string buffer;  // of the verbs that have one

  // Insert
  Key128 writer;
  uint64_t sequence = 0;
  uint64_t acknowledged_through = 0;
  std::vector<uint32_t> frame_bytes;
  bool partial = false;
  std::optional<AcknowledgementLevel> level = {};
  std::vector<ColumnSize> columns;  // Update too; their `frame` does not fall
  // Sample
  SampleRequest sample;
  // Get, Delete
  std::vector<std::string> ids;
  std::vector<ItemUpdate> updates;  // Update; their columns are still to be read
  uint64_t after_item = 0;
  uint32_t limit = 0;
  std::vector<std::string> column_names;
  ReserveRequest reserve;          // ReserveGroup
  AdmitRequest admit;              // Admit
  AcknowledgeRequest acknowledge;  // Acknowledge
  // History; and limit
  std::string source;
  int64_t after_index = -1;
  // Hello
  uint32_t protocol_version = 0;
  std::string client_name;
  // CreateBuffer, AlterBuffer
  BufferOptions options;
  std::vector<std::string> option_names;
  // PublishVersion (all of it); WaitVersion and Versions (run_id, epoch, version)
  PolicyVersion version;
  bool has_version = false;
  CostReport cost;
};

// Kinds of failure: a message that cannot be read ends the conversation, one that asks for nonsense is answered.
struct DecodeFailure {
  bool ends_conversation = false;
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
};
// Fills `request` from a control message of `words` words at `data` (8-aligned).
std::optional<DecodeFailure> DecodeRequest(const void* data, uint32_t words, Request* request);

struct WaiterInfo {
  std::string buffer;
  Verb verb = Verb::kSample;
  WaitReason reason = WaitReason::kNone;
  std::string detail;
  uint64_t waited_ms = 0;
  uint64_t remaining_ms = 0;
  std::string peer;
};

struct HelloInfo {
  uint64_t generation = 0;
  uint64_t max_payload_bytes = 0;
};

struct ServerStats {
  uint64_t generation = 0;
  double uptime_seconds = 0;
  uint64_t connections = 0;
  uint64_t waiting_versions = 0;
  uint64_t accepted_connections = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t memory_limit_bytes = 0;
  // Not for the protocol. Frames that were read from disk, their bytes, and those that were not there or not what they were.
  uint64_t spill_reads = 0, spill_read_bytes = 0, spill_read_errors = 0;
  bool keeps_data = false, storage_full = false, storage_failed = false;
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
  std::vector<uint64_t> requests;  // by Verb
  std::vector<uint64_t> errors;    // by ErrorCode
  std::vector<BufferStats> buffers;
};

class ReplyEncoder {
 public:
  // `frames` of a reply follow it as payload.
  void Done(uint64_t id, OutputQueue& output);
  void Failure(uint64_t id, ErrorCode code, WaitReason reason, std::string_view message, OutputQueue& output);
  void Hello(uint64_t id, const HelloInfo& info, OutputQueue& output);
  void Insert(uint64_t id, const InsertResult& result, OutputQueue& output);
  void Sample(uint64_t id, SampleResult& result, OutputQueue& output);  // moves the frames out
  void Get(uint64_t id, std::vector<StoredItem>& items, std::span<const uint32_t> found, bool more, OutputQueue& output);
  void Delete(uint64_t id, uint32_t deleted, OutputQueue& output);
  void Reserve(uint64_t id, const ReserveResult& result, OutputQueue& output);
  void Admit(uint64_t id, const AdmitResult& result, OutputQueue& output);
  void Acknowledge(uint64_t id, uint32_t count, OutputQueue& output);
  void Update(uint64_t id, std::span<const UpdateOutcome> outcomes, std::span<const uint32_t> revisions, OutputQueue& output);
  void History(uint64_t id, std::span<const PromptOutcomes> prompts, bool more, OutputQueue& output);
  void Version(uint64_t id, const PolicyVersion& version, OutputQueue& output);
  void Versions(uint64_t id, std::span<const PolicyVersion> versions, OutputQueue& output);
  void Stats(uint64_t id, const ServerStats& stats, OutputQueue& output);
  void Waiters(uint64_t id, std::span<const WaiterInfo> waiters, OutputQueue& output);

 private:
  struct InsertTemplate {
    InsertTemplate();
    std::vector<uint8_t> bytes;
    size_t id, first_item, live, count;  // offsets
  };
  ControlBuilder builder_;
  InsertTemplate insert_template_;
};

}  // namespace replay::server
