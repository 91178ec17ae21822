#include "server/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// A buffer whose rollouts are named "1", "2" … by their insertion numbers.
struct PromptsTest : testing::Test {
  void Make(uint32_t history, std::vector<ViewOptions> views = {}, uint64_t capacity = 100) {
    options.capacity_items = capacity;
    options.prompt_history = history;
    options.views = std::move(views);
    options.seed = 1;
    ASSERT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, PolicyVersions::Empty());
  }
  void Insert(int64_t index, std::vector<Outcome> outcomes, const std::string& source = "math") {
    fake::Batch batch;
    for (const Outcome outcome : outcomes)
      batch.Add({.id = std::to_string(++inserted),
                 .correct = outcome,
                 .reward = outcome == Outcome::kCorrect ? 1.0f : 0.25f,
                 .source = source,
                 .dataset_index = index});
    InsertResult result;
    ASSERT_TRUE(buffer->Insert(batch.Request(), &result).done());
    buffer->CheckInvariants();
  }
  void Update(const std::string& id, Outcome correct) {
    uint32_t revision;
    ASSERT_EQ(UpdateOutcome::kDone, buffer->Update({.id = id, .correct = correct}, &revision));
    buffer->CheckInvariants();
  }
  // "7: 2/3 of 4, 1.75; …": index: correct/scored of rollouts, sum of rewards.
  std::string History(const std::string& source = "math", int64_t after = -1, uint32_t limit = 100) {
    std::vector<PromptOutcomes> page;
    const bool more = buffer->History(source, after, limit, &page);
    std::string text;
    for (const PromptOutcomes& prompt : page)
      text += std::to_string(prompt.dataset_index) + ": " + std::to_string(prompt.correct) + "/" +
              std::to_string(prompt.scored) + " of " + std::to_string(prompt.rollouts) + ", " + NumberText(prompt.reward_sum) +
              "; ";
    return text + (more ? "more" : "end");
  }
  std::vector<uint64_t> All(const std::string& view) {
    std::set<uint64_t> items;
    for (const auto& [name, members] : buffer->Stats().views) {
      if (name != view || members == 0) continue;
      SampleResult result;
      EXPECT_TRUE(buffer->Sample({.count = static_cast<uint32_t>(members), .view = view}, &result).done());
      for (const DrawnItem& draw : result.draws) items.insert(draw.item);
    }
    return {items.begin(), items.end()};
  }

  static constexpr Outcome kYes = Outcome::kCorrect, kNo = Outcome::kIncorrect, kOpen = Outcome::kUnknown;
  BufferOptions options;
  std::unique_ptr<Buffer> buffer;
  uint64_t inserted = 0;
};

ViewOptions Of(const std::string& filter) {
  return {.name = "v", .filter = filter, .selector = SelectorKind::kUniformDistinct};
}

TEST_F(PromptsTest, CountTheRolloutsOfEachSourceAndIndex) {
  Make(10);
  Insert(7, {kYes, kNo, kOpen});
  Insert(0, {kYes});
  Insert(7, {kYes});
  Insert(7, {kNo}, "code");
  Insert(-1, {kYes});
  EXPECT_EQ("0: 1/1 of 1, 1; 7: 2/3 of 4, 2.5; end", History());
  EXPECT_EQ("7: 0/1 of 1, 0.25; end", History("code"));
  EXPECT_EQ("end", History("never seen"));
  EXPECT_EQ(3u, buffer->Stats().prompts);
}

TEST_F(PromptsTest, ComeInPagesInOrderOfTheirIndex) {
  Make(10);
  for (const int64_t index : {5, 1, 9, 3}) Insert(index, {kYes});
  Insert(2, {kYes}, "other");
  EXPECT_EQ("1: 1/1 of 1, 1; 3: 1/1 of 1, 1; more", History("math", -1, 2));
  EXPECT_EQ("5: 1/1 of 1, 1; 9: 1/1 of 1, 1; end", History("math", 3, 2));
  EXPECT_EQ("end", History("math", 9, 2));
}

TEST_F(PromptsTest, AreRememberedWhenTheirRolloutsHaveLeft) {
  Make(10, {}, 2);
  Insert(1, {kYes, kYes});
  Insert(2, {kNo, kNo});
  EXPECT_EQ("1: 2/2 of 2, 2; 2: 0/2 of 2, 0.5; end", History());
}

TEST_F(PromptsTest, ForgetTheOneInsertedIntoLeastRecentlyAndStartItAnew) {
  Make(2, {Of("attempts > 0")});
  Insert(1, {kYes});
  Insert(2, {kYes});
  Insert(1, {kYes});
  Insert(3, {kYes});  // forgets 2
  EXPECT_EQ("1: 2/2 of 2, 2; 3: 1/1 of 1, 1; end", History());
  EXPECT_THAT(All("v"), ElementsAre(1, 3, 4)) << "a forgotten prompt has no attempts";
  Insert(2, {kNo});  // forgets 1
  EXPECT_EQ("2: 0/1 of 1, 0.25; 3: 1/1 of 1, 1; end", History());
  EXPECT_THAT(All("v"), ElementsAre(4, 5)) << "what came before it was forgotten is not of the prompt";
  Update("2", kNo);
  EXPECT_EQ("2: 0/1 of 1, 0.25; 3: 1/1 of 1, 1; end", History());
}

