#include "schema/huge_heap.h"

#include <sys/mman.h>
#include <unistd.h>

namespace replay {

namespace internal {

constinit std::atomic<uintptr_t> huge_heap_end{UINTPTR_MAX};

// Another thread may do the same at the same time: then a part is asked for twice.
void ExtendHugeHeap() {
  constexpr uintptr_t kHugePage = 2u << 20;
  const uintptr_t before = huge_heap_end.load(std::memory_order_relaxed), from = before / kHugePage * kHugePage;
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  if (end <= before) return;                                          // The block lies elsewhere: it was mapped on its own.
  madvise(reinterpret_cast<void*>(from), end - from, MADV_HUGEPAGE);  // Best effort.
  huge_heap_end.store(end, std::memory_order_relaxed);
}

}  // namespace internal

void UseHugePagesForFrames() { internal::huge_heap_end.store(reinterpret_cast<uintptr_t>(sbrk(0)), std::memory_order_relaxed); }

}  // namespace replay
