// A buffer with parts: every rank draws from a part of its own. (server/buffer_sample.cc, plans.cc)

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "schema/limits.h"
#include "server/buffer.h"
#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct PartsTest : testing::Test {
  PartsTest() {
    options.capacity_items = 12;
    options.parts = 3;
    options.seed = 5;
    options.selector = SelectorKind::kUniformDistinct;
    options.views = {{.name = "good", .filter = "correct = yes", .selector = SelectorKind::kFifo}};
  }
  void Make() {
    ASSERT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, PolicyVersions::Empty());
  }
  void Insert(int count) {
    fake::Batch batch;
    for (int i = 0; i < count; ++i, ++inserted)
      batch.Add({.id = std::to_string(inserted + 1),
                 .correct = inserted % 2 ? Outcome::kCorrect : Outcome::kIncorrect,
                 .tag = inserted + 1});
    InsertResult result;
    ASSERT_TRUE(buffer->Insert(batch.Request(), &result).done());
    buffer->CheckInvariants();
  }
  SampleRequest Ask(uint32_t rank, uint32_t count) { return {.count = count, .rank = rank, .world_size = options.parts}; }
  // The numbers drawn, in order; or why not.
  std::string Draw(const SampleRequest& request) {
    SampleResult result;
    const Verdict verdict = buffer->Sample(request, &result);
    if (verdict.waits()) return "waits: " + buffer->WhySampleWaits(request);
    if (!verdict.done()) return verdict.message;
    buffer->CheckInvariants();
    std::string text;
    for (const DrawnItem& draw : result.draws) {
      EXPECT_EQ(draw.item, fake::TagOf(result.frames[draw.frame]));
      text += std::to_string(draw.item) + " ";
    }
    return text + (result.planned ? "again" : "");
  }

  BufferOptions options;
  std::unique_ptr<Buffer> buffer;
  uint64_t inserted = 0;
};

TEST_F(PartsTest, AreBalancedAtInsertAndUnderFifoEachHoldsItsShare) {
  Make();
  for (int insert = 0; insert < 20; ++insert) {
    Insert(1 + insert % 3);
    const uint64_t live = buffer->live();
    for (const auto& [name, members] : buffer->Stats().views) {
      if (name == "good") continue;
      EXPECT_GE(members, live / 3) << name;
      EXPECT_LE(members, (live + 2) / 3) << name;
    }
  }
  EXPECT_THAT(buffer->Stats().views, ElementsAre(Pair("part 0", 4), Pair("part 1", 4), Pair("part 2", 4), Pair("good", 6)));
}

TEST_F(PartsTest, EachRankDrawsFromItsOwnWithTheSelectorAndTheViewsOfTheBuffer) {
  options.selector = SelectorKind::kFifo;
  Make();
  Insert(12);
  EXPECT_EQ("3 6 9 12 ", Draw(Ask(0, 4)));
  EXPECT_EQ("1 4 7 10 ", Draw(Ask(1, 4)));
  EXPECT_EQ("2 5 8 11 ", Draw(Ask(2, 4)));
  SampleRequest good = Ask(1, 2);
  good.view = "good";
  EXPECT_EQ("4 10 ", Draw(good));
  SampleRequest composed = Ask(2, 3);
  composed.parts = {{.count = 2, .view = "good"}, {.count = 1}};
  EXPECT_EQ("2 8 2 ", Draw(composed));
}

TEST_F(PartsTest, ReportTheProbabilityWithinThePart) {
  options.selector = SelectorKind::kUniform;
  Make();
  Insert(11);  // parts of 3, 4 and 4
  SampleResult result;
  for (const auto& [rank, size] : {std::pair(0u, 3.0), std::pair(1u, 4.0), std::pair(2u, 4.0)}) {
    ASSERT_TRUE(buffer->Sample(Ask(rank, 50), &result).done());
    std::set<uint64_t> items;
    for (const DrawnItem& draw : result.draws) {
      EXPECT_EQ(1 / size, draw.probability);
      EXPECT_EQ(rank, draw.item % 3);
      items.insert(draw.item);
    }
    EXPECT_EQ(size, static_cast<double>(items.size()));
  }
}

TEST_F(PartsTest, NeedARankAndAsManyRanksAsParts) {
  Make();
  Insert(6);
  const char* expected = "the buffer has parts = 3, so world_size must be that and rank below it";
  EXPECT_THAT(Draw({.count = 1}), HasSubstr(expected));
  EXPECT_THAT(Draw({.count = 1, .rank = 3, .world_size = 3}),
              HasSubstr("rank is 3 and world_size 3: " + std::string(expected)));
  EXPECT_THAT(Draw({.count = 1, .rank = 0, .world_size = 2}), HasSubstr(expected));
  EXPECT_THAT(Draw({.count = 1, .step = 1, .consumer = "c", .rank = 0, .world_size = 2}), HasSubstr(expected));
}

TEST_F(PartsTest, AKeyedSampleGivesEachRankSlotsOfItsOwnPart) {
  options.selector = SelectorKind::kFifo;
  Make();
  Insert(12);
  const auto ask = [](uint32_t rank) {
    SampleRequest request{.count = 3, .step = 7, .consumer = "trainer", .rank = rank, .world_size = 3};
    request.parts = {{.count = 1, .view = "good", .or_next = true}, {.count = 2}};
    return request;
  };
  EXPECT_EQ("4 1 4 ", Draw(ask(1)));
  Insert(6);
  EXPECT_EQ("6 3 6 again", Draw(ask(0)));
  EXPECT_EQ("2 2 5 again", Draw(ask(2)));
  EXPECT_EQ("4 1 4 again", Draw(ask(1)));
  EXPECT_EQ(9u, buffer->Stats().drawn);
  SampleResult result;
  ASSERT_TRUE(buffer->Sample(ask(2), &result).done());
  EXPECT_THAT(result.part_counts, ElementsAre(1, 2));
}

