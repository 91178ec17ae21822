#include "server/selectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace replay::server {
namespace {

// Upper tail of chi-square with many degrees of freedom (Wilson-Hilferty).
double ChiSquareTail(double statistic, double degrees) {
  const double z = (std::cbrt(statistic / degrees) - (1 - 2 / (9 * degrees))) / std::sqrt(2 / (9 * degrees));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

struct Fixture {
  explicit Fixture(SelectorKind kind) : selector(MakeSelector(kind, &items)) {}

  void Add(int count, int64_t version = 0) {
    for (int i = 0; i < count; ++i) {
      TrajectoryFacts facts;
      facts.id = {items.next_number(), 0};
      facts.min_version = version;
      const uint32_t slot = items.Add(facts, Outcome::kUnknown);
      items[slot].cohort = cohorts.Add(facts);
      selector->OnInsert(slot);
    }
  }
  void Remove(uint64_t number) {
    const uint32_t slot = items.Find({number, 0});
    selector->OnRemove(slot);
    cohorts.Remove(items[slot].cohort);
    items.Remove(slot);
  }
  // Insertion numbers of a batch.
  std::vector<uint64_t> Draw(uint32_t count, std::optional<int64_t> step = {}) {
    std::vector<uint32_t> slots;
    selector->Draw(count, {&cohorts, step, cohorts.CountDrawable(step)}, &random, &slots);
    EXPECT_EQ(count, slots.size());
    std::vector<uint64_t> numbers;
    for (uint32_t slot : slots) numbers.push_back(items[slot].number);
    selector->CheckInvariants(cohorts);
    return numbers;
  }

  ItemTable items;
  Cohorts cohorts{PolicyVersions::Empty()};
  Random random{5};
  std::unique_ptr<Selector> selector;
};

using Numbers = std::vector<uint64_t>;

TEST(Selectors, LifoDrawsTheNewestAndFifoTheOldestFirst) {
  Fixture lifo(SelectorKind::kLifo), fifo(SelectorKind::kFifo);
  lifo.Add(5);
  fifo.Add(5);
  EXPECT_EQ((Numbers{5, 4, 3}), lifo.Draw(3));
  EXPECT_EQ((Numbers{1, 2, 3}), fifo.Draw(3));
  lifo.Remove(4);
  EXPECT_EQ((Numbers{5, 3, 2, 1}), lifo.Draw(4));
}

TEST(Selectors, LifoSkipsWhatIsNewerThanTheStep) {
  Fixture lifo(SelectorKind::kLifo);
  lifo.Add(2, 1);
  lifo.Add(2, 9);
  EXPECT_EQ((Numbers{2, 1}), lifo.Draw(2, 8));
  EXPECT_EQ((Numbers{4, 3}), lifo.Draw(2, 9));
}

TEST(Selectors, AMillionUniformDrawsPassChiSquare) {
  for (const SelectorKind kind : {SelectorKind::kUniform, SelectorKind::kUniformDistinct}) {
    Fixture fixture(kind);
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
    Fixture fixture(kind);
    for (int i = 0; i < 50; ++i) {
      fixture.Add(1, 1);
      fixture.Add(9, 7);
    }
    std::map<uint64_t, int> counts;
    for (int batch = 0; batch < 10'000; ++batch)
      for (uint64_t number : fixture.Draw(20, 3)) ++counts[number];
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
  Fixture fixture(SelectorKind::kUniformDistinct);
  fixture.Add(64, 0);
  fixture.Add(64, 5);
  for (const uint32_t count : {1u, 63u, 64u}) {
    for (int batch = 0; batch < 200; ++batch) {
      const Numbers numbers = fixture.Draw(count, 2);
      EXPECT_EQ(count, std::set<uint64_t>(numbers.begin(), numbers.end()).size());
    }
  }
}

TEST(Selectors, RemovedItemsAreNeverDrawn) {
  Fixture fixture(SelectorKind::kUniform);
  fixture.Add(100);
  for (uint64_t number = 1; number <= 100; number += 2) fixture.Remove(number);
  for (uint64_t number : fixture.Draw(10'000)) EXPECT_EQ(0u, number % 2);
}

// PAPER: with replacement, N = 84 and B = 60, 28 % of the slots of a batch repeat another: 1 - N (1 - (1 - 1/N)^B) / B.
TEST(Selectors, InBatchRepeatsAreWhatTheFormulaSays) {
  Fixture fixture(SelectorKind::kUniform);
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
