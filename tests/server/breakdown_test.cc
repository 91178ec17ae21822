#include "server/breakdown.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using fake::Batch;

// "math 2 of 3, 1 withheld, deleted 1": live of inserted; what is 0 is left out.
std::string Describe(const BreakdownRow& row) {
  std::string text = row.name + " " + std::to_string(row.live) + " of " + std::to_string(row.inserted);
  if (row.withheld > 0) text += ", " + std::to_string(row.withheld) + " withheld";
  for (size_t reason = 0; reason < kRemoveReasons; ++reason)
    if (row.removed[reason] > 0)
      text += ", " + std::string(ToString(static_cast<RemoveReason>(reason))) + " " + std::to_string(row.removed[reason]);
  return text;
}
// The rows in which anything happened.
std::string Describe(const std::vector<BreakdownRow>& rows) {
  std::string text;
  for (const BreakdownRow& row : rows) {
    const std::string described = Describe(row);
    if (described != row.name + " 0 of 0") text += (text.empty() ? "" : "; ") + described;
  }
  return text;
}

BufferOptions Holding(uint64_t capacity_items) {
  BufferOptions options;
  options.capacity_items = capacity_items;
  return options;
}

struct Fixture {
  explicit Fixture(BufferOptions options = {}) : buffer("b", options, PolicyVersions::Empty()) {}
  ~Fixture() { buffer.CheckInvariants(); }

  void Insert(fake::Trajectory trajectory) {
    if (trajectory.id.empty()) trajectory.id = "t" + std::to_string(++last_id);
    InsertResult result;
    Batch batch;
    batch.Add(trajectory);
    ASSERT_TRUE(buffer.Insert(batch.Request(), &result).done());
  }
  std::string Sources() const { return Describe(buffer.Stats().sources); }
  std::string Lengths() const { return Describe(buffer.Stats().lengths); }
  std::string Draws() const { return Describe(buffer.Stats().draws); }

  Buffer buffer;
  SampleResult sampled;
  int last_id = 0;
};

std::vector<std::string> NamesOf(const std::vector<BreakdownRow>& rows) {
  std::vector<std::string> names;
  for (const BreakdownRow& row : rows) names.push_back(row.name);
  return names;
}

TEST(Breakdown, NamesEveryBucketOfLengthsAndDrawsFromTheStart) {
  const BufferStats stats = Fixture().buffer.Stats();
  EXPECT_EQ((std::vector<std::string>{"1-128", "129-256", "257-512", "513-1024", "1025-2048", "2049-4096", "4097-8192",
                                      "8193-16384", "16385-32768", "32769-65536", "65537+"}),
            NamesOf(stats.lengths));
  EXPECT_EQ((std::vector<std::string>{"0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256", "257+"}),
            NamesOf(stats.draws));
  EXPECT_TRUE(stats.sources.empty());
}

TEST(Breakdown, ALengthFallsIntoTheBucketThatNamesIt) {
  for (uint32_t edge = 128; edge <= 65536; edge *= 2) {
    Fixture f;
    f.Insert({.tokens = edge});
    f.Insert({.tokens = edge + 1});
    const std::string below = edge == 128 ? "1" : std::to_string(edge / 2 + 1);
    const std::string above = edge == 65536 ? "65537+" : std::to_string(edge + 1) + "-" + std::to_string(2 * edge);
    EXPECT_EQ(below + "-" + std::to_string(edge) + " 1 of 1; " + above + " 1 of 1", f.Lengths());
  }
  Fixture f;
  f.Insert({.tokens = 1});
  f.Insert({.tokens = kMaxTokens});
  EXPECT_EQ("1-128 1 of 1; 65537+ 1 of 1", f.Lengths());
}

