#include "generator/rollout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace replay {
namespace {

Trajectory MakeTrajectory(const Prompt& prompt, model::Answer answer, const RolloutOptions& options) {
  Trajectory trajectory;
  trajectory.run_id = options.run_id;
  trajectory.epoch = options.epoch;
  trajectory.temperature = options.temperature;
  const auto prompt_length = static_cast<uint32_t>(prompt.token_ids.size());
  const size_t length = prompt_length + answer.token_ids.size();
  trajectory.prompt_length = prompt_length;
  trajectory.token_ids = prompt.token_ids;
  trajectory.token_ids.insert(trajectory.token_ids.end(), answer.token_ids.begin(), answer.token_ids.end());
  trajectory.loss_mask.assign(length, 1);
  std::fill_n(trajectory.loss_mask.begin(), prompt_length, uint8_t{0});
  trajectory.behaviour_logprobs.assign(prompt_length, std::numeric_limits<float>::quiet_NaN());
  trajectory.behaviour_logprobs.insert(trajectory.behaviour_logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
  for (const model::TokenVersions& part : answer.versions)
    trajectory.version_segments.push_back({prompt_length + part.begin, prompt_length + part.end, part.version});
  trajectory.status = answer.ended ? FinishStatus::kCompleted : FinishStatus::kTruncatedLength;
  return trajectory;
}

}  // namespace

Group MakeGroup(const Task& task, const Prompt& prompt, const std::string& group_id, std::vector<model::Answer> answers,
                const RolloutOptions& options) {
  std::sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  Group group;
  std::vector<Score> scores;
  for (const model::Answer& answer : answers) {
    scores.push_back(task.ScoreAnswer(prompt, answer.token_ids));
    group.mean_reward += scores.back().reward;
    group.answer_tokens += answer.token_ids.size();
  }
  const auto size = static_cast<double>(answers.size());
  group.mean_reward /= size;
  double variance = 0;
  for (const Score& score : scores) variance += (score.reward - group.mean_reward) * (score.reward - group.mean_reward) / size;
  group.all_equal =
      std::all_of(scores.begin(), scores.end(), [&](const Score& score) { return score.reward == scores[0].reward; });

  for (size_t i = 0; i < answers.size(); ++i) {
    // An answer without an end where the task has none is complete at its full length.
    answers[i].ended |= task.end_token() < 0 && answers[i].token_ids.size() == task.max_answer_tokens();
    Trajectory& trajectory = group.trajectories.emplace_back(MakeTrajectory(prompt, std::move(answers[i]), options));
    trajectory.group_id = group_id;
    trajectory.trajectory_id = group_id + "-" + std::to_string(i);
    trajectory.group_size = static_cast<uint32_t>(answers.size());
    trajectory.index_in_group = static_cast<uint32_t>(i);
    trajectory.source = prompt.id;
    trajectory.reward = scores[i].reward;
    trajectory.correct = scores[i].correct ? Correctness::kYes : Correctness::kNo;
    trajectory.named_rewards = {{"group_mean", static_cast<float>(group.mean_reward)}};
    trajectory.advantage =
        group.all_equal ? 0.0f : static_cast<float>((scores[i].reward - group.mean_reward) / (std::sqrt(variance) + 1e-6));
  }
  return group;
}

}  // namespace replay
