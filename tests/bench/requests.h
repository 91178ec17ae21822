#pragma once
// The bytes that the load generators send, all built before the clock starts.
//
// A frame here is a real Trajectory (ids, mask, log-probs, one version segment) filled up to an exact size with opaque bytes,
// so that every system stores values of equal size.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "schema/message.h"

namespace replay::bench {

using Bytes = std::vector<uint8_t>;

class FrameTemplate {
 public:
  explicit FrameTemplate(uint32_t bytes);  // a multiple of 8, at least 512
  uint32_t bytes() const { return static_cast<uint32_t>(frame_.size()); }
  // A sealed frame with its own trajectory id.
  void Write(uint64_t id, uint8_t* destination) const;

 private:
  Bytes frame_;
  size_t id_offset_;
};

// Requests back to back, sent round after round. Sent in place: sequence numbers are patched just before.
class RequestRing {
 public:
  struct Run {
    std::span<const uint8_t> bytes;
    uint32_t count;
  };
  RequestRing(uint32_t count, uint32_t request_bytes);
  // The next requests, at most `most`, ending at the ring's end.
  Run Take(uint32_t most);
  void Acknowledge(uint32_t count) { acknowledged_ += count; }

  uint32_t count() const { return count_; }
  std::span<uint8_t> request(uint32_t index) { return {bytes_.get() + uint64_t{index} * request_bytes_, request_bytes_}; }
  // Where in each request the writer's sequence stands; the acknowledged one follows it. Without: nothing is patched.
  void PatchSequenceAt(size_t offset) { sequence_offset_ = offset; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  uint32_t count_;
  uint32_t request_bytes_;
  uint32_t next_ = 0;
  size_t sequence_offset_ = 0;
  uint64_t sequence_ = 0;
  uint64_t acknowledged_ = 0;
};

struct InsertRingOptions {
  std::string buffer;
  uint32_t payload_bytes = 0;
  uint32_t count = 0;
  uint64_t first_id = 0;
  bool receipts = true;  // with a writer id and sequences, as replay::Writer sends them
};
RequestRing MakeInsertRing(const InsertRingOptions& options);
// SET of the same values. Request i has key first_key + i % key_count.
RequestRing MakeRedisSetRing(uint32_t payload_bytes, uint32_t count, uint32_t key_count, uint64_t first_key = 0);
std::string RedisKey(uint64_t index);  // always 10 bytes
Bytes RedisMget(std::span<const uint64_t> keys);

struct BufferSpec {
  std::string name;
  uint64_t capacity_items = 0;
  uint64_t capacity_bytes = 0;
  uint64_t min_size = 1;
};
Bytes HelloRequest();
Bytes PingRequest();
Bytes CreateBufferRequest(const BufferSpec& spec);
Bytes DropBufferRequest(const std::string& name);
Bytes StatsRequest(const std::string& buffer);
Bytes SampleRequest(const std::string& buffer, uint32_t count, uint32_t timeout_ms);
// One trajectory; the caller writes the frame behind the control bytes.
Bytes InsertRequest(const std::string& buffer, uint64_t writer, uint64_t sequence, std::span<const uint32_t> frame_bytes);

}  // namespace replay::bench
