// The short tier of fuzzing: every target with its seeds, the inputs kept in tests/fuzz/NAME_fuzz/, and some thousand mutations from
// a fixed seed. Long runs are libFuzzer's (fuzz_main.cc); REPLAY_FUZZ_RUNS makes this one longer.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/targets.h"

namespace replay::test {
namespace {

#ifndef REPLAY_FUZZ_FOLDER
#define REPLAY_FUZZ_FOLDER "tests/fuzz"
#endif

class Fuzz : public testing::TestWithParam<FuzzTarget> {};
INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, testing::ValuesIn(FuzzTargets().begin(), FuzzTargets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

uint64_t Runs(std::string_view target) {
  if (const char* runs = std::getenv("REPLAY_FUZZ_RUNS")) return std::strtoull(runs, nullptr, 10);
  return target == "session" ? 4'000 : 20'000;
}

TEST_P(Fuzz, SeedsAndTheirMutationsReturnInBoundedTime) {
  const FuzzTarget& target = GetParam();
  const std::vector<std::vector<uint8_t>> seeds = target.seeds();
  ASSERT_FALSE(seeds.empty());
  for (const auto& seed : seeds) target.run(seed);
  target.run({});
  const uint64_t seed = 1;
  std::mt19937_64 random(seed);
  double slowest_s = 0;
  for (uint64_t i = 0; i < Runs(target.name); ++i) {
    std::vector<uint8_t> input = seeds[random() % seeds.size()];
    for (uint64_t depth = 1 + random() % 3; depth > 0; --depth) target.mutate(&input, random);
    const auto before = std::chrono::steady_clock::now();
    try {
      target.run(input);
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", mutation " << i << ": " << error.what();
    }
    slowest_s = std::max(slowest_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  EXPECT_LT(slowest_s, 1.0) << "seed " << seed;
}

TEST_P(Fuzz, KeptInputsReturn) {
  const std::filesystem::path folder = std::filesystem::path(REPLAY_FUZZ_FOLDER) / (std::string(GetParam().name) + "_fuzz");
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    SCOPED_TRACE(entry.path().string());
    GetParam().run(input);
  }
}

}  // namespace
}  // namespace replay::test
