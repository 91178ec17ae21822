#include "schema/message.h"

#include <xxhash.h>
#ifdef REPLAY_XXHASH_DISPATCH
#include <immintrin.h>
#include <xxh_x86dispatch.h>  // XXH3_64bits then chooses AVX2 or AVX-512 at run time: a third of the instructions of SSE2
#endif

#include <cstdlib>
#include <new>
#include <random>
#include <stdexcept>

#include "schema/huge_heap.h"

namespace replay {

namespace {

capnp::ReaderOptions LimitsFor(uint64_t words, uint64_t passes) {
  capnp::ReaderOptions options;
  // Every byte may be looked at `passes` times, and a small message may have some overhead.
  options.traversalLimitInWords = passes * (words + 256);
  options.nestingLimit = kCapnpNestingLimit;
  return options;
}

kj::ArrayPtr<const capnp::word> Words(const void* data, uint64_t count) {
  return kj::arrayPtr(static_cast<const capnp::word*>(data), count);
}

std::atomic<uint64_t>& Secret() {
  static std::atomic<uint64_t> secret = [] {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) | device();
  }();
  return secret;
}

// By their places.
std::atomic<MemoryBudget*> budgets[MemoryBudget::kMost + 1];

uint16_t PlaceOf(MemoryBudget* budget) {
  for (uint16_t place = 1; place <= MemoryBudget::kMost; ++place) {
    MemoryBudget* nobody = nullptr;
    if (budgets[place].compare_exchange_strong(nobody, budget)) return place;
  }
  throw std::length_error("more than " + std::to_string(MemoryBudget::kMost) + " memory budgets");
}

}  // namespace

MemoryBudget::MemoryBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes), place_(PlaceOf(this)) {}
MemoryBudget::~MemoryBudget() { budgets[place_] = nullptr; }

Frame Frame::Allocate(uint64_t size, MemoryBudget* budget) {
  void* memory = std::malloc(sizeof(Block) + size);
  if (memory == nullptr) throw std::bad_alloc();
  NoteBlock(memory);
  Frame frame;
  frame.block_ =
      new (memory) Block{.owners = 1, .size = static_cast<uint32_t>(size), .budget = budget ? budget->place_ : uint16_t{0}};
  return frame;
}

Frame Frame::CopyOf(std::span<const uint8_t> bytes) {
  Frame frame = Allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(frame.mutable_data(), bytes.data(), bytes.size());
  return frame;
}

Frame Frame::Absent(uint64_t size, uint64_t number, std::string_view note) {
  const auto note_bytes = static_cast<uint32_t>(note.size());
  Frame frame = Allocate(note.empty() ? 0 : sizeof note_bytes + note.size());
  if (!note.empty()) {
    std::memcpy(frame.mutable_data(), &note_bytes, sizeof note_bytes);
    std::memcpy(frame.mutable_data() + sizeof note_bytes, note.data(), note.size());
  }
  frame.block_->budget = static_cast<uint16_t>(kIsAbsent | (note.empty() ? 0 : 1));
  frame.block_->size = static_cast<uint32_t>(size);
  frame.SetNumber(number);
  return frame;
}

std::string_view Frame::note() const {
  if (block_->budget == kIsAbsent) return {};
  uint32_t bytes = 0;
  std::memcpy(&bytes, data(), sizeof bytes);
  return {reinterpret_cast<const char*>(data()) + sizeof bytes, bytes};
}

void Frame::Free(Block* block) {
  if (block->budget && !(block->budget & kIsAbsent))
    budgets[block->budget].load(std::memory_order_relaxed)->Release(block->size);
  std::free(block);
}

#ifdef REPLAY_XXHASH_DISPATCH
namespace {

// Version 0.8.1 of the library returns with the upper halves of the vector registers in use. The SSE code that follows then
// waits for them (a tenth of an insert of 4 KB), and each switch of threads saves and restores them.
[[gnu::target("avx")]] void ClearUpperHalves() { _mm256_zeroupper(); }
const bool has_upper_halves = __builtin_cpu_supports("avx");

}  // namespace

