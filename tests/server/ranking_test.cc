#include "server/ranking.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>

namespace replay::server {
namespace {

TEST(Ranking, KnowsTheWorstThroughRandomChanges) {
  std::mt19937_64 random(3);
  ItemTable items;
  Ranking ranking(&items);
  std::set<std::tuple<float, uint64_t, uint32_t>> expected;  // reward, number, slot
  const auto key = [&](uint32_t slot) { return std::tuple(items[slot].reward, items[slot].number, slot); };
  for (int i = 0; i < 100'000; ++i) {
    const bool grows = expected.size() < 500 + static_cast<size_t>(i % 1000);
    if (grows || random() % 2) {
      TrajectoryFacts facts;
      facts.id = {random(), random()};
      facts.reward = static_cast<float>(random() % 20) - 10;
      const uint32_t slot = items.Add(facts, Outcome::kUnknown);
      ranking.Insert(slot);
      expected.insert(key(slot));
    } else {
      // The worst one, or any.
      auto at = expected.begin();
      if (random() % 2) std::advance(at, random() % std::min<size_t>(20, expected.size()));
      const uint32_t slot = std::get<2>(*at);
      ranking.Erase(slot);
      expected.erase(at);
      if (random() % 4) {
        items.Remove(slot);
      } else {
        items[slot].reward = static_cast<float>(random() % 20) - 10;
        ranking.Insert(slot);
        expected.insert(key(slot));
      }
    }
    ASSERT_EQ(expected.size(), ranking.size());
    ASSERT_TRUE(expected.empty() || std::get<2>(*expected.begin()) == ranking.worst());
    ASSERT_TRUE(i % 1000 != 0 || ranking.IsInOrder());
  }
  ranking.Clear();
  EXPECT_EQ(0u, ranking.size());
}

TEST(Ranking, AmongEqualRewardsTheOldestIsTheWorst) {
  ItemTable items;
  Ranking ranking(&items);
  uint32_t slots[3];
  for (uint64_t i = 0; i < 3; ++i) {
    TrajectoryFacts facts;
    facts.id = {i, 1};
    facts.reward = -0.5;
    slots[i] = items.Add(facts, Outcome::kUnknown);
  }
  for (const int i : {2, 0, 1}) ranking.Insert(slots[i]);
  EXPECT_EQ(slots[0], ranking.worst());
}

}  // namespace
}  // namespace replay::server
