#include "server/pacing.h"

#include <gtest/gtest.h>

#include <random>

namespace replay::server {
namespace {

BufferOptions Options(double replay_ratio, double tolerance, uint64_t min_size = 1) {
  BufferOptions options;
  options.replay_ratio = replay_ratio;
  options.tolerance = tolerance;
  options.min_size = min_size;
  options.max_draws_per_sample = 4;
  options.max_insert = 2;
  return options;
}

TEST(Pacing, NobodyWaitsWithoutAReplayRatio) {
  Pacing pacing{BufferOptions{}};
  pacing.OnDraw(1000, 0);
  EXPECT_FALSE(pacing.DrawMustWait(1000, 0));
  EXPECT_FALSE(pacing.InsertMustWait(1000, 1000));
  EXPECT_EQ(0, pacing.balance());
}

TEST(Pacing, WhatFillsTheBufferUpIsTheBaseline) {
  Pacing pacing(Options(2, 4, 3));
  EXPECT_FALSE(pacing.OnInsert(2, 0));
  EXPECT_FALSE(pacing.OnInsert(2, 2));
  EXPECT_EQ(0, pacing.balance());
  EXPECT_TRUE(pacing.OnInsert(1, 4));
  EXPECT_EQ(2, pacing.balance());
  EXPECT_FALSE(pacing.OnInsert(1, 2));  // fell below min_size again
  EXPECT_EQ(2, pacing.balance());
}

TEST(Pacing, BothSidesStayInsideTheBand) {
  Pacing pacing(Options(2, 4));
  EXPECT_FALSE(pacing.DrawMustWait(4, 0));
  EXPECT_TRUE(pacing.DrawMustWait(5, 0));
  EXPECT_FALSE(pacing.InsertMustWait(2, 1));
  EXPECT_TRUE(pacing.InsertMustWait(3, 1));
  EXPECT_EQ("balance 0 - 5 draws would fall below -tolerance -4: 1 more inserts are needed", pacing.WhyDrawWaits(5, 0));
  EXPECT_EQ("balance 0 + 3 inserts * replay_ratio 2 would exceed tolerance 4: 2 more draws are needed",
            pacing.WhyInsertWaits(3, 1));
  EXPECT_EQ("", pacing.WhyDrawWaits(4, 0));
  EXPECT_EQ("", pacing.WhyInsertWaits(2, 1));
}

TEST(Pacing, InsertsNeverWaitBelowMinSize) {
  Pacing pacing(Options(2, 4, 10));
  pacing.OnInsert(2, 10);
  EXPECT_TRUE(pacing.InsertMustWait(1, 10));
  EXPECT_FALSE(pacing.InsertMustWait(1, 9));
}

TEST(Pacing, EitherSideCanBeLeftUnbounded) {
  BufferOptions options = Options(2, 4);
  options.pace_draws = false;
  EXPECT_FALSE(Pacing(options).DrawMustWait(1000, 0));
  options.pace_inserts = false;
  EXPECT_FALSE(Pacing(options).InsertMustWait(1000, 1));
}

TEST(Pacing, GivenBackDrawsAreCreditedAtMostOnce) {
  Pacing pacing(Options(1, 4));
  pacing.OnDraw(4, 0);
  EXPECT_TRUE(pacing.DrawMustWait(1, 0));
  EXPECT_FALSE(pacing.DrawMustWait(1, 1));
  EXPECT_TRUE(pacing.DrawMustWait(5, 100));  // only 4 were drawn
  pacing.OnDraw(4, 100);
  EXPECT_EQ(-4, pacing.balance());
  pacing.OnDraw(0, 100);
  EXPECT_EQ(0, pacing.balance());
  pacing.OnDraw(0, 100);
  EXPECT_EQ(0, pacing.balance());
}

TEST(Pacing, ADeleteOfAnUndrawnItemTakesItsInsertBack) {
  Pacing pacing(Options(2, 4));
  pacing.OnInsert(2, 1);
  EXPECT_TRUE(pacing.InsertMustWait(1, 3));
  pacing.OnDeleteOfUndrawn();
  EXPECT_EQ(2, pacing.balance());
  EXPECT_FALSE(pacing.InsertMustWait(1, 3));
}

TEST(Pacing, AlteringKeepsTheBalanceInsideTheNewBand) {
  Pacing pacing(Options(2, 40));
  pacing.OnInsert(10, 1);
  pacing.OnDraw(5, 0);
  pacing.Alter(Options(8, 40));
  EXPECT_EQ(15, pacing.balance());
  pacing.OnInsert(1, 1);
  EXPECT_EQ(23, pacing.balance());
  pacing.Alter(Options(8, 20));
  EXPECT_EQ(20, pacing.balance());
  pacing.Alter(Options(0, 0));
  EXPECT_EQ(0, pacing.balance());
}

// A generator and a trainer with fixed request sizes, each going whenever it may: one of them always may.
TEST(Pacing, NeverDeadlocksInAnyAcceptedConfiguration) {
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int round = 0; accepted < 2000; ++round) {
    BufferOptions options;
    options.capacity_items = 1 + random() % 300;
    options.replay_ratio = static_cast<double>(1 + random() % 40) / (1 + random() % 13);
    options.max_draws_per_sample = static_cast<uint32_t>(1 + random() % 100);
    options.max_insert = static_cast<uint32_t>(1 + random() % 50);
    options.min_size = 1 + random() % 100;
    options.tolerance = random() % 3 == 0 ? 0 : static_cast<double>(random() % 400) / 3;
    options.pace_draws = random() % 8 != 0;
    options.pace_inserts = random() % 8 != 0;
    if (!CheckOptions(&options).empty() || options.max_insert > options.capacity_items) continue;
    ++accepted;
    Pacing pacing(options);
    uint64_t live = 0;
    for (int step = 0; step < 300; ++step) {
      const auto count = static_cast<uint32_t>(1 + random() % options.max_draws_per_sample);
      const auto inserts = static_cast<uint32_t>(1 + random() % options.max_insert);
      const bool may_draw = live >= options.min_size && !pacing.DrawMustWait(count, 0);
      const bool may_insert = !pacing.InsertMustWait(inserts, live);
      ASSERT_TRUE(may_draw || may_insert) << "round " << round << " step " << step << " balance " << pacing.balance();
      if (may_insert && (!may_draw || random() % 2)) {
        pacing.OnInsert(inserts, live);
        live = std::min<uint64_t>(live + inserts, options.capacity_items);
      } else {
        pacing.OnDraw(count, 0);
        if (random() % 50 == 0) live /= 2;  // drawn out
      }
      ASSERT_TRUE(!options.pace_draws || pacing.balance() >= -options.tolerance) << pacing.balance();
    }
  }
}

}  // namespace
}  // namespace replay::server
