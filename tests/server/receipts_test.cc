#include "server/receipts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace replay::server {
namespace {

const Key128 kWriter{1, 2}, kOther{3, 4}, kThird{5, 6};

std::string Look(Receipts* receipts, Key128 writer, uint64_t sequence, uint64_t acknowledged = 0) {
  Receipt receipt;
  switch (receipts->Look(writer, sequence, acknowledged, &receipt)) {
    case Receipts::Answer::kNew:
      return "new";
    case Receipts::Answer::kDuplicate:
      return "first " + std::to_string(receipt.first_item) + "+" + std::to_string(receipt.count);
    case Receipts::Answer::kExpired:
      return "expired";
    case Receipts::Answer::kTooMany:
      return "too many";
  }
  return "?";
}

std::string Store(Receipts* receipts, Key128 writer, uint64_t sequence, uint64_t acknowledged = 0) {
  std::string answer = Look(receipts, writer, sequence, acknowledged);
  if (answer == "new") receipts->Record(writer, sequence, {100 * sequence, 1});
  return answer;
}

TEST(Receipts, ARepeatGetsTheFirstReceipt) {
  Receipts receipts(10, 10);
  EXPECT_EQ("new", Store(&receipts, kWriter, 1));
  EXPECT_EQ("first 100+1", Store(&receipts, kWriter, 1));
  EXPECT_EQ("new", Store(&receipts, kOther, 1));
}

TEST(Receipts, AWriterIsKnownFromTheFirstLookWhateverBecameOfIt) {
  Receipts receipts(10, 10);
  EXPECT_EQ("expired", Look(&receipts, kWriter, 2));
  EXPECT_EQ("new", Look(&receipts, kWriter, 1));  // refused or timed out: never recorded
  EXPECT_EQ("new", Store(&receipts, kWriter, 2));
  EXPECT_EQ("new", Store(&receipts, kWriter, 1));  // retried later
  EXPECT_EQ("first 100+1", Look(&receipts, kWriter, 1));
}

TEST(Receipts, TheWindowTakesRequestsInAnyOrder) {
  Receipts receipts(10, 4);
  EXPECT_EQ("new", Store(&receipts, kWriter, 1));
  EXPECT_EQ("new", Store(&receipts, kWriter, 4));
  EXPECT_EQ("new", Store(&receipts, kWriter, 2));
  EXPECT_EQ("too many", Store(&receipts, kWriter, 5));
  EXPECT_EQ("new", Store(&receipts, kWriter, 5, 1));
  EXPECT_EQ("new", Store(&receipts, kWriter, 3));
  for (uint64_t sequence = 2; sequence <= 5; ++sequence)
    EXPECT_EQ("first " + std::to_string(100 * sequence) + "+1", Look(&receipts, kWriter, sequence));
}

TEST(Receipts, WhatWasAcknowledgedIsExpired) {
  Receipts receipts(10, 10);
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) Store(&receipts, kWriter, sequence);
  EXPECT_EQ("first 500+1", Look(&receipts, kWriter, 5, 4));
  EXPECT_EQ("expired", Look(&receipts, kWriter, 4));
  EXPECT_EQ("expired", Look(&receipts, kWriter, 0));
  EXPECT_EQ(1u, receipts.receipt_count());
}

TEST(Receipts, TheLeastRecentlyUsedWriterIsForgottenAndTold) {
  Receipts receipts(2, 10);
  Store(&receipts, kWriter, 1);
  Store(&receipts, kOther, 1);
  Look(&receipts, kWriter, 1);
  Store(&receipts, kThird, 1);
  EXPECT_EQ(2u, receipts.writer_count());
  EXPECT_EQ("expired", Look(&receipts, kOther, 2));
  EXPECT_EQ("first 100+1", Look(&receipts, kWriter, 1));
}

TEST(Receipts, TooManyReceiptsForgetOtherWritersWhole) {
  Receipts receipts(10, 4, 6);
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) Store(&receipts, kWriter, sequence);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) Store(&receipts, kOther, sequence);
  EXPECT_EQ(3u, receipts.receipt_count());
  EXPECT_EQ("expired", Look(&receipts, kWriter, 5));
  EXPECT_EQ("first 200+1", Look(&receipts, kOther, 2));
}

TEST(Receipts, AgreeWithAPlainMapOverRandomTraffic) {
  constexpr uint64_t kWindow = 50;
  Receipts receipts(100, kWindow);
  struct Model {
    uint64_t acknowledged = 0;
    std::map<uint64_t, uint64_t> stored;
    bool known = false;
  };
  std::map<uint64_t, Model> writers;
  std::mt19937_64 random(17);
  for (int step = 0; step < 200'000; ++step) {
    const uint64_t which = 1 + random() % 20;
    Model& model = writers[which];
    const uint64_t sequence = model.known ? model.acknowledged + random() % (kWindow + 3) : 1 + random() % 2;
    const uint64_t acknowledged = random() % 4 ? 0 : model.acknowledged + random() % 20;
    std::string expected;
    if (!model.known && sequence != 1) {
      expected = "expired";
    } else {
      model.known = true;
      model.acknowledged = std::max(model.acknowledged, acknowledged);
      model.stored.erase(model.stored.begin(), model.stored.upper_bound(model.acknowledged));
      const auto at = model.stored.find(sequence);
      expected = sequence <= model.acknowledged            ? "expired"
                 : sequence > model.acknowledged + kWindow ? "too many"
                 : at == model.stored.end()                ? "new"
                                                           : "first " + std::to_string(at->second) + "+1";
      if (expected == "new") model.stored[sequence] = 100 * sequence;
    }
    ASSERT_EQ(expected, Store(&receipts, {which, which}, sequence, acknowledged)) << "step " << step;
  }
  uint64_t count = 0;
  for (const auto& [which, model] : writers) count += model.stored.size();
  EXPECT_EQ(count, receipts.receipt_count());
}

TEST(Receipts, AWriterThatAcknowledgesCostsLittleHoweverMuchItSends) {
  Receipts receipts(1000, kMaxReceiptsPerWriter);
  for (uint64_t sequence = 1; sequence <= 8000; ++sequence) Store(&receipts, kWriter, sequence);
  EXPECT_GT(receipts.memory_bytes(), 8000u * 24);
  for (uint64_t sequence = 8001; sequence <= 20'000; ++sequence) Store(&receipts, kWriter, sequence, sequence - 1);
  EXPECT_EQ(1u, receipts.receipt_count());
  EXPECT_LT(receipts.memory_bytes(), 40'000u);
}

}  // namespace
}  // namespace replay::server
