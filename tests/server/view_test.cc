#include "server/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tests/support/fake_trajectory.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/selector_fixture.h"

namespace replay::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

BufferOptions WithViews(std::vector<ViewOptions> views, uint64_t capacity = 100) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.views = std::move(views);
  options.seed = 7;
  EXPECT_EQ("", CheckOptions(&options));
  return options;
}

void Insert(Buffer* buffer, std::vector<fake::Trajectory> trajectories) {
  fake::Batch batch;
  for (const auto& trajectory : trajectories) batch.Add(trajectory);
  InsertResult result;
  const Verdict verdict = buffer->Insert(batch.Request(), &result);
  ASSERT_TRUE(verdict.done()) << verdict.message;
}

std::vector<uint64_t> Drawn(Buffer* buffer, const SampleRequest& request) {
  SampleResult result;
  const Verdict verdict = buffer->Sample(request, &result);
  EXPECT_TRUE(verdict.done()) << verdict.message << ToString(verdict.reason);
  buffer->CheckInvariants();
  std::vector<uint64_t> items;
  for (const DrawnItem& draw : result.draws) items.push_back(draw.item);
  return items;
}

SampleRequest From(const std::string& view, uint32_t count) { return {.count = count, .view = view}; }

TEST(View, HasExactlyTheItemsForWhichItsFilterHolds) {
  Buffer buffer("b",
                WithViews({{.name = "positives", .filter = "correct = yes", .selector = SelectorKind::kFifo},
                           {.name = "short", .filter = "tokens < 20, source = math", .selector = SelectorKind::kLifo}}),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1", .correct = Outcome::kCorrect, .tokens = 30, .source = "math"},
                   {.id = "2", .correct = Outcome::kIncorrect, .tokens = 10, .source = "math"},
                   {.id = "3", .correct = Outcome::kCorrect, .tokens = 10, .source = "code"},
                   {.id = "4", .correct = Outcome::kUnknown, .tokens = 19, .source = "math"}});
  EXPECT_THAT(buffer.Stats().views, ElementsAre(Pair("positives", 2), Pair("short", 2)));
  EXPECT_THAT(Drawn(&buffer, From("positives", 2)), ElementsAre(1, 3));
  EXPECT_THAT(Drawn(&buffer, From("short", 2)), ElementsAre(4, 2));
  buffer.Delete("1");
  EXPECT_THAT(Drawn(&buffer, From("positives", 1)), ElementsAre(3));
}

