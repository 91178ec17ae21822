#include "trainer/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/json_config.h"
#include "tests/trainer/make_rows.h"

namespace replay::trainer {
namespace {

TrainerConfig Config(int steps) {
  return ParseTrainerConfig(
      R"({"model": "m", "weights": "w", "output": "o", "warm_start": {"batch_size": 32, "learning_rate": 0.005, "steps": )" +
      std::to_string(steps) + R"(, "architecture": {"hidden_size": 32, "intermediate_size": 64}}})");
}

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
  const model::Transformer again = WarmStart(config, [](int64_t, double) { return true; });
  EXPECT_TRUE(testing::Equal(first, again));
}

TEST(WarmStart, StopsWhenItIsTold) {
  int64_t steps = 0;
  WarmStart(Config(1'000), [&](int64_t step, double) { return (steps = step) < 3; });
  EXPECT_EQ(steps, 3);
}

}  // namespace
}  // namespace replay::trainer
