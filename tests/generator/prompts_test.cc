#include "generator/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace replay {
namespace {

TEST(Prompts, AreHeldOutByAHashThatNeverChanges) {
  EXPECT_EQ(0xfdbdf6ac4fc52e7fu, HashOf(""));  // worked out by another program
  EXPECT_EQ(0x79dcc11fffb76560u, HashOf("8+3="));
  EXPECT_TRUE(IsHeldOut("8+3="));
  EXPECT_FALSE(IsHeldOut("8+4="));
}

TEST(Prompts, AreHeldOutOnceInSixteen) {
  int held_out = 0;
  for (int i = 0; i < 160'000; ++i) held_out += IsHeldOut(std::to_string(i)) ? 1 : 0;
  EXPECT_NEAR(10'000, held_out, 400);  // 4 standard deviations
}

TEST(Prompts, AreDrawnFromNumbersBelowABound) {
  std::mt19937_64 random(1);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts.at(static_cast<size_t>(Below(random, 7)));
  for (const int count : counts) EXPECT_NEAR(10'000, count, 400);
  EXPECT_EQ(0, Below(random, 1));
}

TEST(Prompts, AreDrawnFromAUnitThatIsNeverZeroNorOne) {
  std::mt19937_64 random(1);
  double sum = 0, least = 1, most = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double unit = Unit(random);
    sum += unit;
    least = std::min(least, unit);
    most = std::max(most, unit);
  }
  EXPECT_NEAR(0.5, sum / 100'000, 0.004);
  EXPECT_GT(least, 0);
  EXPECT_LT(most, 1);
  EXPECT_LT(least, 0.001);
  EXPECT_GT(most, 0.999);
}

// Two prompts, of which the one that is held out is seldom drawn.
class FewPrompts : public MadeUp<Task> {
 public:
  std::string Summary() const override { return ""; }
  int32_t vocab_size() const override { return 1; }
  int32_t end_token() const override { return -1; }
  uint32_t max_prompt_tokens() const override { return 1; }
  uint32_t max_answer_tokens() const override { return 1; }
  Score ScoreAnswer(const Prompt&, std::span<const int32_t>) const override { return {}; }
  std::vector<int32_t> Demonstration(const Prompt&, std::mt19937_64&) const override { return {}; }
  std::string Text(std::span<const int32_t>) const override { return ""; }

 protected:
  Prompt RandomPrompt(std::mt19937_64& random) const override {
    const bool seldom = Below(random, 1000) == 0;
    return {.id = seldom ? "8+3=" : "8+4=", .token_ids = {0}, .answer = ""};
  }
};

TEST(Prompts, ThatAreMadeUpAreFoundHoweverFewAreHeldOut) {
  const FewPrompts task;
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ("8+4=", task.NextTrainingPrompt(random).id);
  ASSERT_EQ(1u, task.HeldOutPrompts(5).size());
  EXPECT_EQ("8+3=", task.HeldOutPrompts(5)[0].id);
}

}  // namespace
}  // namespace replay
