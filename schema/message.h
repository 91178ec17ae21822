#pragma once
// Bytes that live in memory and on the wire: frames, and the control messages around them.
//
//   frame   = segment table (8 bytes: 0u32, words u32) | one Cap'n Proto segment (8 * words) | XXH3-64 of what stands before (8)
//   message = preamble (24 bytes) | control (one Cap'n Proto segment without a table) | payload (frames back to back)
//
// A Frame is immutable once sealed and may cross threads; everything else here belongs to one thread.

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "schema/limits.h"

namespace replay {

inline constexpr uint64_t kFrameTableBytes = 8;
inline constexpr uint64_t kChecksumBytes = 8;
inline constexpr uint64_t kMinFrameBytes = kFrameTableBytes + 8 + kChecksumBytes;

// Bytes held by all blocks that were charged to it, however they are shared. Reserved before a payload is read, so that the
// budget holds before the bytes exist. Any thread.
class MemoryBudget {
 public:
  static constexpr uint32_t kMost = 1024;  // at a time, in a process

  explicit MemoryBudget(int64_t limit_bytes);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
  bool TryReserve(int64_t bytes) {
    if (used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_bytes_) return true;
    used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void Release(int64_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  friend class Frame;
  const int64_t limit_bytes_;
  const uint16_t place_;  // of all budgets, from 1: what blocks know it by
  std::atomic<int64_t> used_bytes_{0};
};

// A shared block of bytes with its count in front of it: one allocation, 16 bytes of header, body 16-aligned. (A shared_ptr
// would cost a second allocation or 24 more bytes for each of millions of items.)
//
// One whose bytes are on disk only is *absent*: it has its size and its number, and instead of the bytes what its owner noted of
// them, so that it can be asked for like any other until somebody needs the bytes.
class Frame {
 public:
  Frame() = default;
  // `budget`, if any, must already hold a reservation of `size` bytes; the block gives it back when its last owner goes.
  static Frame Allocate(uint64_t size, MemoryBudget* budget = nullptr);
  static Frame CopyOf(std::span<const uint8_t> bytes);
  static Frame Absent(uint64_t size, uint64_t number, std::string_view note = {});

  Frame(const Frame& other) noexcept : block_(other.block_) {
    if (block_) block_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  Frame(Frame&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Frame& operator=(Frame other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Frame() {
    if (block_ && block_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) Free(block_);
  }

  explicit operator bool() const { return block_ != nullptr; }
  bool is_absent() const { return block_ && (block_->budget & kIsAbsent); }
  uint64_t size() const { return block_ ? block_->size : 0; }
  // Not of one that is absent; `note` only of such.
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(block_ + 1); }
  std::span<const uint8_t> bytes() const { return {data(), size()}; }
  uint8_t* mutable_data() { return reinterpret_cast<uint8_t*>(block_ + 1); }  // Only while there is one owner.

  std::string_view note() const;

  // What it is known by where frames are kept; 0 until it is given one, by its only owner.
  uint64_t number() const { return uint64_t{block_->number_high} << 32 | block_->number_low; }
  void SetNumber(uint64_t number) const {
    block_->number_low = static_cast<uint32_t>(number);
    block_->number_high = static_cast<uint16_t>(number >> 32);
  }
  static constexpr uint64_t kMaxNumber = (uint64_t{1} << 48) - 1;  // nine years of a million a second

  // Fetches the header, with the size and the owners, for whoever takes or ends a reference soon.
  void Prefetch() const { __builtin_prefetch(block_, 1); }

  // What one frame of `size` bytes costs in memory beyond its bytes: our header and the allocator's.
  static constexpr uint64_t kOverheadBytes = 16 + 16;

 private:
  struct alignas(16) Block {
    std::atomic<uint32_t> owners;
    uint32_t size;  // kMaxFrameBytes fits
    uint32_t number_low = 0;
    uint16_t number_high = 0;
    uint16_t budget;  // its place, 0: none; or kIsAbsent, with 1 if there is a note: u32 bytes of it, and these
  };
  static constexpr uint16_t kIsAbsent = 1u << 15;  // in `budget`
  static void Free(Block* block);
  Block* block_ = nullptr;
};

// XXH3-64.
uint64_t Checksum(std::span<const uint8_t> bytes);
// Writes the checksum into the last 8 bytes of a finished frame.
void SealFrame(std::span<uint8_t> frame);
// True if the last 8 bytes are the checksum of the rest.
bool FrameChecksumMatches(std::span<const uint8_t> frame);
// Whether the frame's outer shape is right: size, alignment, one segment of that size.
inline bool HasFrameShape(std::span<const uint8_t> frame) {
  if (frame.size() < kMinFrameBytes || frame.size() > kMaxFrameBytes || frame.size() % 8 != 0) return false;
  uint32_t table[2];
  std::memcpy(table, frame.data(), sizeof table);
  return table[0] == 0 && table[1] == (frame.size() - kFrameTableBytes - kChecksumBytes) / 8;
}
// Empty, or what is wrong with it.
std::string CheckFrameShape(std::span<const uint8_t> frame);

// --- 128-bit keys ----------------------------------------------------------------------------------------------------------
// XXH3-128 of an id with a secret, by default of this process: ids are compared and stored by it. With 10^9 live ids two
// different ones meet with probability 10^-21.
struct Key128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Key128&) const = default;
};
Key128 HashId(std::string_view id);
// Ids that were hashed by another process, with its secret. Before the first HashId, or all before are void.
void SetIdSecret(uint64_t secret);
uint64_t IdSecret();

// --- Preamble ------------------------------------------------------------------------------------------------------------
struct Preamble {
  uint32_t magic = kMagic;
  uint16_t version = kProtocolVersion;
  uint16_t flags = 0;  // must be 0
  uint32_t control_words = 0;
  uint32_t reserved = 0;  // must be 0
  uint64_t payload_bytes = 0;

  static constexpr uint32_t kMagic = 0x594c5052;  // "RPLY"
};
static_assert(sizeof(Preamble) == 24 && std::is_trivially_copyable_v<Preamble>);
// `max_control_bytes` differs before and after Hello, and for replies.
inline bool IsPreamble(const Preamble& preamble, uint64_t max_control_bytes, uint64_t max_payload_bytes) {
  return preamble.magic == Preamble::kMagic && preamble.version == kProtocolVersion && preamble.flags == 0 &&
         preamble.reserved == 0 && preamble.control_words > 0 && preamble.control_words * uint64_t{8} <= max_control_bytes &&
         preamble.payload_bytes <= max_payload_bytes && preamble.payload_bytes % 8 == 0;
}
// Empty, or the rule that was broken.
std::string CheckPreamble(const Preamble& preamble, uint64_t max_control_bytes, uint64_t max_payload_bytes);

// --- Cap'n Proto -----------------------------------------------------------------------------------------------------------
// How often all of a message may be read by one reader: traversal limit = passes * (words + 256).
inline constexpr uint32_t kReadPasses = 4;

// One use each: the traversal limiter inside is mutable. Throws kj::Exception on hostile bytes, while fields are read.
class FrameReader {
 public:
  // CheckFrameShape must have passed. Validation reads with one pass, so that a frame whose fields share bytes is refused at
  // the door instead of running into the limit of whoever draws it.
  explicit FrameReader(std::span<const uint8_t> frame, uint32_t passes = kReadPasses);
  template <typename T>
  typename T::Reader Root() {
    return reader_.getRoot<T>();
  }

 private:
  kj::ArrayPtr<const capnp::word> segments_[1];
  capnp::SegmentArrayMessageReader reader_;
};

class ControlReader {
 public:
  ControlReader(const void* words, uint32_t word_count);  // 8-aligned
  template <typename T>
  typename T::Reader Root() {
    return reader_.getRoot<T>();
  }

 private:
  kj::ArrayPtr<const capnp::word> segments_[1];
  capnp::SegmentArrayMessageReader reader_;
};

// Builds a control message in one segment: preamble room, then the segment, ready to send. Reused message after message.
class ControlBuilder {
 public:
  explicit ControlBuilder(uint32_t initial_words = 512);
  // A zeroed message that may use up to `words` words; more throws kj::Exception. Ends the previous message.
  template <typename T>
  typename T::Builder Start(uint32_t words) {
    Begin(words);
    return builder_->initRoot<T>();
  }
  // The finished bytes, preamble first. Valid until the next Start.
  std::span<const uint8_t> Finish(uint64_t payload_bytes);

 private:
  static constexpr uint32_t kPreambleWords = sizeof(Preamble) / 8;
  void Begin(uint32_t words);
  std::unique_ptr<uint64_t[]> storage_;  // [3 preamble words + capacity_words_]
  uint32_t capacity_words_;
  uint32_t used_words_ = 0;  // to be zeroed before the next message
  std::optional<capnp::FlatMessageBuilder> builder_;
};

}  // namespace replay
