#include "server/heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/sanitized.h"

namespace replay::server {
namespace {

using std::chrono::seconds;

// Blocks of 64 KB, every other of which has been freed: no free memory at the end of the heap, where free() could return it.
class Fragmented {
 public:
  explicit Fragmented(size_t pairs) {
    std::vector<std::unique_ptr<char[]>> freed;
    for (size_t i = 0; i < pairs; ++i) {
      for (auto* blocks : {&freed, &kept_}) {
        blocks->emplace_back(new char[kBytes]);
        std::memset(blocks->back().get(), 1, kBytes);
      }
    }
  }
  static constexpr size_t kBytes = 64 << 10;

 private:
  std::vector<std::unique_ptr<char[]>> kept_;
};

TEST(HeapWatch, GivesFreePagesBackAboveTheLimit) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's malloc does not trim";
  const uint64_t before = HeapWatch::ResidentBytes();
  const Fragmented blocks(512);
  EXPECT_GE(HeapWatch::ResidentBytes(), before + 48 * (1 << 20));
  HeapWatch watch(before + 40 * (1 << 20));
  EXPECT_GE(watch.Check(HeapWatch::TimePoint() + seconds(1)), 24u << 20);
  EXPECT_LE(HeapWatch::ResidentBytes(), before + 40 * (1 << 20));
}

TEST(HeapWatch, LeavesTheHeapAloneBelowTheLimit) {
  const Fragmented blocks(64);
  HeapWatch watch(HeapWatch::ResidentBytes() + (64 << 20));
  EXPECT_EQ(0u, watch.Check(HeapWatch::TimePoint() + seconds(1)));
}

TEST(HeapWatch, WaitsAMinuteWhereThereIsNothingToGiveBack) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's malloc does not trim";
  HeapWatch watch(1);
  const auto start = HeapWatch::TimePoint() + seconds(1);
  watch.Check(start);
  const Fragmented blocks(512);
  EXPECT_EQ(0u, watch.Check(start + seconds(59)));
  EXPECT_GE(watch.Check(start + seconds(60)), 24u << 20);
}

}  // namespace
}  // namespace replay::server
