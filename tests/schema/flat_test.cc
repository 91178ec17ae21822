#include "schema/flat.h"

#include <gtest/gtest.h>

#include <random>

#include "schema/validate.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"

namespace replay {
namespace {

std::string Describe(const TrajectoryFacts& facts) {
  const auto key = [](const Key128& value) { return std::to_string(value.high) + ":" + std::to_string(value.low); };
  return key(facts.id) + " " + key(facts.group) + " " + key(facts.run) + " epoch " + std::to_string(facts.epoch) +
         " versions " + std::to_string(facts.min_version) + ".." + std::to_string(facts.max_version) + " tokens " +
         std::to_string(facts.token_count) + " group " + std::to_string(facts.index_in_group) + "/" +
         std::to_string(facts.group_size) + " reward " + std::to_string(facts.reward) + " outcome " +
         std::to_string(static_cast<int>(facts.correct));
}

// What the two ways of reading a frame say, as text: they must be the same.
std::pair<std::string, std::string> BothWays(std::span<const uint8_t> frame) {
  std::string results[2];
  for (const bool only_generated_code : {false, true}) {
    TrajectoryFacts facts;
    const std::string error =
        ValidateTrajectory(frame, {.check_checksum = false, .only_generated_code = only_generated_code}, &facts);
    results[only_generated_code] = error.empty() ? Describe(facts) : error;
  }
  return {results[0], results[1]};
}

TEST(FlatTrajectory, GivesTheSameFactsAsTheGeneratedCode) {
  for (uint32_t length : {1u, 7u, 455u, 20'000u}) {
    const Frame frame = test::MakeTrajectory({.id = "t" + std::to_string(length), .length = length});
    const auto [fast, slow] = BothWays(frame.bytes());
    EXPECT_EQ(slow, fast);
    EXPECT_NE(std::string::npos, fast.find("tokens " + std::to_string(length)));
  }
}

TEST(FlatTrajectory, AgreesWithTheGeneratedCodeOnMutatedFrames) {
  std::mt19937_64 random(11);
  const Frame original = test::MakeTrajectory({.id = "mutated", .length = 40});
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    Frame frame = Frame::CopyOf(original.bytes());
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < flips; ++i) {
      // Mostly in the pointers and fields in front, where it matters.
      const uint64_t reach = random() % 2 ? 208 : frame.size() - kChecksumBytes;
      frame.mutable_data()[8 + random() % (reach - 8)] ^= static_cast<uint8_t>(1u << random() % 8);
    }
    const auto [fast, slow] = BothWays(frame.bytes());
    ASSERT_EQ(slow, fast) << "round " << round;
    accepted += fast.find(" tokens ") != std::string::npos;
  }
  EXPECT_GT(accepted, 1000) << "mutations that leave a valid frame are part of the test";
}

TEST(FlatMessage, NeverClaimsOutsideTheSegmentOrMoreThanItHas) {
  const uint64_t words[4] = {};
  FlatMessage message(words);
  EXPECT_EQ(words + 1, message.Claim(1, 2));
  EXPECT_EQ(nullptr, message.Claim(0, 3)) << "only two words are unclaimed";
  EXPECT_TRUE(message.declined);
  FlatMessage other(words);
  EXPECT_EQ(nullptr, other.Claim(-1, 1));
  EXPECT_EQ(nullptr, other.Claim(3, 2));
  EXPECT_EQ(nullptr, other.Claim(4, 1));
  EXPECT_EQ(words + 4, other.Claim(4, 0)) << "an empty list may end where the segment ends";
}

}  // namespace
}  // namespace replay
