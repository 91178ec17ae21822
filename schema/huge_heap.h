#pragma once
// Huge pages for the blocks of frames.
//
// Frames are drawn at random from all over the heap. With pages of 4 KB the look at a header alone waits for a page walk: at 10^6
// items a third of the time of a draw. So a process that holds many frames asks for huge pages as its heap grows, before the new
// part is touched. (glibc does this too, but only when told so in the environment.)

#include <atomic>
#include <cstdint>

namespace replay {

// From now on. Before the first thread; for a process that owns its heap, not for a library in another's.
void UseHugePagesForFrames();

namespace internal {

// The end of the part of the heap that has been asked for; all ones: nobody wants it.
extern std::atomic<uintptr_t> huge_heap_end;
void ExtendHugeHeap();

}  // namespace internal

// For each new block.
inline void NoteBlock(const void* block) {
  if (reinterpret_cast<uintptr_t>(block) >= internal::huge_heap_end.load(std::memory_order_relaxed)) [[unlikely]]
    internal::ExtendHugeHeap();
}

}  // namespace replay
