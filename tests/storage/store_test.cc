#include "storage/store.h"

#include <gtest/gtest.h>

namespace replay {
namespace {

Frame FrameOf(uint64_t size, uint8_t fill) {
  Frame frame = Frame::Allocate(size);
  std::memset(frame.mutable_data(), fill, size);
  return frame;
}

TEST(Store, KeepsAFrameInItsPlaceAndCountsItsBytes) {
  Store store;
  Store::Place one, other;
  store.Put(&one, FrameOf(64, 7));
  store.Put(&other, FrameOf(24, 2));
  ASSERT_TRUE(store.Find(one));
  EXPECT_EQ(64u, store.Find(one).size());
  EXPECT_EQ(64u, store.SizeOf(one));
  EXPECT_EQ(7, store.Find(one).data()[63]);
  EXPECT_EQ(88u, store.frame_bytes());
}

TEST(Store, APlaceMayBeUsedAgain) {
  Store store;
  Store::Place place;
  store.Put(&place, FrameOf(64, 1));
  store.Remove(&place);
  EXPECT_FALSE(store.Find(place));
  EXPECT_EQ(0u, store.SizeOf(place));
  EXPECT_EQ(0u, store.frame_bytes());
  store.Put(&place, FrameOf(24, 2));
  EXPECT_EQ(24u, store.frame_bytes());
  EXPECT_EQ(2, store.Find(place).data()[0]);
}

TEST(Store, GivesTheBytesBackToTheBudgetWhenTheLastOwnerGoes) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.TryReserve(64));
  Store store;
  Store::Place place;
  store.Put(&place, Frame::Allocate(64, &budget));
  Frame held = store.Find(place);  // A reply under way.
  store.Remove(&place);
  EXPECT_EQ(0u, store.frame_bytes());
  EXPECT_EQ(64, budget.used_bytes());
  held = Frame();
  EXPECT_EQ(0, budget.used_bytes());
}

}  // namespace
}  // namespace replay
