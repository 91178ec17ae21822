#pragma once
// Store: where the bytes of a buffer's items live. Buffer decides what exists; Store only keeps.
//
// Items are addressed by the buffer's slot numbers. This is the memory tier: every frame is held by reference and is there at
// once. A tier that can be slow answers Find with an empty frame, and the caller loads it off its thread.
//
// Belongs to the thread of its buffer.

#include <cstdint>
#include <utility>

#include "schema/message.h"
#include "storage/segmented_array.h"

namespace replay {

// What an insert survives once it is acknowledged; same numbers as schema::AcknowledgementLevel.
enum class AcknowledgementLevel : uint8_t { kMemory, kProcess, kDisk };

class Store {
 public:
  // What Put of this store has reached when it returns.
  AcknowledgementLevel level() const { return AcknowledgementLevel::kMemory; }
  void Put(uint32_t slot, Frame frame) {
    frames_.Reserve(uint64_t{slot} + 1);
    frame_bytes_ += frame.size() - frames_[slot].size();
    frames_[slot] = std::move(frame);
  }
  const Frame& Find(uint32_t slot) const { return frames_[slot]; }
  void Prefetch(uint32_t slot) const { __builtin_prefetch(&frames_[slot]); }
  void Remove(uint32_t slot) {
    frame_bytes_ -= frames_[slot].size();
    frames_[slot] = Frame();
  }
  uint64_t frame_bytes() const { return frame_bytes_; }
  uint64_t memory_bytes() const { return frames_.memory_bytes(); }

 private:
  SegmentedArray<Frame, 4096, 1u << 20> frames_;  // by slot
  uint64_t frame_bytes_ = 0;
};

}  // namespace replay
