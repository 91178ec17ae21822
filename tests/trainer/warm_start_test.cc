#include "trainer/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/json_config.h"
#include "tests/trainer/make_rows.h"

namespace replay::trainer {
namespace {

TrainerConfig Config(int steps, int seed = 0) {
  return ParseTrainerConfig(R"({"model": "m", "weights": "w", "output": "o", "seed": )" + std::to_string(seed) +
                            R"(, "warm_start": {"batch_size": 32, "learning_rate": 0.005, "steps": )" + std::to_string(steps) +
                            R"(, "architecture": {"hidden_size": 32, "intermediate_size": 64}}})");
}

bool GoOn(int64_t, double) { return true; }

TEST(WarmStart, LearnsFromDemonstrationsAndRepeatsItself) {
  std::vector<double> losses;
  const auto watch = [&](int64_t step, double loss) {
    EXPECT_EQ(step, static_cast<int64_t>(losses.size()) + 1);
    losses.push_back(loss);
    return true;
  };
  const TrainerConfig config = Config(120);
  const model::Transformer first = WarmStart(config, watch);
  ASSERT_EQ(losses.size(), 120u);
  EXPECT_NEAR(losses[0], std::log(23.0), 0.3);  // it knows nothing
  EXPECT_LT(losses[119], 2.0);                  // it knows that digits are answered
  const model::Transformer again = WarmStart(config, GoOn);
  EXPECT_TRUE(testing::Equal(first, again));
}

TEST(WarmStart, StopsWhenItIsTold) {
  int64_t steps = 0;
  WarmStart(Config(1'000), [&](int64_t step, double) { return (steps = step) < 3; });
  EXPECT_EQ(steps, 3);
}

TEST(WarmStart, DependsOnTheSeedAndOnNothingDrawnBefore) {
  const model::Transformer first = WarmStart(Config(2, 1), GoOn);
  torch::randn({100});
  EXPECT_TRUE(testing::Equal(WarmStart(Config(2, 1), GoOn), first));
  EXPECT_FALSE(testing::Equal(WarmStart(Config(2, 2), GoOn), first));
}

class TaskWithoutDemonstrations final : public Task {
 public:
  std::string Summary() const override { return "none"; }
  int32_t vocab_size() const override { return 23; }
  int32_t end_token() const override { return -1; }
  uint32_t max_prompt_tokens() const override { return 3; }
  uint32_t max_answer_tokens() const override { return 2; }
  Prompt NextTrainingPrompt(std::mt19937_64&) const override { return {.id = "p", .token_ids = {1, 2, 3}, .answer = ""}; }
  std::vector<Prompt> HeldOutPrompts(size_t) const override { return {}; }
  Score ScoreAnswer(const Prompt&, std::span<const int32_t>) const override { return {}; }
  std::vector<int32_t> Demonstration(const Prompt&, std::mt19937_64&) const override { return {}; }
  std::string Text(std::span<const int32_t>) const override { return ""; }
};

TEST(WarmStart, SaysThatATaskHasNoDemonstrations) {
  TrainerConfig config = Config(5);
  config.task = std::make_unique<TaskWithoutDemonstrations>();
  EXPECT_THAT([&] { WarmStart(config, GoOn); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("the task has no demonstrations")));
}

}  // namespace
}  // namespace replay::trainer
