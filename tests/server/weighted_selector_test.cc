#include "server/weighted_selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/selector_fixture.h"

namespace replay::server {
namespace {

using namespace test;

TEST(SumTree, KeepsItsSumsThroughAnyChange) {
  SumTree tree;
  std::vector<double> weights;
  std::mt19937_64 random(8);
  for (int i = 0; i < 20'000; ++i) {
    const double weight = random() % 4 ? std::pow(10.0, static_cast<double>(random() % 60) - 30) : 0;
    const uint64_t dice = random() % 10, growth = i / 2'000 % 2 ? 3 : 6;
    if (dice < growth || weights.empty()) {
      tree.Append(static_cast<uint32_t>(i), weight);
      weights.push_back(weight);
    } else if (dice < 8) {
      const size_t leaf = random() % weights.size();
      tree.Remove(static_cast<uint32_t>(leaf));
      weights[leaf] = weights.back();
      weights.pop_back();
    } else {
      const size_t leaf = random() % weights.size();
      tree.Set(static_cast<uint32_t>(leaf), weight);
      weights[leaf] = weight;
    }
    if (i % 100 == 0) tree.CheckInvariants();
    ASSERT_EQ(weights.size(), tree.size());
    if (!(tree.sum() > 0)) continue;
    for (const double share : {0.0, 0.3, 0.999999, 1 - 0x1p-53}) {
      const uint32_t leaf = tree.Find(share);
      ASSERT_LT(leaf, tree.size());
      ASSERT_GT(tree.weight(leaf), 0);
      ASSERT_EQ(weights[leaf], tree.weight(leaf));
    }
  }
}

TEST(Weighted, NeverDrawsWhatHasNoWeightAndCountsIt) {
  SelectorFixture fixture(With(SelectorKind::kPrioritized, 2));
  fixture.Add(10, 0, 0);
  fixture.Add(5, 0, 3);
  fixture.Add(5, 4, 0);
  fixture.Add(1, 4, 1e9f);
  EXPECT_EQ(5u, fixture.DrawableAt({.step = 3}).count);
  EXPECT_EQ(15u, fixture.DrawableAt({.step = 3}).in_window);
  EXPECT_EQ(6u, fixture.DrawableAt({.step = 4}).count);
  for (const uint64_t number : fixture.Draw(1'000, {.step = 3})) EXPECT_TRUE(number > 10 && number <= 15);
  for (uint64_t number = 11; number <= 15; ++number) fixture.SetPriority(number, 0);
  EXPECT_EQ(0u, fixture.DrawableAt({.step = 3}).count);
}

TEST(Weighted, DrawsTheLeastStaleWhereAllWeightsVanishBesideIt) {
  SelectorFixture fixture(With(SelectorKind::kRecency, 1, 1e-3));
  fixture.Add(3, 1);
  fixture.Add(3, 900);
  for (const uint64_t number : fixture.Draw(100, {.step = 1'000'000})) EXPECT_GT(number, 3u);
  EXPECT_DOUBLE_EQ(1.0 / 3, fixture.picks.probabilities[0]);
}

}  // namespace
}  // namespace replay::server
