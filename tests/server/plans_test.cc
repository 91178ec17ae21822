#include "server/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct PlansTest : testing::Test {
  PlansTest() {
    options.capacity_items = 20;
    options.selector = SelectorKind::kUniformDistinct;
    options.seed = 3;
    options.views = {{.name = "even", .filter = "reward = 1", .selector = SelectorKind::kUniformDistinct}};
    Make();
    Insert(0, 20);
  }
  void Make() {
    ASSERT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, PolicyVersions::Empty());
  }
  void Insert(int first, int count) {
    fake::Batch batch;
    for (int i = first; i < first + count; ++i)
      batch.Add({.id = std::to_string(i), .reward = static_cast<float>(i % 2), .tag = static_cast<uint64_t>(i)});
    InsertResult inserted;
    ASSERT_TRUE(buffer->Insert(batch.Request(), &inserted).done());
  }
  static SampleRequest Ask(int64_t step, uint32_t rank, uint32_t world_size = 2, uint32_t count = 4) {
    SampleRequest request;
    request.count = count;
    request.step = step;
    request.consumer = "trainer";
    request.rank = rank;
    request.world_size = world_size;
    return request;
  }
  // "4 11 7 2 (new)" with the frames' own numbers.
  std::string Draw(const SampleRequest& request) {
    SampleResult result;
    const Verdict verdict = buffer->Sample(request, &result);
    if (!verdict.done()) return verdict.waits() ? "waits" : std::string(ToString(verdict.code)) + ": " + verdict.message;
    std::string text;
    for (const DrawnItem& draw : result.draws) {
      EXPECT_EQ(draw.item, fake::TagOf(result.frames[draw.frame]) + 1);
      text += std::to_string(draw.item) + " ";
    }
    return text + (result.planned ? "(planned)" : "(new)");
  }

  BufferOptions options;
  std::unique_ptr<Buffer> buffer;
};

TEST_F(PlansTest, RanksGetDisjointSlotsOfOneDrawWhichCountsOnce) {
  SampleResult first, second;
  ASSERT_TRUE(buffer->Sample(Ask(1, 0), &first).done());
  EXPECT_FALSE(first.planned);
  EXPECT_EQ(8u, buffer->Stats().drawn);
  ASSERT_TRUE(buffer->Sample(Ask(1, 1), &second).done());
  EXPECT_TRUE(second.planned);
  EXPECT_EQ(8u, buffer->Stats().drawn);
  EXPECT_EQ(1u, buffer->Stats().samples);
  std::set<uint64_t> items;
  for (const SampleResult* result : {&first, &second}) {
    EXPECT_EQ(4u, result->draws.size());
    for (const DrawnItem& draw : result->draws) items.insert(draw.item);
  }
  EXPECT_EQ(8u, items.size()) << "uniform_distinct over both ranks";
}

TEST_F(PlansTest, AskingAgainGivesTheSameBatchAlsoWhenItsItemsHaveLeft) {
  std::string drawn = Draw(Ask(1, 0)), other = Draw(Ask(1, 1));
  EXPECT_THAT(drawn, HasSubstr("(new)"));
  Insert(20, 20);  // All that was drawn from is evicted.
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(drawn.replace(drawn.find('('), std::string::npos, "(planned)"), Draw(Ask(1, 0)));
    EXPECT_EQ(other, Draw(Ask(1, 1)));
  }
  EXPECT_EQ(8u, buffer->Stats().drawn);
  buffer->CheckInvariants();
}

TEST_F(PlansTest, TheNewestFourStepsAreKeptAndOlderOnesRefused) {
  for (int64_t step = 1; step <= 5; ++step) Draw(Ask(step * 10, 0));
  EXPECT_EQ(
      "plan_expired: consumer \"trainer\", step 10: the plans of its newest 4 steps are kept, from step 20 on; another "
      "consumer "
      "name draws anew",
      Draw(Ask(10, 0)));
  EXPECT_THAT(Draw(Ask(5, 0)), HasSubstr("plan_expired")) << "never drawn, but it could not be kept";
  EXPECT_THAT(Draw(Ask(25, 0)), HasSubstr("(new)")) << "between two that are kept, instead of the oldest of them";
  EXPECT_THAT(Draw(Ask(20, 0)), HasSubstr("plan_expired"));
  EXPECT_THAT(Draw(Ask(30, 0)), HasSubstr("(planned)"));
  SampleRequest other = Ask(10, 0);
  other.consumer = "evaluation";
  EXPECT_THAT(Draw(other), HasSubstr("(new)"));
}

