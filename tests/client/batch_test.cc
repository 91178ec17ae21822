#include <gtest/gtest.h>

#include <cmath>

#include "replay/client.h"

namespace replay {
namespace {

TEST(Batch, ImportanceWeightIsThePowerOfCandidatesTimesProbability) {
  Batch batch;
  batch.candidates = {4, 10};
  for (const double priority : {1, 2, 3, 4}) {
    const Draw draw{.probability = priority / 10};
    EXPECT_NEAR(10 / (4 * priority), batch.importance_weight(draw), 1e-12);
    EXPECT_NEAR(std::sqrt(10 / (4 * priority)), batch.importance_weight(draw, 0.5), 1e-12);
    EXPECT_EQ(1, batch.importance_weight(draw, 0));
  }
  EXPECT_NEAR(0.2, batch.importance_weight({.probability = 0.5, .part = 1}), 1e-12);
}

TEST(Batch, ImportanceWeightOfAUniformDrawIsExactlyOne) {
  Batch batch;
  for (uint64_t n = 1; n <= 10'000; ++n) {
    batch.candidates = {n};
    const Draw draw{.probability = 1.0 / static_cast<double>(n)};
    ASSERT_EQ(1, batch.importance_weight(draw)) << n;
    ASSERT_EQ(1, batch.importance_weight(draw, 0.4)) << n;
  }
}

TEST(Batch, HasNoImportanceWeightWhereTheServerDoesNotTellTheCandidates) {
  Batch batch;
  EXPECT_TRUE(std::isnan(batch.importance_weight({.probability = 0.5})));
  batch.candidates = {4};
  EXPECT_TRUE(std::isnan(batch.importance_weight({.probability = 0.5, .part = 1})));
}

}  // namespace
}  // namespace replay