TEST(View, FollowsWhatUpdatesAndDrawsChange) {
  Buffer buffer("b",
                WithViews({{.name = "fresh", .filter = "draws < 2", .selector = SelectorKind::kFifo},
                           {.name = "good", .filter = "reward >= 0.5, priority > 0", .selector = SelectorKind::kFifo}}),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1"}, {.id = "2", .reward = 1}, {.id = "3", .reward = 0.5}});
  EXPECT_THAT(Drawn(&buffer, From("fresh", 2)), ElementsAre(1, 2));
  EXPECT_THAT(Drawn(&buffer, From("good", 2)), ElementsAre(2, 3));
  EXPECT_THAT(buffer.Stats().views, ElementsAre(Pair("fresh", 2), Pair("good", 2)));  // 2 was drawn twice
  uint32_t revision;
  buffer.Update({.id = "1", .reward = 0.75}, &revision);
  buffer.Update({.id = "3", .priority = 0.0f}, &revision);
  EXPECT_THAT(Drawn(&buffer, From("good", 2)), ElementsAre(1, 2)) << "by number, whoever joined last";
}

TEST(View, ADrawFromItHasTheExactProbability) {
  for (const SelectorKind kind : {SelectorKind::kUniform, SelectorKind::kUniformDistinct, SelectorKind::kEpoch,
                                  SelectorKind::kUnusedFirst, SelectorKind::kPrioritized}) {
    SCOPED_TRACE(ToString(kind));
    Buffer buffer("b", WithViews({{.name = "v", .filter = "correct = yes", .selector = kind}}), PolicyVersions::Empty());
    for (int i = 0; i < 20; ++i)
      Insert(&buffer, {{.id = std::to_string(i),
                        .correct = i % 4 == 0 ? Outcome::kCorrect : Outcome::kIncorrect,
                        .priority = static_cast<float>(1 + i)}});
    // Items 1, 5, 9, 13, 17 with priorities 1, 5, 9, 13, 17.
    std::map<uint64_t, double> expected, seen;
    constexpr int kDraws = 20'000;
    for (int i = 0; i < kDraws; ++i) {
      SampleResult result;
      ASSERT_TRUE(buffer.Sample(From("v", 1), &result).done());
      const DrawnItem& draw = result.draws[0];
      ASSERT_EQ(1, draw.item % 4);
      const double priority_share = static_cast<double>(draw.item) / 45;
      const bool exhausts = kind == SelectorKind::kEpoch || kind == SelectorKind::kUnusedFirst;  // then P is of what is left
      EXPECT_TRUE(exhausts || std::abs(draw.probability - (kind == SelectorKind::kPrioritized ? priority_share : 0.2)) < 1e-12);
      ++seen[draw.item];
      expected[draw.item] = kDraws * (kind == SelectorKind::kPrioritized ? priority_share : 0.2);
    }
    double statistic = 0;
    for (const auto& [item, count] : expected) statistic += (seen[item] - count) * (seen[item] - count) / count;
    EXPECT_GT(test::ChiSquareTail(statistic, 4), 1e-6);
  }
}

TEST(View, ACapOfDrawsCountsThoseBeforeTheSampleSoThatRepeatsWithinABatchPassIt) {
  Buffer buffer("b", WithViews({{.name = "young", .filter = "correct = yes, draws < 2"}}), PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1", .correct = Outcome::kCorrect}, {.id = "2"}, {.id = "3"}});
  SampleResult result;
  ASSERT_TRUE(buffer.Sample(From("young", 5), &result).done());
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(1u, result.draws[i].item);
    EXPECT_EQ(i + 1, result.draws[i].draw_count);
    EXPECT_EQ(1, result.draws[i].probability);
  }
  EXPECT_THAT(buffer.Stats().views, ElementsAre(Pair("young", 0)));
  EXPECT_EQ(WaitReason::kFilter, buffer.Sample(From("young", 1), &result).reason);
}

// Also where another part draws the same items: its draws count for the cap, but only the view keeps to it.
TEST(View, ACapOfDrawsIsNeverPassedByADistinctSelector) {
  for (const bool composed : {false, true}) {
    SCOPED_TRACE(composed);
    Buffer buffer("b", WithViews({{.name = "young", .filter = "draws < 2", .selector = SelectorKind::kUniformDistinct}}),
                  PolicyVersions::Empty());
    for (int i = 0; i < 40; ++i) Insert(&buffer, {{.id = std::to_string(i)}});
    SampleRequest request = From("young", 3);
    if (composed) request = {.count = 5, .parts = {{.count = 3, .view = "young"}, {.count = 2}}};
    std::map<uint64_t, uint32_t> of_view, of_all;
    SampleResult result;
    Verdict verdict;
    bool passed_by_the_other = false;
    for (int batch = 0; batch < 40 && (verdict = buffer.Sample(request, &result)).done(); ++batch) {
      for (size_t i = 0; i < result.draws.size(); ++i) {
        const DrawnItem& draw = result.draws[i];
        EXPECT_EQ(++of_all[draw.item], draw.draw_count);
        if (i >= 3) {
          passed_by_the_other |= draw.draw_count > 2;
          continue;
        }
        EXPECT_LE(draw.draw_count, 2u) << draw.item;
        EXPECT_LE(++of_view[draw.item], 2u) << draw.item;
      }
    }
    EXPECT_EQ(WaitReason::kFilter, verdict.reason);
    EXPECT_EQ(composed, passed_by_the_other);
    uint64_t below = 0;
    for (uint64_t item = 1; item <= 40; ++item) below += of_all[item] < 2;
    EXPECT_LT(below, 3u) << "the view has what is below its cap";
    EXPECT_THAT(buffer.Stats().views, ElementsAre(Pair("young", below)));
    buffer.CheckInvariants();
  }
}

TEST(View, WaitsWithTheReasonWhileItLacksItems) {
  Buffer buffer("b", WithViews({{.name = "positives", .filter = "correct = yes", .selector = SelectorKind::kUniformDistinct}}),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1", .version = 5, .correct = Outcome::kCorrect}, {.id = "2", .version = 5}});
  SampleResult result;
  EXPECT_EQ(WaitReason::kFilter, buffer.Sample(From("positives", 2), &result).reason);
  EXPECT_EQ("1 of 2 items of view positives may be drawn", buffer.WhySampleWaits(From("positives", 2)));
  SampleRequest early = From("positives", 1);
  early.step = 4;
  EXPECT_EQ(WaitReason::kStaleness, buffer.Sample(early, &result).reason) << "both are newer than the step";
  const Verdict verdict = buffer.Sample(From("negatives", 1), &result);
  EXPECT_EQ(ErrorCode::kInvalidArgument, verdict.code);
  EXPECT_EQ("view is \"negatives\": the buffer declares only positives", verdict.message);
}

TEST(View, IsFilledAnewWhenAlteredWhileItemsLive) {
  Buffer buffer("b", WithViews({}), PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1", .correct = Outcome::kCorrect}, {.id = "2"}, {.id = "3", .correct = Outcome::kCorrect}});
  BufferOptions options = buffer.options();
  options.views = {{.name = "p", .filter = "correct = yes", .selector = SelectorKind::kFifo}};
  ASSERT_EQ("", buffer.Alter(options));
  EXPECT_THAT(Drawn(&buffer, From("p", 2)), ElementsAre(1, 3));
  options.views = {};
  ASSERT_EQ("", buffer.Alter(options));
  SampleResult result;
  EXPECT_EQ("view is \"p\": the buffer declares no view", buffer.Sample(From("p", 1), &result).message);
}

TEST(View, ReadsTagsFromTheFrame) {
  Buffer buffer("b", WithViews({{.name = "hard", .filter = "tag.level >= 3", .selector = SelectorKind::kFifo}}),
                PolicyVersions::Empty());
  for (const int64_t level : {1, 3, 5}) {
    Frame frame = replay::test::MakeTrajectory({.id = "level" + std::to_string(level), .edit = [level](auto trajectory) {
                                                  auto tags = trajectory.initTags(1);
                                                  tags[0].setName("level");
                                                  tags[0].setInteger(level);
                                                }});
    TrajectoryFacts facts;
    ASSERT_EQ("", ValidateTrajectory(frame.bytes(), {}, &facts));
    InsertResult result;
    InsertRequest request;
    request.frames = {&frame, 1};
    request.facts = {&facts, 1};
    ASSERT_TRUE(buffer.Insert(request, &result).done());
  }
  EXPECT_THAT(Drawn(&buffer, From("hard", 2)), ElementsAre(2, 3));
}

TEST(View, KnowsGroupsWithoutSpreadAlsoWhereMembersDoNotStandTogether) {
  Buffer buffer("b",
                WithViews({{.name = "telling", .filter = "zero_spread = no", .selector = SelectorKind::kFifo},
                           {.name = "flat", .filter = "zero_spread = yes", .selector = SelectorKind::kFifo}}),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "a0", .reward = 1, .group = "a", .group_size = 2},
                   {.id = "b0", .reward = 1, .group = "b", .group_size = 2},
                   {.id = "a1", .reward = 1, .group = "a", .group_size = 2},
                   {.id = "b1", .reward = 0, .group = "b", .group_size = 2},
                   {.id = "single"}});
  Insert(&buffer, {{.id = "c0", .group = "c", .group_size = 1}});
  EXPECT_THAT(Drawn(&buffer, From("flat", 3)), ElementsAre(1, 3, 6));
  EXPECT_THAT(Drawn(&buffer, From("telling", 3)), ElementsAre(2, 4, 5));
}

// --- Composed batches ------------------------------------------------------------------------------------------------------

TEST(ComposedBatch, DrawsEachPartFromItsViewWithItsProbability) {
  Buffer buffer("b", WithViews({{.name = "positives", .filter = "correct = yes"}}), PolicyVersions::Empty());
  for (int i = 0; i < 10; ++i)
    Insert(&buffer, {{.id = std::to_string(i), .correct = i < 4 ? Outcome::kCorrect : Outcome::kIncorrect}});
  SampleResult result;
  ASSERT_TRUE(buffer.Sample({.count = 8, .parts = {{.count = 3, .view = "positives"}, {.count = 5}}}, &result).done());
  EXPECT_THAT(result.part_counts, ElementsAre(3, 5));
  EXPECT_THAT(result.candidates, ElementsAre(4, 10));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(i < 3 ? 0.25 : 0.1, result.draws[i].probability);
  for (int i = 0; i < 3; ++i) EXPECT_LE(result.draws[i].item, 4u);
}

TEST(ComposedBatch, ShareOfPositivesIsThatAskedForAndTheRestIsUniform) {
  Buffer buffer("b", WithViews({{.name = "positives", .filter = "correct = yes"}}), PolicyVersions::Empty());
  for (int i = 0; i < 20; ++i)
    Insert(&buffer, {{.id = std::to_string(i), .correct = i < 5 ? Outcome::kCorrect : Outcome::kIncorrect}});
  // p = 1/4 from the positives: an item's share of draws is 1/4 * 1/5 + 3/4 * 1/20 if correct, else 3/4 * 1/20.
  std::map<uint64_t, double> seen;
  constexpr int kBatches = 5'000;
  for (int i = 0; i < kBatches; ++i)
    for (const uint64_t item : Drawn(&buffer, {.count = 8, .parts = {{.count = 2, .view = "positives"}, {.count = 6}}}))
      ++seen[item];
  double statistic = 0;
  for (uint64_t item = 1; item <= 20; ++item) {
    const double expected = kBatches * 8 * ((item <= 5 ? 0.05 : 0) + 0.0375);
    statistic += (seen[item] - expected) * (seen[item] - expected) / expected;
  }
  EXPECT_GT(test::ChiSquareTail(statistic, 19), 1e-6);
}

TEST(ComposedBatch, AnItemsShareOfDrawsIsTheMixtureOfWhatTheRepliesTell) {
  Buffer buffer("b",
                WithViews({{.name = "positives", .filter = "correct = yes"},
                           {.name = "long", .filter = "tokens >= 10", .selector = SelectorKind::kPrioritized}}),
                PolicyVersions::Empty());
  for (int i = 0; i < 12; ++i)  // 1 to 8 are correct, 5 to 12 long
    Insert(&buffer, {{.id = std::to_string(i),
                      .correct = i < 8 ? Outcome::kCorrect : Outcome::kIncorrect,
                      .priority = static_cast<float>(1 + i % 5),
                      .tokens = i < 4 ? 5u : 20u}});
  const std::vector<SamplePart> parts = {{.count = 3, .view = "positives"}, {.count = 5, .view = "long"}};
  constexpr int kBatches = 5'000, kCount = 8;
  std::map<std::pair<size_t, uint64_t>, double> told;  // p_k by part and item
  std::map<uint64_t, double> seen, mixture;
  for (int i = 0; i < kBatches; ++i) {
    SampleResult result;
    ASSERT_TRUE(buffer.Sample({.count = kCount, .parts = parts}, &result).done());
    for (size_t slot = 0; slot < kCount; ++slot) {
      const DrawnItem& draw = result.draws[slot];
      const auto [at, added] = told.insert({{slot < 3 ? 0 : 1, draw.item}, draw.probability});
      EXPECT_EQ(at->second, draw.probability);
      ++seen[draw.item];
    }
  }
  ASSERT_EQ(16u, told.size());
  double sum = 0;
  for (const auto& [of, probability] : told) {
    const double share = parts[of.first].count / double{kCount} * probability;
    mixture[of.second] += share;
    sum += share;
  }
  EXPECT_NEAR(1, sum, 1e-12);
  double statistic = 0;
  for (const auto& [item, share] : mixture) {
    const double expected = kBatches * kCount * share;
    statistic += (seen[item] - expected) * (seen[item] - expected) / expected;
  }
  EXPECT_EQ(12u, mixture.size());
  EXPECT_GT(test::ChiSquareTail(statistic, 11), 1e-6) << "chi-square " << statistic;
}

TEST(ComposedBatch, PartsThatLackItemsLeaveThemToTheNextIfTold) {
  Buffer buffer("b",
                WithViews({{.name = "positives", .filter = "correct = yes", .selector = SelectorKind::kUniformDistinct},
                           {.name = "none", .filter = "reward > 9"}}),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1", .correct = Outcome::kCorrect}, {.id = "2"}, {.id = "3", .correct = Outcome::kCorrect}});
  SampleRequest request{
      .count = 8,
      .parts = {
          {.count = 4, .view = "positives", .or_next = true}, {.count = 2, .view = "none", .or_next = true}, {.count = 2}}};
  SampleResult result;
  ASSERT_TRUE(buffer.Sample(request, &result).done());
  EXPECT_THAT(result.part_counts, ElementsAre(2, 0, 6));
  EXPECT_THAT(result.candidates, ElementsAre(2, 0, 3));
  EXPECT_EQ(8u, result.draws.size());
  EXPECT_EQ(8u, buffer.Stats().drawn);
  request.parts[1].or_next = false;
  EXPECT_EQ(WaitReason::kFilter, buffer.Sample(request, &result).reason);
  EXPECT_EQ("0 of 1 items of view none may be drawn", buffer.WhySampleWaits(request));
  EXPECT_EQ(8u, buffer.Stats().drawn) << "all parts or none";
}

TEST(ComposedBatch, FreshAndReplayedPartsDifferByStaleness) {
  Buffer buffer("b", WithViews({}), PolicyVersions::Empty());
  for (int i = 0; i < 10; ++i) Insert(&buffer, {{.id = std::to_string(i), .version = i}});
  SampleResult result;
  ASSERT_TRUE(
      buffer.Sample({.count = 40, .step = 9, .parts = {{.count = 20, .max_staleness = 1}, {.count = 20}}}, &result).done());
  std::set<uint64_t> fresh, all;
  for (int i = 0; i < 40; ++i) {
    (i < 20 ? fresh : all).insert(result.draws[i].item);
    EXPECT_EQ(i < 20 ? 0.5 : 0.1, result.draws[i].probability);
  }
  EXPECT_THAT(result.candidates, ElementsAre(2, 10));
  EXPECT_THAT(fresh, UnorderedElementsAre(9, 10));
  EXPECT_GT(all.size(), 4u);
}

// Versions 0 … 9 drawn at step 9: item i has staleness 10 - i, so that 2 … 6 are replayed and 7 … 10 fresh.
TEST(ComposedBatch, AReplayedPartLeavesTheFreshOnesToAnother) {
  for (int i = 0; i < 8; ++i) {
    const auto kind = static_cast<SelectorKind>(i);
    SCOPED_TRACE(ToString(kind));
    const double decay = kind == SelectorKind::kRecency ? 5 : 0;
    Buffer buffer("b",
                  WithViews({{.name = "fresh", .filter = "draws >= 0"},
                             {.name = "replayed", .filter = "draws >= 0", .selector = kind, .staleness_decay = decay}}),
                  PolicyVersions::Empty());
    for (int version = 0; version < 10; ++version) Insert(&buffer, {{.id = std::to_string(version), .version = version}});
    SampleResult result;
    ASSERT_TRUE(buffer
                    .Sample({.count = 9,
                             .step = 9,
                             .parts = {{.count = 4, .view = "fresh", .max_staleness = 3},
                                       {.count = 5, .view = "replayed", .max_staleness = 8, .min_staleness = 4}}},
                            &result)
                    .done());
    EXPECT_THAT(result.candidates, ElementsAre(4, 5));
    EXPECT_EQ(0u, result.withheld) << "what a part leaves out is not";
    double sum = 0;
    for (int staleness = 4; staleness <= 8; ++staleness) sum += decay > 0 ? std::exp(-staleness / decay) : 1;
    for (size_t at = 0; at < 9; ++at) {
      const DrawnItem& draw = result.draws[at];
      EXPECT_TRUE(at < 4 ? draw.item >= 7 : draw.item >= 2 && draw.item <= 6) << draw.item;
      const double weight = decay > 0 ? std::exp(-static_cast<double>(draw.staleness) / decay) : 1;
      const bool in_order = kind == SelectorKind::kLifo || kind == SelectorKind::kFifo;
      EXPECT_NEAR(at < 4 ? 0.25 : in_order ? 1 : weight / sum, draw.probability, 1e-12);
      if (at < 4 || !in_order) continue;
      EXPECT_EQ(kind == SelectorKind::kFifo ? at - 2 : 10 - at, draw.item);
    }
  }
}

TEST(ComposedBatch, AReplayedPartWithoutItemsWaitsOrLeavesThemToTheNext) {
  Buffer buffer("b", WithViews({}), PolicyVersions::Empty());
  for (int version = 0; version < 4; ++version) Insert(&buffer, {{.id = std::to_string(version), .version = version}});
  SampleRequest request{.count = 4, .step = 3, .parts = {{.count = 3, .min_staleness = 4}, {.count = 1, .max_staleness = 0}}};
  SampleResult result;
  EXPECT_EQ(WaitReason::kStaleness, buffer.Sample(request, &result).reason);
  EXPECT_EQ("0 of 1 items may be drawn; 4 are newer than step 3, fresher than min_staleness 4 or of an older epoch",
            buffer.WhySampleWaits(request));
  request.parts[0].or_next = true;
  ASSERT_TRUE(buffer.Sample(request, &result).done());
  EXPECT_THAT(result.part_counts, ElementsAre(0, 4));
  request.parts[0].or_next = false;
  request.step = 4;
  ASSERT_TRUE(buffer.Sample(request, &result).reason == WaitReason::kStaleness) << "the second part has none of step 4";
  request.parts[1].max_staleness = 1;
  ASSERT_TRUE(buffer.Sample(request, &result).done());
  EXPECT_THAT(result.candidates, ElementsAre(1, 1));
}

TEST(ComposedBatch, RefusesWhatCanNeverBeMetAndNamesThePart) {
  Buffer buffer("b",
                WithViews({{.name = "passes", .filter = "draws >= 0", .selector = SelectorKind::kEpoch},
                           {.name = "different", .filter = "draws >= 0", .selector = SelectorKind::kUniformDistinct}},
                          10),
                PolicyVersions::Empty());
  Insert(&buffer, {{.id = "1"}});
  const auto refused = [&](uint32_t count, std::vector<SamplePart> parts) {
    SampleRequest request;
    request.count = count;
    request.parts = std::move(parts);
    SampleResult result;
    const Verdict verdict = buffer.Sample(request, &result);
    EXPECT_EQ(ErrorCode::kInvalidArgument, verdict.code);
    return verdict.message;
  };
  EXPECT_EQ("count is 5: the parts have 4", refused(5, {{.count = 4}}));
  EXPECT_EQ("parts[1].count is 0: a part draws at least 1", refused(4, {{.count = 4}, {.count = 0}}));
  EXPECT_EQ("parts[1].view is \"x\": the buffer declares only passes, different",
            refused(5, {{.count = 4}, {.count = 1, .view = "x"}}));
  EXPECT_EQ("parts[0].or_next is set: there is no part behind it", refused(4, {{.count = 4, .or_next = true}}));
  EXPECT_EQ("parts[0].max_staleness is -1: it must not be negative", refused(4, {{.count = 4, .max_staleness = -1}}));
  EXPECT_EQ("parts[0].min_staleness is -1: it must not be negative", refused(4, {{.count = 4, .min_staleness = -1}}));
  EXPECT_EQ(
      "parts[0].min_staleness is 4: nothing could be drawn, since max_staleness of the part, the Sample or the buffer is 3",
      refused(4, {{.count = 4, .max_staleness = 3, .min_staleness = 4}}));
  EXPECT_EQ("parts[1].view is \"passes\", as that of parts[0]: selector epoch draws one part of a batch",
            refused(2, {{.count = 1, .view = "passes"}, {.count = 1, .view = "passes"}}));
  EXPECT_THAT(refused(12, {{.count = 11, .view = "different"}, {.count = 1}}),
              HasSubstr("parts[0].count is 11, but selector uniform_distinct draws different items"));
  EXPECT_THAT(refused(17, std::vector<SamplePart>(17, {.count = 1})), HasSubstr("parts has 17 entries: at most 16"));
  SampleResult result;
  EXPECT_EQ("view is \"passes\": with parts each of them names its own",
            buffer.Sample({.count = 1, .view = "passes", .parts = {{.count = 1}}}, &result).message);
}

}  // namespace
}  // namespace replay::server
