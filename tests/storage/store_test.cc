#include "storage/store.h"

#include <gtest/gtest.h>

namespace replay {
namespace {

Frame FrameOf(uint64_t size, uint8_t fill) {
  Frame frame = Frame::Allocate(size);
  std::memset(frame.mutable_data(), fill, size);
  return frame;
}

TEST(Store, KeepsAFrameBySlotAndCountsItsBytes) {
  Store store;
  store.Put(5, FrameOf(64, 7));
  ASSERT_TRUE(store.Find(5));
  EXPECT_EQ(64u, store.Find(5).size());
  EXPECT_EQ(7, store.Find(5).data()[63]);
  EXPECT_EQ(64u, store.frame_bytes());
}

TEST(Store, CountsTheNewBytesWhenASlotIsUsedAgain) {
  Store store;
  store.Put(0, FrameOf(64, 1));
  store.Put(0, FrameOf(24, 2));
  EXPECT_EQ(24u, store.frame_bytes());
  EXPECT_EQ(2, store.Find(0).data()[0]);
}

TEST(Store, GivesTheBytesBackToTheBudgetWhenTheLastOwnerGoes) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.TryReserve(64));
  Store store;
  store.Put(0, Frame::Allocate(64, &budget));
  Frame held = store.Find(0);  // A reply under way.
  store.Remove(0);
  EXPECT_EQ(0u, store.frame_bytes());
  EXPECT_EQ(64, budget.used_bytes());
  held = Frame();
  EXPECT_EQ(0, budget.used_bytes());
}

TEST(Store, SaysThatMemorySurvivesNothing) { EXPECT_EQ(AcknowledgementLevel::kMemory, Store().level()); }

}  // namespace
}  // namespace replay
