#include "server/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "schema/huge_heap.h"

namespace replay::server {

void ConfigureHeap() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 64 << 20);  // many huge pages at a time: at the seam of two parts there are none
  mallopt(M_ARENA_MAX, 1);
  UseHugePagesForFrames();
}

uint64_t HeapWatch::ResidentBytes() {
  uint64_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t HeapWatch::Check(TimePoint now) {
  if (now < not_before_) return 0;
  const uint64_t before = ResidentBytes();
  if (before <= threshold_bytes_) return 0;
  malloc_trim(0);
  const uint64_t after = ResidentBytes();
  if (after > threshold_bytes_) not_before_ = now + std::chrono::minutes(1);
  return before > after ? before - after : 0;
}

}  // namespace replay::server