uint64_t Checksum(std::span<const uint8_t> bytes) {
  const uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  if (has_upper_halves) ClearUpperHalves();
  return sum;
}
#else
uint64_t Checksum(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
#endif

void SealFrame(std::span<uint8_t> frame) {
  const uint64_t sum = Checksum(frame.first(frame.size() - kChecksumBytes));
  std::memcpy(frame.data() + frame.size() - kChecksumBytes, &sum, sizeof sum);
}

bool FrameChecksumMatches(std::span<const uint8_t> frame) {
  uint64_t stored;
  std::memcpy(&stored, frame.data() + frame.size() - kChecksumBytes, sizeof stored);
  return stored == Checksum(frame.first(frame.size() - kChecksumBytes));
}

std::string CheckFrameShape(std::span<const uint8_t> frame) {
  if (HasFrameShape(frame)) return "";
  if (frame.size() < kMinFrameBytes)
    return "frame has " + std::to_string(frame.size()) + " bytes, fewer than " + std::to_string(kMinFrameBytes);
  if (frame.size() > kMaxFrameBytes)
    return "frame has " + std::to_string(frame.size()) + " bytes, more than " + std::to_string(kMaxFrameBytes);
  if (frame.size() % 8 != 0) return "frame has " + std::to_string(frame.size()) + " bytes, not a multiple of 8";
  uint32_t table[2];
  std::memcpy(table, frame.data(), sizeof table);
  if (table[0] != 0) return "frame has " + std::to_string(uint64_t{table[0]} + 1) + " segments: it must have one";
  const uint64_t words = (frame.size() - kFrameTableBytes - kChecksumBytes) / 8;
  return "frame says its segment has " + std::to_string(table[1]) + " words, its size says " + std::to_string(words);
}

void SetIdSecret(uint64_t secret) { Secret() = secret; }
uint64_t IdSecret() { return Secret().load(std::memory_order_relaxed); }

Key128 HashId(std::string_view id) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(id.data(), id.size(), IdSecret());
  return {hash.low64, hash.high64};
}

std::string CheckPreamble(const Preamble& preamble, uint64_t max_control_bytes, uint64_t max_payload_bytes) {
  if (IsPreamble(preamble, max_control_bytes, max_payload_bytes)) return "";
  if (preamble.magic != Preamble::kMagic) return "magic is not \"RPLY\": this is not the replay protocol";
  if (preamble.version != kProtocolVersion)
    return "protocol version " + std::to_string(preamble.version) + " is not supported, only " +
           std::to_string(kProtocolVersion);
  if (preamble.flags != 0) return "flags is " + std::to_string(preamble.flags) + ": it must be 0";
  if (preamble.reserved != 0) return "reserved is " + std::to_string(preamble.reserved) + ": it must be 0";
  if (preamble.control_words == 0) return "control_words is 0: a message has a control part";
  if (preamble.control_words * uint64_t{8} > max_control_bytes)
    return "control_words is " + std::to_string(preamble.control_words) + ": at most " + std::to_string(max_control_bytes / 8) +
           " are allowed here";
  if (preamble.payload_bytes > max_payload_bytes)
    return "payload_bytes is " + std::to_string(preamble.payload_bytes) + ": at most " + std::to_string(max_payload_bytes) +
           " are allowed";
  return "payload_bytes is " + std::to_string(preamble.payload_bytes) + ": it must be a multiple of 8";
}

FrameReader::FrameReader(std::span<const uint8_t> frame, uint32_t passes)
    : segments_{Words(frame.data() + kFrameTableBytes, (frame.size() - kFrameTableBytes - kChecksumBytes) / 8)},
      reader_(kj::arrayPtr(segments_, 1), LimitsFor(segments_[0].size(), passes)) {}

ControlReader::ControlReader(const void* words, uint32_t word_count)
    : segments_{Words(words, word_count)}, reader_(kj::arrayPtr(segments_, 1), LimitsFor(word_count, kReadPasses)) {}

ControlBuilder::ControlBuilder(uint32_t initial_words)
    : storage_(new uint64_t[kPreambleWords + initial_words]()), capacity_words_(initial_words) {}

void ControlBuilder::Begin(uint32_t words) {
  builder_.reset();
  if (words > capacity_words_) {
    capacity_words_ = words;
    storage_.reset(new uint64_t[kPreambleWords + capacity_words_]());
  } else {
    std::memset(storage_.get(), 0, (kPreambleWords + used_words_) * sizeof(uint64_t));
  }
  used_words_ = words;  // Until Finish says how many, in case it is never called.
  builder_.emplace(kj::arrayPtr(reinterpret_cast<capnp::word*>(storage_.get() + kPreambleWords), words));
}

std::span<const uint8_t> ControlBuilder::Finish(uint64_t payload_bytes) {
  used_words_ = static_cast<uint32_t>(builder_->getSegmentsForOutput()[0].size());
  Preamble preamble;
  preamble.control_words = used_words_;
  preamble.payload_bytes = payload_bytes;
  std::memcpy(storage_.get(), &preamble, sizeof preamble);
  return {reinterpret_cast<const uint8_t*>(storage_.get()), (kPreambleWords + used_words_) * sizeof(uint64_t)};
}

}  // namespace replay