TEST_F(PlansTest, TheSameKeyWithOtherArgumentsIsRefused) {
  Draw(Ask(1, 0));
  EXPECT_EQ("key_reused: consumer \"trainer\", step 1: it was drawn with other arguments, count 4 for each of 2 ranks",
            Draw(Ask(1, 0, 2, 3)));
  EXPECT_THAT(Draw(Ask(1, 0, 4)), HasSubstr("key_reused"));
  SampleRequest view = Ask(1, 0);
  view.view = "even";
  EXPECT_THAT(Draw(view), HasSubstr("key_reused"));
  EXPECT_THAT(Draw(Ask(1, 1)), HasSubstr("(planned)"));
}

TEST_F(PlansTest, AKeyThatCannotBeIsRefusedWithTheFieldAndTheRule) {
  SampleRequest without_step = Ask(1, 0);
  without_step.step = {};
  EXPECT_THAT(Draw(without_step), HasSubstr("step is missing"));
  EXPECT_THAT(Draw(Ask(1, 2)), HasSubstr("rank is 2: it must be below world_size, 2"));
  EXPECT_THAT(Draw(Ask(1, 0, 0)), HasSubstr("world_size is 0: with a consumer it must be 1 to 4096"));
  EXPECT_THAT(Draw(Ask(1, 0, 4096, 17)),
              HasSubstr("count is 17 for each of 4096 ranks: at most 65536 draws in all are allowed"));
  EXPECT_THAT(Draw(Ask(1, 0, 3, 7)), HasSubstr("draws different items and the buffer holds at most 20"));
  SampleRequest wraps = Ask(1, 0, 2, 1);  // twice the part is 2 in 32 bits, as twice the count
  wraps.parts = {{.count = (1u << 31) + 1}};
  EXPECT_THAT(Draw(wraps), HasSubstr("count is 1: the parts have 2147483649"));
  EXPECT_EQ(0u, buffer->Stats().drawn);
}

TEST_F(PlansTest, AComposedBatchIsDealtPartByPart) {
  SampleRequest request = Ask(1, 0, 2, 3);
  request.parts = {{.count = 2, .view = "even"}, {.count = 1}};
  SampleResult first, second;
  ASSERT_TRUE(buffer->Sample(request, &first).done());
  request.rank = 1;
  ASSERT_TRUE(buffer->Sample(request, &second).done());
  for (const SampleResult* result : {&first, &second}) {
    EXPECT_THAT(result->part_counts, ElementsAre(2, 1));
    EXPECT_THAT(result->candidates, ElementsAre(10, 20));
    EXPECT_EQ(0u, result->draws[0].item % 2);
    EXPECT_EQ(0.1, result->draws[0].probability);
    EXPECT_EQ(0.05, result->draws[2].probability);
  }
}

TEST_F(PlansTest, PacingCountsAllRanksAtTheFirst) {
  options.replay_ratio = 1;
  options.max_draws_per_sample = options.max_insert = 8;
  options.min_size = 8;
  options.tolerance = 10;
  Make();
  Insert(0, 8);  // the baseline
  EXPECT_EQ(WaitReason::kNone, buffer->WhatSampleWaitsFor(Ask(1, 0)));
  EXPECT_THAT(Draw(Ask(1, 0)), HasSubstr("(new)"));
  EXPECT_EQ("waits", Draw(Ask(2, 0)));
  EXPECT_EQ(WaitReason::kPacing, buffer->WhatSampleWaitsFor(Ask(2, 0)));
  EXPECT_THAT(buffer->WhySampleWaits(Ask(2, 0)), HasSubstr("balance"));
  EXPECT_EQ("", buffer->WhySampleWaits(Ask(1, 1)));
  EXPECT_THAT(Draw(Ask(1, 1)), HasSubstr("(planned)"));
  EXPECT_THAT(Draw(Ask(3, 0, 3)), HasSubstr("at most 8 draws in all are allowed (max_draws_per_sample)"));
}

TEST_F(PlansTest, OnlyTheConsumersAskedForLastAreKept) {
  for (uint32_t i = 0; i <= kMaxConsumers; ++i) {
    SampleRequest request = Ask(1, 0, 1, 1);
    request.consumer = "c" + std::to_string(i);
    EXPECT_THAT(Draw(request), HasSubstr("(new)"));
  }
  SampleRequest request = Ask(1, 0, 1, 1);
  request.consumer = "c1";
  EXPECT_THAT(Draw(request), HasSubstr("(planned)"));
  request.consumer = "c0";
  EXPECT_THAT(Draw(request), HasSubstr("(new)")) << "it had been forgotten";
}

}  // namespace
}  // namespace replay::server