TEST(Breakdown, RemovalsAreCountedByReasonForSourceLengthAndDraws) {
  BufferOptions options = Holding(2);
  options.selector = SelectorKind::kFifo;
  options.max_draws = 3;
  Fixture f(options);
  f.Insert({.id = "a", .tokens = 100, .source = "math"});
  f.Insert({.id = "b", .tokens = 200, .source = "code"});
  for (int draw = 0; draw < 3; ++draw) ASSERT_TRUE(f.buffer.Sample({.count = 1}, &f.sampled).done());
  f.Insert({.id = "c", .tokens = 300, .source = "math"});
  f.Insert({.id = "d", .tokens = 300, .source = "math"});
  ASSERT_TRUE(f.buffer.Sample({.count = 1}, &f.sampled).done());
  ASSERT_TRUE(f.buffer.Delete("c"));
  EXPECT_EQ("math 1 of 3, max_draws 1, deleted 1; code 0 of 1, capacity 1", f.Sources());
  EXPECT_EQ("1-128 0 of 1, max_draws 1; 129-256 0 of 1, capacity 1; 257-512 1 of 2, deleted 1", f.Lengths());
  EXPECT_EQ("0 0 of 0, capacity 1; 1 0 of 0, deleted 1; 3-4 0 of 0, max_draws 1", f.Draws());
}

TEST(Breakdown, ManyDrawsFallIntoTheBucketThatNamesThem) {
  std::vector<std::string> rows;
  for (const uint32_t draws : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 256u, 257u, 1000u}) {
    Fixture f;
    f.Insert({.id = "a"});
    for (uint32_t i = 0; i < draws; ++i) ASSERT_TRUE(f.buffer.Sample({.count = 1}, &f.sampled).done());
    f.buffer.Delete("a");
    rows.push_back(std::to_string(draws) + ": " + f.Draws().substr(0, f.Draws().find(' ')));
  }
  EXPECT_EQ((std::vector<std::string>{"0: 0", "1: 1", "2: 2", "3: 3-4", "4: 3-4", "5: 5-8", "8: 5-8", "9: 9-16", "256: 129-256",
                                      "257: 257+", "1000: 257+"}),
            rows);
}

TEST(Breakdown, WithheldIsWhatTheLastSampleCouldNotDraw) {
  BufferOptions options;
  options.max_staleness = 5;
  Fixture f(options);
  f.Insert({.version = 10, .tokens = 100, .source = "math"});
  f.Insert({.version = 10, .tokens = 200, .source = "code"});
  f.Insert({.version = 20, .tokens = 300, .source = "math"});
  EXPECT_EQ("math 2 of 2; code 1 of 1", f.Sources()) << "nobody has asked for a batch";
  ASSERT_TRUE(f.buffer.Sample({.count = 1, .step = 12}, &f.sampled).done());  // one is newer
  EXPECT_EQ("math 2 of 2, 1 withheld; code 1 of 1", f.Sources());
  EXPECT_EQ("1-128 1 of 1; 129-256 1 of 1; 257-512 1 of 1, 1 withheld", f.Lengths());
  ASSERT_TRUE(f.buffer.Sample({.count = 1, .step = 21}, &f.sampled).done());  // two are too stale
  EXPECT_EQ("math 2 of 2, 1 withheld; code 1 of 1, 1 withheld", f.Sources());
  ASSERT_TRUE(f.buffer.Sample({.count = 1, .step = 30}, &f.sampled).waits());  // all are, and it waits
  EXPECT_EQ("math 2 of 2, 2 withheld; code 1 of 1, 1 withheld", f.Sources());
  f.Insert({.version = 29, .source = "code"});
  EXPECT_EQ("math 2 of 2, 2 withheld; code 2 of 2, 1 withheld", f.Sources());
}

TEST(Breakdown, WhatIsOfAnOlderEpochIsWithheld) {
  Fixture f;
  f.Insert({.version = 1, .source = "math"});
  f.Insert({.epoch = 1, .version = 1, .source = "math"});
  PolicyVersion published;
  published.run_id = "run";
  published.epoch = 1;
  published.version = published.step = 1;
  std::string error;
  f.buffer.OnPublish(PolicyVersions::Empty()->Publish(published, &error));
  ASSERT_TRUE(f.buffer.Sample({.count = 1}, &f.sampled).done());
  EXPECT_EQ("math 2 of 2, 1 withheld", f.Sources());
}