TEST_F(PartsTest, APartThatIsTooSmallSaysWhichAndLetsPacedInsertsGoOn) {
  options.replay_ratio = 1;
  options.min_size = 4;
  options.max_draws_per_sample = 4;
  options.max_insert = 1;
  Make();
  for (int i = 0; i < 4; ++i) Insert(1);
  EXPECT_EQ("waits: 1 of 2 items of view part 0 may be drawn", Draw(Ask(0, 2)));
  for (int i = 0; i < 8; ++i) Insert(1);  // more than pacing would otherwise let in
  SampleResult result;
  ASSERT_TRUE(buffer->Sample(Ask(0, 2), &result).done());
  for (const DrawnItem& draw : result.draws) EXPECT_EQ(0u, draw.item % 3);
}

TEST_F(PartsTest, HaveWholeGroupsWhereTheseAreTheUnit) {
  options.unit = Unit::kGroup;
  options.parts = 2;
  options.selector = SelectorKind::kFifo;
  options.views = {};
  Make();
  for (uint32_t group = 0; group < 6; ++group) {  // numbers 1 … 6, of 1, 2 or 3 trajectories
    fake::Batch batch;
    for (uint32_t i = 0; i < 1 + group % 3; ++i, ++inserted)
      batch.Add({.id = std::to_string(inserted + 1),
                 .tag = inserted + 1,
                 .group = "g" + std::to_string(group),
                 .group_size = 1 + group % 3});
    InsertResult result;
    ASSERT_TRUE(buffer->Insert(batch.Request(), &result).done());
  }
  EXPECT_THAT(buffer->Stats().views, ElementsAre(Pair("part 0", 3), Pair("part 1", 3)));
  EXPECT_EQ("2 3 7 10 11 12 ", Draw(Ask(0, 3)));
  EXPECT_EQ("1 4 5 6 8 9 ", Draw(Ask(1, 3)));
  SampleRequest keyed = Ask(1, 3);
  keyed.step = 1;
  keyed.consumer = "trainer";
  keyed.parts = {{.count = 1}, {.count = 2}};
  SampleResult result;
  ASSERT_TRUE(buffer->Sample(keyed, &result).done());
  EXPECT_THAT(result.unit_sizes, ElementsAre(1, 1, 3));
  EXPECT_THAT(result.part_counts, ElementsAre(1, 4));
  keyed.rank = 0;
  ASSERT_TRUE(buffer->Sample(keyed, &result).done());
  EXPECT_TRUE(result.planned);
  EXPECT_THAT(result.unit_sizes, ElementsAre(2, 2, 1));
  EXPECT_THAT(result.part_counts, ElementsAre(2, 3));
  EXPECT_THAT(result.candidates, ElementsAre(3, 3)) << "groups";
}

TEST_F(PartsTest, TellHowManyItemsOfARanksPartCouldBeDrawn) {
  options.selector = SelectorKind::kUniform;
  Make();
  Insert(10);  // 3, 4 and 3 of them in parts 0, 1 and 2
  SampleRequest keyed = Ask(1, 2);
  SampleResult result;
  ASSERT_TRUE(buffer->Sample(keyed, &result).done());
  EXPECT_THAT(result.candidates, ElementsAre(4));
  EXPECT_EQ(0.25, result.draws[0].probability);
  keyed.step = 1;
  keyed.consumer = "trainer";
  for (const uint32_t rank : {1, 2, 1}) {
    keyed.rank = rank;
    ASSERT_TRUE(buffer->Sample(keyed, &result).done());
    EXPECT_THAT(result.candidates, ElementsAre(rank == 1 ? 4 : 3));
  }
}

TEST_F(PartsTest, CanBeAltered) {
  options.selector = SelectorKind::kFifo;
  Make();
  Insert(12);
  options.parts = 2;
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_EQ("2 4 6 8 10 12 ", Draw(Ask(0, 6)));
  options.selector = SelectorKind::kLifo;
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_EQ("11 9 7 ", Draw(Ask(1, 3)));
  options.parts = 1;
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_EQ("12 11 10 ", Draw({.count = 3}));
  EXPECT_THAT(buffer->Stats().views, ElementsAre(Pair("good", 6)));
  buffer->CheckInvariants();
}

TEST_F(PartsTest, AreRefusedBeyondTheItemsAndTheViewsThatABufferMayHave) {
  const auto error = [](uint64_t capacity, uint32_t parts, size_t views = 0) {
    BufferOptions refused;
    refused.capacity_items = capacity;
    refused.parts = parts;
    for (size_t i = 0; i < views; ++i) refused.views.push_back({.name = "v" + std::to_string(i), .filter = "draws = 0"});
    return CheckOptions(&refused);
  };
  EXPECT_EQ("parts is 5: it must be 1 to 128 and at most capacity_items, 4", error(4, 5));
  EXPECT_EQ("", error(4, 4));
  EXPECT_EQ("", error(1000, 128));
  EXPECT_EQ("parts is 129: it must be 1 to 128 and at most capacity_items, 1000", error(1000, 129));
  EXPECT_EQ("", error(1000, 32, 3));
  EXPECT_EQ("parts is 33: with 3 views parts * (1 + views) is 132: at most 128 are allowed", error(1000, 33, 3));
}

}  // namespace
}  // namespace replay::server
