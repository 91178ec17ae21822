#include "server/leases.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/buffer_fixture.h"

namespace replay::server {
namespace {

using test::BufferFixture;

BufferOptions Queue(SelectorKind selector = SelectorKind::kFifo) {
  BufferOptions options;
  options.capacity_items = 8;
  options.selector = selector;
  options.max_draws = 1;
  options.lease_ms = 1'000;
  return options;
}

void Fill(BufferFixture* b, int count) {
  for (int i = 1; i <= count; ++i) ASSERT_EQ("done", b->Insert({{.id = "t" + std::to_string(i)}}));
}

TEST(Leases, EndByNumberByItemByTimeAndByHolder) {
  Leases leases;
  const std::vector<Leases::Unit> two = {{.slot = 1, .number = 1, .first_item = 1, .count = 2},
                                         {.slot = 2, .number = 2, .first_item = 3, .count = 1}};
  const uint64_t first = leases.Open(7, 100, two), second = leases.Open(7, 50, two), third = leases.Open(8, 100, two);
  EXPECT_EQ(0u, leases.CloseExpired(49).size());
  EXPECT_EQ(2u, leases.CloseExpired(50).size());
  EXPECT_TRUE(leases.Close(second, {}).empty());
  const std::vector<Leases::Unit> by_item = leases.Close(first, std::array<uint64_t, 2>{2, 9});  // 9 is of nobody
  ASSERT_EQ(1u, by_item.size());
  EXPECT_EQ(1u, by_item[0].slot);
  EXPECT_EQ(1u, leases.CloseOf(7).size());
  EXPECT_EQ(1u, leases.size());
  EXPECT_EQ(2u, leases.Close(third, {}).size());
  EXPECT_EQ(0u, leases.size());
}

TEST(ConsumeMode, WhatIsDrawnIsHeldAndLeavesOnceAcknowledged) {
  BufferFixture b(Queue());
  Fill(&b, 4);
  EXPECT_EQ("1 2", b.Sample(2));
  const uint64_t lease = b.sampled.lease;
  EXPECT_NE(0u, lease);
  EXPECT_EQ("| 1!*1 2!*1 3 4 positive=0 fresh=4 drawn=2", b.Describe());
  EXPECT_EQ("3 4", b.Sample(2));
  EXPECT_EQ("2", b.Acknowledge(lease));
  EXPECT_EQ("| 3!*1 4!*1 positive=0 fresh=2 drawn=4", b.Describe());
  EXPECT_EQ(2u, b.buffer->Stats().removed[static_cast<size_t>(RemoveReason::kMaxDraws)]);
  EXPECT_EQ("not_found: lease " + std::to_string(lease) +
                " is not open: it has been acknowledged, has expired, or its connection has ended",
            b.Acknowledge(lease));
}

TEST(ConsumeMode, LifoIsTheNewestFirstAmongThoseNotHeld) {
  BufferFixture b(Queue(SelectorKind::kLifo));
  Fill(&b, 3);
  EXPECT_EQ("3", b.Sample(1));
  ASSERT_EQ("done", b.Insert({{.id = "t4"}}));
  EXPECT_EQ("4 2", b.Sample(2));
}

TEST(ConsumeMode, ReturnOnExpiry) {
  BufferFixture b(Queue());
  Fill(&b, 3);
  b.buffer->OnTime(10'000);
  EXPECT_EQ("1 2", b.Sample(2));
  EXPECT_FALSE(b.buffer->OnTime(10'999));
  EXPECT_TRUE(b.buffer->OnTime(11'000));
  EXPECT_EQ("| 1 2 3 positive=0 fresh=3 drawn=2", b.Describe());
  EXPECT_EQ(1u, b.buffer->Stats().expired_leases);
  EXPECT_EQ("1 2 3", b.Sample(3));  // in their old order
}

TEST(ConsumeMode, ReturnOnDisconnect) {
  BufferFixture b(Queue());
  Fill(&b, 4);
  EXPECT_EQ("1", b.Sample({.count = 1, .holder = 5}));
  EXPECT_EQ("2", b.Sample({.count = 1, .holder = 6}));
  EXPECT_TRUE(b.buffer->EndLeasesOf(5));
  EXPECT_FALSE(b.buffer->EndLeasesOf(5));
  EXPECT_EQ("| 1 2!*1 3 4 positive=0 fresh=4 drawn=2", b.Describe());
}

TEST(ConsumeMode, PartOfALeaseMayBeAcknowledgedAndPartGivenBack) {
  BufferFixture b(Queue());
  Fill(&b, 3);
  EXPECT_EQ("1 2 3", b.Sample(3));
  const uint64_t lease = b.sampled.lease;
  EXPECT_EQ("1", b.Acknowledge(lease, {2}));
  EXPECT_EQ("1", b.Acknowledge(lease, {3}, /*give_back=*/true));
  EXPECT_EQ("| 1!*1 3 positive=0 fresh=2 drawn=3", b.Describe());
  EXPECT_EQ("not_found", b.Acknowledge(lease, {2}).substr(0, 9));
}

TEST(ConsumeMode, WithoutMaxDrawsAnAcknowledgedItemMayBeDrawnAgain) {
  BufferOptions options = Queue(SelectorKind::kUniformDistinct);
  options.max_draws = 0;
  BufferFixture b(options);
  Fill(&b, 1);
  EXPECT_EQ("1", b.Sample(1));
  EXPECT_EQ("waits min_size", b.Sample(1));
  EXPECT_EQ("1", b.Acknowledge(b.sampled.lease == 0 ? 1 : b.sampled.lease));
  EXPECT_EQ("1", b.Sample(1));
  EXPECT_EQ(2u, b.sampled.draws[0].draw_count);
}

TEST(ConsumeMode, EmptyForNowIsToldApartFromClosed) {
  BufferFixture b(Queue());
  Fill(&b, 2);
  EXPECT_EQ("1", b.Sample(1));
  const uint64_t lease = b.sampled.lease;
  EXPECT_EQ("waits min_size", b.Sample(2));
  EXPECT_EQ("1 of 2 items present; 1 more are held under leases", b.buffer->WhySampleWaits({.count = 2}));
  BufferOptions options = b.buffer->options();
  options.closed = true;
  ASSERT_EQ("", b.buffer->Alter(options));
  EXPECT_EQ("waits min_size", b.Sample(2));  // what is held may come back
  EXPECT_EQ("1", b.Acknowledge(lease));
  EXPECT_EQ("closed: buffer \"b\" is closed: nothing more is inserted; 1 of 2 items present", b.Sample(2));
  EXPECT_EQ("2", b.Sample(1));
  EXPECT_EQ("1", b.Acknowledge(b.sampled.lease));
  EXPECT_EQ("closed: buffer \"b\" is closed: nothing more is inserted; 0 of 1 items present", b.Sample(1));
  EXPECT_EQ("closed: buffer \"b\" is closed: nothing more is inserted", b.Insert({{.id = "late"}}));
  options.closed = false;
  ASSERT_EQ("", b.buffer->Alter(options));
  EXPECT_EQ("waits min_size", b.Sample(1));
  EXPECT_EQ("done", b.Insert({{.id = "late"}}));
}

TEST(ConsumeMode, AClosedBufferDrawsItsRestWhateverMinSizeSays) {
  BufferOptions options = Queue();
  options.min_size = 4;
  BufferFixture b(options);
  Fill(&b, 2);
  EXPECT_EQ("waits min_size", b.Sample(1));
  options = b.buffer->options();
  options.closed = true;
  ASSERT_EQ("", b.buffer->Alter(options));
  EXPECT_EQ("1 2", b.Sample(2));
}

TEST(ConsumeMode, WhatIsHeldMayLeaveMeanwhile) {
  BufferFixture b(Queue());
  Fill(&b, 2);
  EXPECT_EQ("1 2", b.Sample(2));
  const uint64_t lease = b.sampled.lease;
  EXPECT_EQ(1u, b.buffer->Delete("t1"));
  ASSERT_EQ("done", b.Insert({{.id = "in its slot"}}));
  EXPECT_EQ("1", b.Acknowledge(lease));
  EXPECT_EQ("| 3 positive=0 fresh=1 drawn=2", b.Describe());
}

TEST(ConsumeMode, GroupsAreHeldWhole) {
  BufferOptions options = Queue();
  options.unit = Unit::kGroup;
  BufferFixture b(options);
  ASSERT_EQ("done", b.Insert("a", {0, 1}));
  ASSERT_EQ("done", b.Insert("b", {0, 1, 2}));
  EXPECT_EQ("1 2", b.Sample(1));
  const uint64_t lease = b.sampled.lease;
  EXPECT_EQ("3 4 5", b.Sample(1));
  EXPECT_EQ("2", b.Acknowledge(lease, {2}));  // any member stands for its group
  EXPECT_EQ("| 2x3!*1 positive=0 fresh=1 drawn=5", b.Describe());
}

TEST(ConsumeMode, DrawsThatComeBackAreCreditedToPacing) {
  BufferOptions options = Queue();
  options.max_draws = 0;
  options.replay_ratio = 1;
  options.max_draws_per_sample = options.max_insert = 2;
  options.min_size = 2;
  BufferFixture b(options);
  Fill(&b, 4);
  const double before = b.buffer->Stats().pacing_balance;
  EXPECT_EQ("1 2", b.Sample(2));
  EXPECT_EQ(before - 2, b.buffer->Stats().pacing_balance);
  EXPECT_EQ("2", b.Acknowledge(b.sampled.lease, {}, true));
  EXPECT_EQ(before, b.buffer->Stats().pacing_balance);
}

TEST(ConsumeMode, ALeaseNeedsASelectorOfDifferentItemsAndNoConsumer) {
  BufferOptions options = Queue(SelectorKind::kUniform);
  EXPECT_EQ("lease: selector uniform may draw an item twice in a batch; with leases it must be uniform_distinct, lifo or fifo",
            CheckOptions(&options));
  options = Queue();
  options.lease_ms = 20;
  EXPECT_EQ("lease is 20 ms: it must be 0 (none) or 100 to 86400000", CheckOptions(&options));
  options = Queue();
  options.views = {{.name = "v", .filter = "correct = yes", .selector = SelectorKind::kPrioritized}};
  EXPECT_EQ("lease: views[0].selector prioritized", CheckOptions(&options).substr(0, 36));
  BufferFixture b(Queue());
  Fill(&b, 1);
  EXPECT_EQ("invalid_argument: consumer is \"c\": the buffer has a lease, and what is held cannot be planned for a consumer",
            b.Sample({.count = 1, .step = 1, .consumer = "c", .world_size = 1}));
}

}  // namespace
}  // namespace replay::server
