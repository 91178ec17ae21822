#include "server/item_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace replay::server {
namespace {

TrajectoryFacts FactsOf(uint64_t id) {
  TrajectoryFacts facts;
  facts.id = {id, id >> 7};
  facts.token_count = static_cast<uint32_t>(id % kMaxTokens);
  return facts;
}

// "1 2 | 3 4": insertion numbers, the boundary between positive and fresh.
std::string Describe(const ItemTable& items) {
  std::string text;
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer) {
    if (slot == items.oldest_fresh()) text += "| ";
    text += std::to_string(items[slot].number) + " ";
  }
  return text;
}

TEST(ItemTable, KeepsInsertionOrderWhileSlotsAreReused) {
  ItemTable items;
  uint32_t slots[4];
  for (uint64_t id = 0; id < 4; ++id) slots[id] = items.Add(FactsOf(id), Outcome::kUnknown);
  items.Remove(slots[1]);
  EXPECT_EQ(slots[1], items.Add(FactsOf(9), Outcome::kUnknown));
  EXPECT_EQ("| 1 3 4 5 ", Describe(items));
  items.CheckInvariants();
}

TEST(ItemTable, MovesTheBoundaryBothWays) {
  ItemTable items;
  for (uint64_t id = 0; id < 4; ++id) items.Add(FactsOf(id), Outcome::kCorrect);
  items.MakePositive();
  items.MakePositive();
  EXPECT_EQ("1 2 | 3 4 ", Describe(items));
  items.MakeFresh();
  EXPECT_EQ("1 | 2 3 4 ", Describe(items));
  items.Remove(items.Find(FactsOf(1).id));  // the oldest fresh
  EXPECT_EQ("1 | 3 4 ", Describe(items));
  items.MakePositive();
  items.MakePositive();
  EXPECT_EQ("1 3 4 ", Describe(items));
  items.CheckInvariants();
  items.MakeFresh();
  EXPECT_EQ("1 3 | 4 ", Describe(items));
  items.Remove(items.oldest());
  EXPECT_EQ("3 | 4 ", Describe(items));
  items.CheckInvariants();
}

TEST(ItemTable, FindsExactlyTheLiveIdsThroughRandomChurn) {
  ItemTable items;
  std::mt19937_64 random(7);
  std::unordered_map<uint64_t, uint32_t> live;
  for (int step = 0; step < 100'000; ++step) {
    const uint64_t id = random() % 3000;
    const auto at = live.find(id);
    ASSERT_EQ(at == live.end() ? kNoSlot : at->second, items.Find(FactsOf(id).id)) << "step " << step;
    if (at == live.end()) {
      live[id] = items.Add(FactsOf(id), Outcome::kUnknown);
    } else {
      items.Remove(at->second);
      live.erase(at);
    }
  }
  items.CheckInvariants();
  EXPECT_EQ(live.size(), items.live());
}

TEST(SlotIndex, SurvivesHashesThatAllCollide) {
  SlotIndex index;
  for (uint32_t slot = 0; slot < 200; ++slot) index.Insert(42, slot);
  for (uint32_t slot = 0; slot < 200; slot += 2) index.Erase(42, slot);
  for (uint32_t slot = 0; slot < 200; ++slot)
    EXPECT_EQ(slot % 2 ? slot : kNoSlot, index.Find(42, [&](uint32_t found) { return found == slot; }));
  EXPECT_EQ(100u, index.size());
}

TEST(ItemTable, FirstAfterIsRightFromAnywhereAndThroughRemovals) {
  ItemTable items;
  std::mt19937_64 random(11);
  std::vector<uint64_t> numbers;
  uint64_t next_id = 0, page_end = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || numbers.empty()) {
      numbers.push_back(items[items.Add(FactsOf(next_id++), Outcome::kUnknown)].number);
    } else if (numbers.size() > 50 || random() % 2 == 0) {
      const size_t which = random() % numbers.size();
      items.Remove(items.Find(FactsOf(numbers[which] - 1).id));
      numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(which));
    }
    const uint64_t after = random() % 2 == 0 ? page_end : random() % (next_id + 2);
    const auto expected = std::upper_bound(numbers.begin(), numbers.end(), after);
    const uint32_t slot = items.FirstAfter(after);
    ASSERT_EQ(expected == numbers.end() ? 0 : *expected, slot == kNoSlot ? 0 : items[slot].number) << "step " << step;
    if (slot != kNoSlot && random() % 4 == 0) {
      page_end = items[slot].number;
      items.RememberPage(page_end, slot);
    }
  }
  items.CheckInvariants();
}

TEST(ItemTable, UsesAtMost118BytesForEachOfAMillionItems) {
  ItemTable items;
  for (uint64_t id = 0; id < 1'000'000; ++id) items.Add(FactsOf(id), Outcome::kUnknown);
  EXPECT_LE(items.memory_bytes() / 1'000'000, 118u);
}

TEST(SegmentedArray, KeepsEntriesInPlaceAcrossItsSlabs) {
  SegmentedArray<uint64_t, 1024, 1u << 20> array;  // slabs from 128 chunks on
  array.Reserve(1);
  uint64_t* first = &array[0];
  array.Reserve(1'000'000);
  for (uint32_t i = 0; i < 1'000'000; ++i) array[i] = i;
  EXPECT_EQ(first, &array[0]);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < 1'000'000; ++i) sum += array[i];
  EXPECT_EQ(999'999ull * 500'000, sum);
  EXPECT_LE(array.memory_bytes(), 8'000'000u + (2u << 20) + 20'000);
}

}  // namespace
}  // namespace replay::server