TEST(Breakdown, TheSourceAfterSixtyThreeIsCountedWithAllOthers) {
  Fixture f;
  f.Insert({});  // "" is one of them
  for (int i = 2; i <= 63; ++i) f.Insert({.source = "s" + std::to_string(i)});
  EXPECT_EQ(63u, f.buffer.Stats().sources.size());
  f.Insert({.source = "s64"});
  f.Insert({.source = "s65"});
  f.Insert({.source = "s63"});
  const std::vector<BreakdownRow> rows = f.buffer.Stats().sources;
  ASSERT_EQ(64u, rows.size());
  EXPECT_EQ(" 1 of 1", Describe(rows[0]));
  EXPECT_EQ("s63 2 of 2", Describe(rows[62]));
  EXPECT_EQ("(other) 2 of 2", Describe(rows[63]));
}

TEST(Breakdown, ASourceThatIsCalledOtherHasNoSecondRow) {
  Fixture f;
  f.Insert({.source = "(other)"});
  for (int i = 0; i < 70; ++i) f.Insert({.source = "s" + std::to_string(i)});
  const std::vector<BreakdownRow> rows = f.buffer.Stats().sources;
  int others = 0;
  for (const BreakdownRow& row : rows) others += row.name == "(other)";
  EXPECT_EQ(1, others);
  EXPECT_EQ("(other) 10 of 10", Describe(rows.back()));  // that one, and 9 of 70: 61 have names beside "" and it
}

// Each row grows from 5 sources to 64 while cohorts hold items; the invariants compare every row with the items.
TEST(Breakdown, KeepsEachCohortsRowWhileSourcesAndCohortsAreAdded) {
  Fixture f(Holding(150));
  for (int i = 0; i < 600; ++i) {
    f.Insert({.version = i / 7, .tokens = 1u << (i % 18), .source = "s" + std::to_string(i % (i / 8 + 1))});
    if (i % 50 == 0) f.buffer.CheckInvariants();
  }
}

TEST(Breakdown, HoldsThreeHundredBytesACohortAtMost) {
  Fixture f(Holding(2000));
  for (int i = 0; i < 100; ++i) f.Insert({.source = "s" + std::to_string(i)});
  const uint64_t before = f.buffer.Stats().index_bytes;
  for (int i = 0; i < 1000; ++i) f.Insert({.version = 1 + i});
  // 115 bytes an item, 70 a cohort, both up to doubled by their growth.
  EXPECT_LT(f.buffer.Stats().index_bytes - before, 1000 * 2 * (300 + 115 + 70));
}

// A group is drawn or not as a whole, by its oldest version.
TEST(Breakdown, WhereGroupsAreTheUnitAMemberIsWithheldWithItsGroup) {
  BufferOptions options = Holding(2);
  options.unit = Unit::kGroup;
  Fixture f(options);
  const auto insert = [&](const std::string& group, int64_t first, int64_t second) {
    Batch batch;
    batch.Add({.id = group + "0", .version = first, .source = "math", .group = group, .group_size = 2});
    batch.Add({.id = group + "1", .version = second, .tokens = 200, .source = "math", .group = group, .group_size = 2});
    batch.facts[1].index_in_group = 1;
    InsertResult result;
    ASSERT_TRUE(f.buffer.Insert(batch.Request(), &result).done());
  };
  insert("a", 10, 2);
  insert("b", 10, 20);
  SampleRequest request;
  request.count = 1;
  request.step = 12;
  request.max_staleness = 5;
  ASSERT_TRUE(f.buffer.Sample(request, &f.sampled).done());  // group a is too stale
  EXPECT_EQ("math 4 of 4, 2 withheld", f.Sources());
  EXPECT_EQ("1-128 2 of 2, 1 withheld; 129-256 2 of 2, 1 withheld", f.Lengths());
  insert("c", 30, 30);
  EXPECT_EQ("math 4 of 6, 2 withheld, capacity 2", f.Sources());
}

}  // namespace
}  // namespace replay::server
