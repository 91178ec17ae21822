#include "schema/huge_heap.h"

#include <sys/mman.h>

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "schema/message.h"
#include "tests/support/sanitized.h"

namespace replay {
namespace {

// Bytes of the heap for which huge pages have been asked ("hg" of the flags in smaps).
uint64_t AskedFor() {
  std::ifstream smaps("/proc/self/smaps");
  uint64_t sum = 0, size = 0;
  bool heap = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("rw-p") != std::string::npos) heap = line.find("[heap]") != std::string::npos;
    if (line.starts_with("Size:")) size = std::stoull(line.substr(5)) * 1024;
    if (heap && line.starts_with("VmFlags:") && line.find(" hg") != std::string::npos) sum += size;
  }
  return sum;
}

bool SystemHasHugePages() {
  constexpr size_t kBytes = 4u << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool has = memory != MAP_FAILED && madvise(memory, kBytes, MADV_HUGEPAGE) == 0;
  if (memory != MAP_FAILED) munmap(memory, kBytes);
  return has;
}

std::vector<Frame> FramesOf(uint64_t total_bytes) {
  constexpr uint64_t kBytes = 16 << 10;  // not mapped on its own
  std::vector<Frame> frames;
  for (uint64_t bytes = 0; bytes < total_bytes; bytes += kBytes) frames.push_back(Frame::Allocate(kBytes));
  return frames;
}

TEST(HugeHeap, AsksForTheHeapAsItGrowsOnceToldTo) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's heap is not this one";
  if (!SystemHasHugePages()) GTEST_SKIP() << "this system has no transparent huge pages";
  const std::vector<Frame> before = FramesOf(16 << 20);
  EXPECT_EQ(0u, AskedFor());
  UseHugePagesForFrames();
  const std::vector<Frame> after = FramesOf(64 << 20);
  EXPECT_GE(AskedFor(), 60u << 20);
}

TEST(HugeHeap, LeavesBlocksAloneThatWereMappedOnTheirOwn) {
  AskedFor();  // What reading itself allocates shall not make the heap grow below.
  UseHugePagesForFrames();
  const uint64_t before = AskedFor();
  const Frame large = Frame::Allocate(64 << 20);  // beyond the threshold of a malloc that nobody has configured
  EXPECT_EQ(before, AskedFor());
}

}  // namespace
}  // namespace replay
