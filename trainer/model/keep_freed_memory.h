#pragma once
// A training step allocates and frees the same large blocks again and again. By default glibc hands each back to the kernel, which
// zeroes it page by page for the next: 8 % of a step of 20 million parameters.
//
//   model::KeepFreedMemory();      in main, before anything large

#include <malloc.h>

namespace replay::model {

// Blocks of up to 256 MiB come from the heap from now on, which keeps up to 1 GiB of free space at its end.
inline void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace replay::model
