#pragma once
// The C heap of a process whose memory is a churn of frames of all sizes.

#include <chrono>
#include <cstdint>

namespace replay::server {

// glibc malloc for such a churn: no mmap for each large block, no trimming, one arena (2.7 times less CPU than the defaults at
// 1.00-1.05 of the live bytes; jemalloc wastes 14-45 % here), and huge pages. Before the first thread.
void ConfigureHeap();

// Free memory stays with the process, to be used again. Where the sizes change much, as when hostile clients announce large
// payloads and send little, the pages touched in the course of time add up to more than was ever in use at once. HeapWatch gives
// the free ones back to the system when the process holds a sixteenth more than its memory limit. One thread.
class HeapWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  explicit HeapWatch(uint64_t limit_bytes) : threshold_bytes_(limit_bytes + limit_bytes / 16) {}

  // To be called every second or so. Returns the bytes given back, 0 mostly. Walks the free blocks when it does, while no other
  // thread can allocate: where that brings the process not below the threshold, it is not tried again for a minute.
  uint64_t Check(TimePoint now);

  static uint64_t ResidentBytes();

 private:
  const uint64_t threshold_bytes_;
  TimePoint not_before_{};
};

}  // namespace replay::server
