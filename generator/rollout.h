#pragma once
// From answers to what a trainer learns from: one group of trajectories, scored, with its advantages.

#include <cstdint>
#include <string>
#include <vector>

#include "generator/task.h"
#include "replay/trajectory.h"
#include "trainer/model/decoder.h"

namespace replay {

struct RolloutOptions {
  std::string run_id;
  uint64_t epoch = 0;
  float temperature = 1;  // of sampling, stored with each rollout: a trainer computes its log-probabilities at it
};

struct Group {
  std::vector<Trajectory> trajectories;  // in order of index_in_group
  uint64_t answer_tokens = 0;
  double mean_reward = 0;
  bool all_equal = false;  // All rewards the same: every advantage is 0, and nothing is to be learned from it.
};

// `answers` are all those of one prompt, in any order, and not empty. Advantage (GRPO, 2402.03300), made here once and for all:
//   A = (r - mean) / (standard deviation + 1e-6)        over the group, population standard deviation
// The group's mean reward goes along as the named reward "group_mean", for losses with a baseline.
Group MakeGroup(const Task& task, const Prompt& prompt, const std::string& group_id, std::vector<model::Answer> answers,
                const RolloutOptions& options);

}  // namespace replay
