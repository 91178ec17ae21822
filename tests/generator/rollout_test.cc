#include "generator/rollout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "client/trajectory.h"

namespace replay {
namespace {

// Rewards an answer by its first token: 10 is 1.0.
class TenthsTask final : public Task {
 public:
  explicit TenthsTask(int32_t end_token = 99, uint32_t max_answer_tokens = 4)
      : end_token_(end_token), max_answer_tokens_(max_answer_tokens) {}
  std::string Summary() const override { return "tenths"; }
  int32_t vocab_size() const override { return 100; }
  int32_t end_token() const override { return end_token_; }
  uint32_t max_prompt_tokens() const override { return 3; }
  uint32_t max_answer_tokens() const override { return max_answer_tokens_; }
  Prompt NextTrainingPrompt(std::mt19937_64&) const override { return {}; }
  std::vector<Prompt> HeldOutPrompts(size_t) const override { return {}; }
  Score ScoreAnswer(const Prompt&, std::span<const int32_t> answer) const override {
    return {static_cast<float>(answer[0]) / 10, answer[0] >= 10};
  }
  std::vector<int32_t> Demonstration(const Prompt&, std::mt19937_64&) const override { return {}; }
  std::string Text(std::span<const int32_t>) const override { return ""; }

 private:
  const int32_t end_token_;
  const uint32_t max_answer_tokens_;
};

const Prompt kPrompt = {.id = "the prompt", .token_ids = {7, 8, 9}, .answer = ""};

model::Answer MakeAnswer(uint32_t index, std::vector<int32_t> token_ids, bool ended = true) {
  model::Answer answer;
  answer.index = index;
  for (size_t i = 0; i < token_ids.size(); ++i) answer.logprobs.push_back(-0.5f * static_cast<float>(i + 1));
  answer.versions = {{0, static_cast<uint32_t>(token_ids.size()), 4}};
  answer.token_ids = std::move(token_ids);
  answer.ended = ended;
  return answer;
}

Group MakeTestGroup(std::vector<model::Answer> answers, const Task& task = TenthsTask()) {
  return MakeGroup(task, kPrompt, "group-5", std::move(answers), {.run_id = "run-1", .epoch = 3, .temperature = 0.7f});
}

std::vector<float> Advantages(const Group& group) {
  std::vector<float> advantages;
  for (const Trajectory& trajectory : group.trajectories) advantages.push_back(std::get<float>(trajectory.advantage));
  return advantages;
}

std::string Describe(const std::vector<VersionSegment>& segments) {
  std::string text;
  for (const VersionSegment& each : segments)
    text += "[" + std::to_string(each.begin) + "," + std::to_string(each.end) + ")v" + std::to_string(each.version) + " ";
  return text;
}

TEST(MakeGroup, GivesAdvantagesByMeanAndPopulationDeviation) {
  // Rewards 1, 0, 0, 0: mean 1/4, variance 3/16.
  const Group group =
      MakeTestGroup({MakeAnswer(0, {10, 99}), MakeAnswer(1, {0, 99}), MakeAnswer(2, {0}), MakeAnswer(3, {0, 1, 99})});
  const double deviation = std::sqrt(3.0) / 4;
  ASSERT_EQ(4u, group.trajectories.size());
  EXPECT_FLOAT_EQ(static_cast<float>(0.75 / (deviation + 1e-6)), Advantages(group)[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_FLOAT_EQ(static_cast<float>(-0.25 / (deviation + 1e-6)), Advantages(group)[i]);
  EXPECT_NEAR(1.7320468, Advantages(group)[0], 1e-6);  // worked out by hand: 0.75 / 0.43301370
  EXPECT_EQ(0.25, group.mean_reward);
  EXPECT_EQ(8u, group.answer_tokens);
  EXPECT_FALSE(group.all_equal);
  for (const Trajectory& trajectory : group.trajectories) {
    EXPECT_EQ((std::vector<std::pair<std::string, float>>{{"group_mean", 0.25f}}), trajectory.named_rewards);
  }
}

TEST(MakeGroup, GivesGradedRewardsTheirAdvantage) {
  // Rewards 0.2, 0.4, 0.9: mean 0.5, variance (0.09 + 0.01 + 0.16) / 3.
  const Group group = MakeTestGroup({MakeAnswer(0, {2}), MakeAnswer(1, {4}), MakeAnswer(2, {9})});
  const double deviation = std::sqrt(0.26 / 3);
  EXPECT_NEAR(-0.3 / deviation, Advantages(group)[0], 1e-5);
  EXPECT_NEAR(-0.1 / deviation, Advantages(group)[1], 1e-5);
  EXPECT_NEAR(0.4 / deviation, Advantages(group)[2], 1e-5);
  EXPECT_NEAR(0.5, group.mean_reward, 1e-7);
}

TEST(MakeGroup, GivesAGroupOfEqualRewardsNoAdvantage) {
  // Exactly 0, whatever the reward and its rounding.
  for (const int32_t tenths : {0, 1, 3, 7, 10}) {
    for (const uint32_t size : {1u, 2u, 3u, 7u}) {
      std::vector<model::Answer> answers;
      for (uint32_t i = 0; i < size; ++i) answers.push_back(MakeAnswer(i, {tenths, 99}));
      const Group group = MakeTestGroup(std::move(answers));
      EXPECT_TRUE(group.all_equal);
      EXPECT_EQ(std::vector<float>(size, 0.0f), Advantages(group));
      EXPECT_NEAR(tenths / 10.0, group.mean_reward, 1e-7);
    }
  }
}

TEST(MakeGroup, FillsInEveryFieldOfATrajectory) {
  model::Answer late = MakeAnswer(1, {0, 5, 6, 7}, /*ended=*/false);
  late.versions = {{0, 1, 4}, {1, 3, 5}, {3, 4, 8}};
  // In any order; index_in_group is the answer's.
  const Group group = MakeTestGroup({std::move(late), MakeAnswer(0, {10, 99})});
  ASSERT_EQ(2u, group.trajectories.size());
  for (uint32_t i = 0; i < 2; ++i) {
    const Trajectory& each = group.trajectories[i];
    EXPECT_EQ("group-5-" + std::to_string(i), each.trajectory_id);
    EXPECT_EQ("run-1", each.run_id);
    EXPECT_EQ(3u, each.epoch);
    EXPECT_EQ("group-5", each.group_id);
    EXPECT_EQ(2u, each.group_size);
    EXPECT_EQ(i, each.index_in_group);
    EXPECT_EQ("the prompt", each.source);
    EXPECT_EQ(0.7f, each.temperature);
    EXPECT_EQ(3u, each.prompt_length);
    ASSERT_EQ(each.token_ids.size(), each.behaviour_logprobs.size());
    for (size_t at = 0; at < each.token_ids.size(); ++at) {
      if (at < 3)
        EXPECT_TRUE(std::isnan(each.behaviour_logprobs[at]));
      else
        EXPECT_EQ(-0.5f * static_cast<float>(at - 2), each.behaviour_logprobs[at]);
    }
  }
  const Trajectory &first = group.trajectories[0], &second = group.trajectories[1];
  EXPECT_EQ((std::vector<int32_t>{7, 8, 9, 10, 99}), first.token_ids);
  EXPECT_EQ((std::vector<uint8_t>{0, 0, 0, 1, 1}), first.loss_mask);
  EXPECT_EQ("[3,5)v4 ", Describe(first.version_segments));
  EXPECT_EQ(1.0f, first.reward);
  EXPECT_EQ(Correctness::kYes, first.correct);
  EXPECT_EQ(FinishStatus::kCompleted, first.status);
  EXPECT_EQ((std::vector<int32_t>{7, 8, 9, 0, 5, 6, 7}), second.token_ids);
  EXPECT_EQ((std::vector<uint8_t>{0, 0, 0, 1, 1, 1, 1}), second.loss_mask);
  EXPECT_EQ("[3,4)v4 [4,6)v5 [6,7)v8 ", Describe(second.version_segments));
  EXPECT_EQ(0.0f, second.reward);
  EXPECT_EQ(Correctness::kNo, second.correct);
  EXPECT_EQ(FinishStatus::kTruncatedLength, second.status);
}

TEST(MakeGroup, CallsAnAnswerOfFullLengthCompleteIfTheTaskHasNoEnd) {
  const auto status = [](std::vector<int32_t> token_ids, int32_t end_token) {
    return MakeTestGroup({MakeAnswer(0, std::move(token_ids), /*ended=*/false)}, TenthsTask(end_token)).trajectories[0].status;
  };
  EXPECT_EQ(FinishStatus::kCompleted, status({1, 2, 3, 4}, -1));
  EXPECT_EQ(FinishStatus::kTruncatedLength, status({1, 2, 3}, -1));  // whoever sampled it allowed less than the task asks for
  EXPECT_EQ(FinishStatus::kTruncatedLength, status({1, 2, 3, 4}, 99));
}

TEST(MakeGroup, IsAcceptedByTheClient) {
  std::vector<model::Answer> answers;
  for (uint32_t i = 0; i < 8; ++i) answers.push_back(MakeAnswer(i, {i % 3 == 0 ? 10 : 0, 5, 99}));
  answers[2].versions = {{0, 2, 4}, {2, 3, 5}};
  const Group group = MakeTestGroup(std::move(answers));
  IdMaker ids;
  const Result<EncodedGroup> encoded = EncodeGroup(group.trajectories, ids);
  ASSERT_TRUE(encoded) << encoded.error().ToString();
  ASSERT_EQ(8u, encoded->frames.size());
  for (size_t i = 0; i < 8; ++i) {
    const Result<TrajectoryView> view = ViewFrame(encoded->frames[i]);
    ASSERT_TRUE(view) << view.error().ToString();
    const Trajectory& sent = group.trajectories[i];
    EXPECT_EQ(sent.trajectory_id, view->trajectory_id());
    EXPECT_EQ(sent.token_ids, std::vector<int32_t>(view->token_ids().begin(), view->token_ids().end()));
    EXPECT_EQ(std::get<float>(sent.advantage), std::get<float>(view->advantage()));
    EXPECT_EQ(3.0f / 8, view->named_reward("group_mean"));
    EXPECT_EQ(sent.correct, view->correct());
    EXPECT_EQ(sent.temperature, view->temperature());
  }
}

TEST(MakeGroup, IsAcceptedByTheClientForEveryTask) {
  for (const std::string kind :
       {R"({"kind": "opcode"})", R"({"kind": "arithmetic", "difficulty": 4})", R"({"kind": "countdown", "numbers": 6})",
        R"({"kind": "file", "path": ")" REPLAY_TEST_DATA R"(/questions.jsonl"})"}) {
    SCOPED_TRACE(kind);
    JsonConfig config = JsonConfig::Parse(kind);
    const auto task = MakeTask(config);
    std::mt19937_64 random(1);
    for (int i = 0; i < 50; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      std::vector<model::Answer> answers;
      for (uint32_t k = 0; k < 4; ++k) answers.push_back(MakeAnswer(k, task->Demonstration(prompt, random)));
      const Group group = MakeGroup(*task, prompt, "g" + std::to_string(i), std::move(answers), {});
      IdMaker ids;
      const Result<EncodedGroup> encoded = EncodeGroup(group.trajectories, ids);
      ASSERT_TRUE(encoded) << encoded.error().ToString();
      EXPECT_EQ(prompt.id, group.trajectories[0].source);
    }
  }
}

}  // namespace
}  // namespace replay
