// libFuzzer's entry points for the target REPLAY_FUZZ_TARGET of targets.h. The mutator knows the seeds, so that a run needs no
// corpus to start from, and leaves every second step to libFuzzer's own.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/targets.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

const replay::test::FuzzTarget& Target() {
  static const replay::test::FuzzTarget* const target = [] {
    for (const auto& one : replay::test::FuzzTargets()) {
      if (one.name == REPLAY_FUZZ_TARGET) return &one;
    }
    std::abort();
  }();
  return *target;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Target().run({data, size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937_64 random(seed);
  if (size > 8 && random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<uint8_t> input(data, data + size);
  if (size <= 8 || random() % 256 == 0) {
    static const auto seeds = Target().seeds();
    input = seeds[random() % seeds.size()];
  }
  Target().mutate(&input, random);
  const size_t kept = std::min(input.size(), max_size);
  std::copy_n(input.begin(), kept, data);
  return kept;
}
