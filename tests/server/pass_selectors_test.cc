#include "server/pass_selectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/selector_fixture.h"

namespace replay::server {
namespace {

using namespace test;

TEST(Epoch, DrawsNoneTwiceBeforeAllOnceWhileItemsComeAndGo) {
  SelectorFixture fixture(SelectorKind::kEpoch);
  std::mt19937_64 random(3);
  std::set<uint64_t> live, seen;
  uint64_t next = 1;
  for (int turn = 0; turn < 5'000; ++turn) {
    for (uint64_t i = random() % 4; i > 0; --i) {
      fixture.Add(1, static_cast<int64_t>(random() % 3));
      live.insert(next++);
    }
    if (live.size() > 40 || (live.size() > 1 && random() % 3 == 0)) {
      auto at = live.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % live.size()));
      fixture.Remove(*at);
      seen.erase(*at);
      live.erase(at);
    }
    if (live.empty()) continue;
    const uint64_t unseen = live.size() - seen.size();
    const auto count = static_cast<uint32_t>(1 + random() % (random() % 10 ? 8 : 100));
    const Numbers numbers = fixture.Draw(count);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (seen.size() == live.size()) seen.clear();
      EXPECT_TRUE(seen.insert(numbers[i]).second) << numbers[i] << " twice in a pass, turn " << turn;
      EXPECT_EQ(1.0 / static_cast<double>(i < unseen ? unseen : live.size()), fixture.picks.probabilities[i]);
    }
  }
}

// The share of each item in each slot of a batch that runs over the end of a pass.
TEST(Epoch, SlotsHaveTheProbabilitiesThatAreTold) {
  constexpr int kTrials = 40'000;
  std::map<std::pair<size_t, uint64_t>, int> counts;  // (slot of the second batch, item)
  for (int trial = 0; trial < kTrials; ++trial) {
    SelectorFixture fixture(SelectorKind::kEpoch);
    fixture.random = Random(static_cast<uint64_t>(trial));
    fixture.Add(6);
    fixture.checks = false;
    // The first batch takes numbers 1 and 2, so that what follows is from one state.
    Picks picks;
    picks.slots = {fixture.items.Find({1, 0}), fixture.items.Find({2, 0})};
    fixture.selector->Draw(2, fixture.DrawableAt({}), &fixture.random, &fixture.picks);
    fixture.selector->Commit(picks);
    const Numbers numbers = fixture.Draw(7);
    for (size_t slot = 0; slot < numbers.size(); ++slot) ++counts[{slot, numbers[slot]}];
  }
  for (size_t slot = 0; slot < 7; ++slot) {
    for (uint64_t number = 1; number <= 6; ++number) {
      const double p = slot < 4 ? (number <= 2 ? 0 : 1.0 / 4) : 1.0 / 6;
      EXPECT_NEAR(p * kTrials, (counts[{slot, number}]), 5 * std::sqrt(kTrials * p * (1 - p)) + 1e-9) << slot << " " << number;
    }
  }
}

TEST(UnusedFirst, DrawsThoseDrawnLeastOftenWhileItemsComeAndGo) {
  SelectorFixture fixture(SelectorKind::kUnusedFirst);
  std::mt19937_64 random(4);
  std::map<uint64_t, uint32_t> draws;
  uint64_t next = 1;
  for (int turn = 0; turn < 3'000; ++turn) {
    for (uint64_t i = random() % 3; i > 0; --i) {
      fixture.Add(1, static_cast<int64_t>(random() % 3));
      draws[next++] = 0;
    }
    if (draws.size() > 40 || (draws.size() > 1 && random() % 3 == 0)) {
      auto at = draws.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % draws.size()));
      fixture.Remove(at->first);
      draws.erase(at);
    }
    if (draws.empty()) continue;
    for (const uint64_t number : fixture.Draw(static_cast<uint32_t>(1 + random() % 60))) {
      for (const auto& [other, count] : draws) ASSERT_GE(count, draws[number]) << other << " before " << number;
      ++draws[number];
    }
  }
}

// Epoch and unused_first choose uniformly among those whose turn it is: which of them, by age, is looked at.
TEST(Selectors, ThoseThatLookBackAreUniformAmongWhoseTurnItIs) {
  for (const SelectorKind kind : {SelectorKind::kEpoch, SelectorKind::kUnusedFirst}) {
    SelectorFixture fixture(kind);
    fixture.checks = false;
    std::mt19937_64 random(7);
    std::map<uint64_t, uint32_t> turn_of;  // epoch: the pass it is drawn in next; unused_first: its draws
    uint64_t next = 1;
    uint32_t pass = 0;
    double first = 0, last = 0, expected = 0, variance = 0;
    for (int turn = 0; turn < 60'000; ++turn) {
      for (int i = 0; i < 60 && turn % 200 == 0; ++i) {
        fixture.Add(1, turn / 200);
        turn_of[next++] = kind == SelectorKind::kEpoch ? pass : 0;
        if (turn_of.size() > 100) {
          fixture.Remove(turn_of.begin()->first);
          turn_of.erase(turn_of.begin());
        }
      }
      std::vector<uint64_t> candidates;
      uint32_t least = UINT32_MAX;
      for (const auto& [number, when] : turn_of) least = std::min(least, when);
      for (const auto& [number, when] : turn_of)
        if (when == least) candidates.push_back(number);
      if (kind == SelectorKind::kEpoch) pass = least;
      const uint64_t drawn = fixture.Draw(1)[0];
      ASSERT_EQ(least, turn_of[drawn]);
      ASSERT_EQ(1.0 / static_cast<double>(candidates.size()), fixture.picks.probabilities[0]);
      ++turn_of[drawn];
      const double p = fixture.picks.probabilities[0];
      expected += p;
      variance += p * (1 - p);
      first += drawn == candidates.front();
      last += drawn == candidates.back();
    }
    ASSERT_GT(variance, 500);
    EXPECT_NEAR(expected, first, 5 * std::sqrt(variance)) << ToString(kind);  // p > 10^-6
    EXPECT_NEAR(expected, last, 5 * std::sqrt(variance)) << ToString(kind);
  }
}

}  // namespace
}  // namespace replay::server
