#include "server/ordered_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/selector_fixture.h"

namespace replay::server {
namespace {

using namespace test;

TEST(Ordered, PassesOverWhatIsWithheldAndComesBackToIt) {
  SelectorFixture lifo(SelectorKind::kLifo), fifo(SelectorKind::kFifo);
  for (SelectorFixture* fixture : {&lifo, &fifo})
    for (const int64_t version : {1, 5, 3, 5, 1, 3}) fixture->Add(1, version);
  EXPECT_EQ((Numbers{1, 2, 3}), fifo.Draw(3));
  EXPECT_EQ((Numbers{2, 3, 4, 6}), fifo.Draw(4, {.step = 5, .max_staleness = 2}));
  EXPECT_EQ((Numbers{6, 4, 3, 2}), lifo.Draw(4, {.step = 5, .max_staleness = 2}));
  EXPECT_EQ((Numbers{6, 5, 3, 1}), lifo.Draw(4, {.step = 5, .min_staleness = 2}));
  EXPECT_EQ((Numbers{3, 6}), fifo.Draw(2, {.step = 5, .max_staleness = 3, .min_staleness = 1}));
  fifo.Add(1, 3);
  fifo.Remove(3);
  EXPECT_EQ((Numbers{6, 7}), fifo.Draw(2, {.step = 3, .max_staleness = 0}));
  EXPECT_EQ((Numbers{1, 2, 4, 5, 6, 7}), fifo.Draw(6)) << "all again, in the order of insertion";
}

TEST(Ordered, AgreesWithALookAtAllThroughInsertsAndRemovals) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  struct Kept {
    uint64_t number;
    int64_t version;
  };
  for (const bool newest_first : {false, true}) {
    SelectorFixture fixture(newest_first ? SelectorKind::kLifo : SelectorKind::kFifo);
    std::vector<Kept> kept;
    for (int turn = 0; turn < 2'000; ++turn) {
      kept.push_back({fixture.items.next_number(), turn / 20 + static_cast<int64_t>(random() % 5)});
      fixture.Add(1, kept.back().version);
      if (kept.size() > 100) {
        const auto gone = kept.begin() + static_cast<std::ptrdiff_t>(random() % kept.size());
        fixture.Remove(gone->number);
        kept.erase(gone);
      }
      const auto below = [&](unsigned bound) { return static_cast<int64_t>(random() % bound); };
      const StepWindow window{.step = turn / 20, .max_staleness = below(3), .min_staleness = below(2)};
      Numbers expected;
      for (const Kept& each : kept) {
        const int64_t staleness = *window.step - each.version;
        if (staleness >= window.min_staleness && staleness <= window.max_staleness) expected.push_back(each.number);
      }
      if (newest_first) std::reverse(expected.begin(), expected.end());
      if (expected.size() > 10) expected.resize(10);
      if (expected.empty()) continue;
      ASSERT_EQ(expected, fixture.Draw(static_cast<uint32_t>(expected.size()), window)) << "turn " << turn;
    }
  }
}

TEST(Ordered, KeepsNothingOfAWholeBufferUntilItMustPassOverSome) {
  SelectorFixture fifo(SelectorKind::kFifo);
  fifo.Add(1'000, 1);
  fifo.Draw(10);
  EXPECT_EQ(0u, fifo.selector->memory_bytes());
  fifo.Add(1, 9);
  fifo.Draw(10, {.step = 8});
  EXPECT_GE(fifo.selector->memory_bytes(), 1'001u * 48);
}

}  // namespace
}  // namespace replay::server