TEST_F(PromptsTest, FollowUpdatesOfCorrectnessButKeepRewardsAsInserted) {
  Make(10);
  Insert(4, {kOpen, kNo});
  Update("1", kYes);
  EXPECT_EQ("4: 1/2 of 2, 0.5; end", History());
  Update("2", kYes);
  EXPECT_EQ("4: 2/2 of 2, 0.5; end", History());
  Update("1", kOpen);
  uint32_t revision;
  buffer->Update({.id = "2", .reward = 5.0f}, &revision);
  EXPECT_EQ("4: 1/1 of 2, 0.5; end", History());
  Update("2", kNo);
  EXPECT_EQ("4: 0/1 of 2, 0.5; end", History());
}

TEST_F(PromptsTest, MoveAllLiveItemsOfTheirsInAndOutOfViews) {
  Make(10, {Of("success >= 0.2, success <= 0.8")});
  Insert(1, {kOpen, kOpen});
  EXPECT_THAT(All("v"), ElementsAre()) << "nothing is scored";
  Insert(1, {kYes});
  EXPECT_THAT(All("v"), ElementsAre()) << "too easy";
  Insert(1, {kNo});
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 3, 4));
  Insert(2, {kYes, kNo});
  Update("5", kNo);
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 3, 4));
  Update("6", kYes);
  buffer->Delete("3");
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 4, 5, 6)) << "what has left still counts";
}

TEST_F(PromptsTest, AreLinkedToTheirItemsWhenAViewIsDeclaredLater) {
  Make(10);
  Insert(1, {kYes, kNo});
  Insert(2, {kYes});
  options.views = {Of("success < 1")};
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_THAT(All("v"), ElementsAre(1, 2));
  Insert(2, {kNo});
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 3, 4));
  options.prompt_history = 1;
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_EQ("2: 1/2 of 2, 1.25; end", History());
  EXPECT_THAT(All("v"), ElementsAre(3, 4));
  options.views = {};
  ASSERT_EQ("", buffer->Alter(options));
  options.prompt_history = 0;
  ASSERT_EQ("", buffer->Alter(options));
  EXPECT_EQ("end", History());
  buffer->CheckInvariants();
}

TEST_F(PromptsTest, DecideAboutWholeGroupsWhereTheseAreTheUnit) {
  options.unit = Unit::kGroup;
  Make(10, {Of("success >= 0.2, success <= 0.8")});
  const auto insert_group = [&](const std::string& name, int64_t index, std::vector<Outcome> outcomes) {
    fake::Batch batch;
    for (const Outcome outcome : outcomes)
      batch.Add({.id = std::to_string(++inserted),
                 .correct = outcome,
                 .source = "math",
                 .group = name,
                 .group_size = static_cast<uint32_t>(outcomes.size()),
                 .dataset_index = index});
    InsertResult result;
    ASSERT_TRUE(buffer->Insert(batch.Request(), &result).done());
    buffer->CheckInvariants();
  };
  insert_group("a", 1, {kYes, kYes});
  insert_group("b", 2, {kYes, kNo});
  EXPECT_THAT(All("v"), ElementsAre(3, 4));
  insert_group("c", 1, {kNo, kNo});
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 3, 4, 5, 6));
  Update("4", kYes);
  EXPECT_THAT(All("v"), ElementsAre(1, 2, 5, 6));
  EXPECT_EQ("1: 2/4 of 4, 0; 2: 2/2 of 2, 0; end", History());
}

TEST_F(PromptsTest, AreNeededByAViewThatLooksAtThem) {
  for (const char* filter : {"success > 0.5", "attempts = 0"}) {
    BufferOptions without;
    without.views = {Of(filter)};
    EXPECT_THAT(CheckOptions(&without),
                HasSubstr("views[0].filter is \"" + std::string(filter) + "\", but prompt_history is 0"));
    without.prompt_history = 1;
    EXPECT_EQ("", CheckOptions(&without));
  }
}

TEST_F(PromptsTest, CostMemoryOnlyWhereTheyAreRemembered) {
  Make(0);
  Insert(1, {kYes});
  const uint64_t without = buffer->Stats().index_bytes;
  Make(1000);
  inserted = 0;
  Insert(1, {kYes});
  EXPECT_GT(buffer->Stats().index_bytes, without);
  EXPECT_EQ("1: 1/1 of 1, 1; end", History());
}

}  // namespace
}  // namespace replay::server
