#pragma once
// A selector with its items, and what tests of selectors measure by.
//
//   SelectorFixture fixture(SelectorKind::kEpoch);
//   fixture.Add(100);                          numbers 1 … 100
//   fixture.Draw(10, {.step = 3});             insertion numbers; their probabilities are in fixture.picks

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "server/selectors.h"
#include "tests/support/chi_square.h"

namespace replay::server::test {

using ::replay::test::ChiSquareTail;

inline SelectorOptions With(SelectorKind kind, double exponent = 1, double decay = 0) {
  SelectorOptions options;
  options.kind = kind;
  options.priority_exponent = exponent;
  options.staleness_decay = decay;
  return options;
}

struct SelectorFixture {
  explicit SelectorFixture(SelectorKind kind) : SelectorFixture(With(kind)) {}
  explicit SelectorFixture(const SelectorOptions& options) : selector(MakeSelector(options, &items)) {}

  void Add(int count, int64_t version = 0, float priority = 1) {
    for (int i = 0; i < count; ++i) {
      TrajectoryFacts facts;
      facts.id = {items.next_number(), 0};
      facts.min_version = version;
      const uint32_t slot = items.Add(facts, Outcome::kUnknown);
      items[slot].cohort = cohorts.Add(facts);
      items.SetPriority(slot, priority);
      selector->OnInsert(slot);
    }
  }
  void Remove(uint64_t number) {
    const uint32_t slot = items.Find({number, 0});
    selector->OnRemove(slot);
    cohorts.Remove(items[slot].cohort);
    items.Remove(slot);
  }
  void SetPriority(uint64_t number, float priority) {
    const uint32_t slot = items.Find({number, 0});
    items.SetPriority(slot, priority);
    selector->OnPriority(slot);
  }
  Drawable DrawableAt(const StepWindow& window) {
    const uint64_t in_window = cohorts.CountDrawable(window);
    return {&cohorts, window, in_window, selector->CountDrawable(cohorts, window, in_window)};
  }
  // Insertion numbers of a batch; its probabilities are in `picks` (all of them, also where they are equal).
  std::vector<uint64_t> Draw(uint32_t count, const StepWindow& window = {}) {
    selector->Draw(count, DrawableAt(window), &random, &picks);
    EXPECT_EQ(count, picks.slots.size());
    std::set<uint32_t> distinct;
    for (const uint32_t slot : picks.slots) {
      ++items[slot].draws;
      distinct.insert(slot);
    }
    selector->Commit(picks);
    selector->OnDrawn(std::vector<uint32_t>(distinct.begin(), distinct.end()));
    if (picks.probabilities.empty()) picks.probabilities.assign(count, picks.probability);
    EXPECT_EQ(count, picks.probabilities.size());
    std::vector<uint64_t> numbers;
    for (uint32_t slot : picks.slots) numbers.push_back(items[slot].number);
    if (checks) selector->CheckInvariants(cohorts, cohorts.of_current_epoch());
    return numbers;
  }

  ItemTable items;
  Cohorts cohorts{PolicyVersions::Empty()};
  Random random{5};
  std::unique_ptr<Selector> selector;
  Picks picks;
  bool checks = true;
};

using Numbers = std::vector<uint64_t>;

}  // namespace replay::server::test
