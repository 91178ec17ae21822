#pragma once
// An array of T that grows a chunk at a time: entries never move (a vector doubles, and copies). From kSlabsFromBytes on chunks
// come from 2 MiB slabs on huge pages, where the system has them: random access to millions of entries waits for page walks as
// long as for the entries themselves (a third of the time of a draw at 10^6 items). Slack: a chunk, then a slab, which by
// default is an eighth at most.
// Memory follows the high-water mark. Access and growth O(1). One thread.

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "schema/huge_heap.h"

namespace replay {

template <typename T, uint32_t kPerChunk, uint64_t kSlabsFromBytes = 16u << 20>
class SegmentedArray {
  static_assert((kPerChunk & (kPerChunk - 1)) == 0, "the index is split by shift and mask");

 public:
  SegmentedArray() = default;
  SegmentedArray(const SegmentedArray&) = delete;
  SegmentedArray& operator=(const SegmentedArray&) = delete;
  ~SegmentedArray() {
    for (Chunk* chunk : chunks_) std::destroy_at(chunk);
    for (void* block : blocks_) std::free(block);
  }

  T& operator[](uint32_t index) { return chunks_[index / kPerChunk]->entries[index % kPerChunk]; }
  const T& operator[](uint32_t index) const { return chunks_[index / kPerChunk]->entries[index % kPerChunk]; }
  // Makes room for `count` entries.
  void Reserve(uint64_t count) {
    while (chunks_.size() * kPerChunk < count) AddChunk();
  }
  uint64_t memory_bytes() const {
    return block_bytes_ + chunks_.capacity() * sizeof(chunks_[0]) + blocks_.capacity() * sizeof(blocks_[0]);
  }

 private:
  struct alignas(64) Chunk {
    T entries[kPerChunk] = {};
  };
  static constexpr uint64_t kSlabBytes = 2u << 20;
  static_assert(sizeof(Chunk) <= kSlabBytes / 8, "little of a slab is left over");

  void AddChunk() {
    if (sizeof(Chunk) > left_) {
      const bool slab = block_bytes_ >= kSlabsFromBytes;
      left_ = slab ? kSlabBytes : sizeof(Chunk);
      next_ = static_cast<char*>(std::aligned_alloc(slab ? kSlabBytes : alignof(Chunk), left_));
      if (next_ == nullptr) throw std::bad_alloc();
      NoteBlock(next_);
      if (slab) madvise(next_, kSlabBytes, MADV_HUGEPAGE);  // Best effort.
      blocks_.push_back(next_);
      block_bytes_ += left_;
    }
    chunks_.push_back(new (next_) Chunk);
    next_ += sizeof(Chunk);
    left_ -= sizeof(Chunk);
  }

  std::vector<Chunk*> chunks_;
  std::vector<void*> blocks_;  // What the chunks lie in.
  char* next_ = nullptr;       // Unused rest of the last block.
  uint64_t left_ = 0;
  uint64_t block_bytes_ = 0;
};

}  // namespace replay
