#include "server/selectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/selector_fixture.h"

namespace replay::server {
namespace {

using namespace test;

TEST(Selectors, LifoDrawsTheNewestAndFifoTheOldestFirst) {
  SelectorFixture lifo(SelectorKind::kLifo), fifo(SelectorKind::kFifo);
  lifo.Add(5);
  fifo.Add(5);
  EXPECT_EQ((Numbers{5, 4, 3}), lifo.Draw(3));
  EXPECT_EQ((Numbers{1, 2, 3}), fifo.Draw(3));
  lifo.Remove(4);
  EXPECT_EQ((Numbers{5, 3, 2, 1}), lifo.Draw(4));
}

TEST(Selectors, LifoSkipsWhatIsNewerThanTheStep) {
  SelectorFixture lifo(SelectorKind::kLifo);
  lifo.Add(2, 1);
  lifo.Add(2, 9);
  EXPECT_EQ((Numbers{2, 1}), lifo.Draw(2, {.step = 8}));
  EXPECT_EQ((Numbers{4, 3}), lifo.Draw(2, {.step = 9}));
}

TEST(Selectors, AMillionUniformDrawsPassChiSquare) {
  for (const SelectorKind kind : {SelectorKind::kUniform, SelectorKind::kUniformDistinct}) {
    SelectorFixture fixture(kind);
    constexpr int kItems = 1000, kBatch = 250, kBatches = 4000;
    fixture.Add(kItems);
    std::vector<int> counts(kItems + 1);
    for (int batch = 0; batch < kBatches; ++batch) {
      const Numbers numbers = fixture.Draw(kBatch);
      for (uint64_t number : numbers) ++counts[number];
    }
    double statistic = 0;
    const double expected = double{kBatch} * kBatches / kItems;
    for (int number = 1; number <= kItems; ++number)
      statistic += std::pow(counts[static_cast<size_t>(number)] - expected, 2) / expected;
    // Without replacement within a batch the variance of a count is smaller by 1 - kBatch / kItems.
    if (kind == SelectorKind::kUniformDistinct) statistic /= 1 - double{kBatch} / kItems;
    EXPECT_GT(ChiSquareTail(statistic, kItems - 1), 1e-6) << statistic;
    EXPECT_LT(ChiSquareTail(statistic, kItems - 1), 1 - 1e-6) << "too even: " << statistic;
  }
}

TEST(Selectors, UniformStaysUniformOverWhatMayBeDrawnBesideNewerItems) {
  for (const SelectorKind kind : {SelectorKind::kUniform, SelectorKind::kUniformDistinct}) {
    SelectorFixture fixture(kind);
    for (int i = 0; i < 50; ++i) {
      fixture.Add(1, 1);
      fixture.Add(9, 7);
    }
    std::map<uint64_t, int> counts;
    for (int batch = 0; batch < 10'000; ++batch)
      for (uint64_t number : fixture.Draw(20, {.step = 3})) ++counts[number];
    ASSERT_EQ(50u, counts.size());
    double statistic = 0;
    for (const auto& [number, count] : counts) {
      EXPECT_EQ(1u, number % 10);
      statistic += std::pow(count - 4000.0, 2) / 4000;
    }
    if (kind == SelectorKind::kUniformDistinct) statistic /= 1 - 20.0 / 50;
    EXPECT_GT(ChiSquareTail(statistic, 49), 1e-6) << statistic;
  }
}

TEST(Selectors, DistinctDrawsNeverRepeatWithinABatch) {
  SelectorFixture fixture(SelectorKind::kUniformDistinct);
  fixture.Add(64, 0);
  fixture.Add(64, 5);
  for (const uint32_t count : {1u, 63u, 64u}) {
    for (int batch = 0; batch < 200; ++batch) {
      const Numbers numbers = fixture.Draw(count, {.step = 2});
      EXPECT_EQ(count, std::set<uint64_t>(numbers.begin(), numbers.end()).size());
    }
  }
}

TEST(Selectors, RemovedItemsAreNeverDrawn) {
  SelectorFixture fixture(SelectorKind::kUniform);
  fixture.Add(100);
  for (uint64_t number = 1; number <= 100; number += 2) fixture.Remove(number);
  for (uint64_t number : fixture.Draw(10'000)) EXPECT_EQ(0u, number % 2);
}

// PAPER: with replacement, N = 84 and B = 60, 28 % of the slots of a batch repeat another: 1 - N (1 - (1 - 1/N)^B) / B.
TEST(Selectors, InBatchRepeatsAreWhatTheFormulaSays) {
  SelectorFixture fixture(SelectorKind::kUniform);
  fixture.Add(84);
  double repeats = 0;
  constexpr int kBatches = 20'000;
  for (int batch = 0; batch < kBatches; ++batch) {
    const Numbers numbers = fixture.Draw(60);
    repeats += 60 - static_cast<double>(std::set<uint64_t>(numbers.begin(), numbers.end()).size());
  }
  const double formula = 1 - 84.0 * (1 - std::pow(1 - 1 / 84.0, 60)) / 60;
  EXPECT_NEAR(0.28, formula, 0.005);
  EXPECT_NEAR(formula, repeats / (60.0 * kBatches), 0.002);
}

TEST(Selectors, UniformPassesOverWhatIsTooStale) {
  for (const SelectorKind kind : {SelectorKind::kUniform, SelectorKind::kUniformDistinct, SelectorKind::kLifo,
                                  SelectorKind::kEpoch, SelectorKind::kUnusedFirst, SelectorKind::kPrioritized}) {
    SelectorFixture fixture(kind);
    fixture.Add(20, 1);
    fixture.Add(20, 5);
    fixture.Add(20, 9);
    for (int batch = 0; batch < 100; ++batch) {
      for (const uint64_t number : fixture.Draw(15, {.step = 7, .max_staleness = 4})) {
        EXPECT_GT(number, 20u);
        EXPECT_LE(number, 40u);
      }
    }
  }
}

// Every item's draws against the sum of its probabilities, while items are inserted, evicted and given other priorities.
TEST(Selectors, AllPassChiSquareUnderInsertionAndEviction) {
  for (const SelectorKind kind :
       {SelectorKind::kUniform, SelectorKind::kUniformDistinct, SelectorKind::kPrioritized, SelectorKind::kRecency}) {
    const double exponent = kind == SelectorKind::kRecency ? 0 : 1.5, decay = kind == SelectorKind::kUniform ? 0 : 6;
    SelectorFixture fixture(With(kind, exponent, decay));
    fixture.checks = false;
    std::mt19937_64 random(6);
    struct Live {
      int64_t version;
      float priority;
      double expected = 0, variance = 0;
      int drawn = 0;
    };
    std::map<uint64_t, Live> live;
    uint64_t next = 1;
    double statistic = 0;
    int degrees = 0;
    const auto retire = [&](uint64_t number) {
      const Live& item = live[number];
      // Enough for a normal approximation.
      if (item.expected > 10) {
        statistic += std::pow(item.drawn - item.expected, 2) / item.variance;
        ++degrees;
      }
      fixture.Remove(number);
      live.erase(number);
    };
    const bool weighted = kind == SelectorKind::kPrioritized || kind == SelectorKind::kRecency;
    for (int64_t turn = 0; turn < 40'000; ++turn) {
      if (turn % 40 == 0) {
        const Live item{.version = turn / 200, .priority = weighted ? static_cast<float>(1 + random() % 5) : 1};
        fixture.Add(1, item.version, item.priority);
        live[next++] = item;
        if (live.size() > 100) retire(live.begin()->first);
        if (weighted && random() % 2) {
          auto at = live.begin();
          std::advance(at, static_cast<std::ptrdiff_t>(random() % live.size()));
          at->second.priority = static_cast<float>(random() % 4);
          fixture.SetPriority(at->first, at->second.priority);
        }
      }
      const StepWindow window{.step = turn / 200};
      const auto weight = [&](const Live& item) {
        if (!weighted) return 1.0;
        return (exponent == 0 ? 1 : std::pow(item.priority, exponent)) *
               std::exp(-static_cast<double>(*window.step - item.version) / decay);
      };
      double total = 0;
      for (const auto& [number, item] : live) total += weight(item);
      if (total == 0) continue;
      const uint64_t number = fixture.Draw(1, window)[0];
      ++live[number].drawn;
      for (auto& [other, item] : live) {
        const double p = weight(item) / total;
        item.expected += p;
        item.variance += p * (1 - p);
        if (weighted && other == number) {
          ASSERT_NEAR(p, fixture.picks.probabilities[0], 1e-12);
        }
      }
    }
    ASSERT_GT(degrees, 300);
    EXPECT_GT(ChiSquareTail(statistic, degrees), 1e-6) << ToString(kind) << ": " << statistic << " of " << degrees;
    EXPECT_LT(ChiSquareTail(statistic, degrees), 1 - 1e-6) << ToString(kind) << ": " << statistic << " of " << degrees;
  }
}

TEST(Random, BelowIsUniformAndTheSameForTheSameSeed) {
  Random one(9), two(9);
  std::vector<int> counts(7);
  for (int i = 0; i < 700'000; ++i) {
    const uint32_t value = one.Below(7);
    ASSERT_EQ(value, two.Below(7));
    ++counts[value];
  }
  for (int count : counts) EXPECT_NEAR(100'000, count, 2'000);
}

}  // namespace
}  // namespace replay::server
