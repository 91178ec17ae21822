#include "server/slot_index.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace replay::server {
namespace {

uint32_t Find(const SlotIndex& index, const std::vector<Key128>& keys, const Key128& key) {
  return index.Find(SlotIndex::Hash(key), [&](uint32_t slot) { return keys[slot] == key; });
}

TEST(SlotIndex, FindsWhatWasInsertedAndNotErased) {
  SlotIndex index;
  std::vector<Key128> keys;
  for (uint32_t slot = 0; slot < 20'000; ++slot) {
    keys.push_back({slot, uint64_t{slot} * slot});
    index.Insert(SlotIndex::Hash(keys.back()), slot);
  }
  for (uint32_t slot = 0; slot < keys.size(); slot += 3) index.Erase(SlotIndex::Hash(keys[slot]), slot);
  for (uint32_t slot = 0; slot < keys.size(); ++slot)
    ASSERT_EQ(slot % 3 == 0 ? kNoSlot : slot, Find(index, keys, keys[slot])) << slot;
}

// Keys that met under the hash before it was keyed: low ^ high * constant is the same for all. A client that could make its
// writer keys or policy versions meet would turn each look-up into a walk over all of them.
TEST(SlotIndex, ClientsCannotMakeTheirKeysMeet) {
  std::set<uint64_t> structured, sequential;
  for (uint64_t i = 0; i < 10'000; ++i) {
    structured.insert(SlotIndex::Hash({42 ^ (i * 0x9e3779b97f4a7c15), i}));
    sequential.insert(SlotIndex::Hash({i, 0}));
    sequential.insert(SlotIndex::Hash({0, i + 1}));
  }
  EXPECT_EQ(10'000u, structured.size());
  EXPECT_EQ(20'000u, sequential.size());
  // Nor the parts of the hash that the index uses: of 10,000 marks and 256 parts, none holds many.
  std::vector<int> parts(256);
  for (const uint64_t hash : structured) ++parts[hash >> 56];
  for (int count : parts) EXPECT_LT(count, 100);
}

}  // namespace
}  // namespace replay::server
