#pragma once
// Supervised training on a task's demonstrations: reinforcement from random weights never meets a reward.

#include <cstdint>
#include <functional>

#include "trainer/config.h"
#include "trainer/model/transformer.h"

namespace replay::trainer {

// Makes a model of config.warm_start.architecture with config.seed and trains it. `progress` is called after each step with the
// number of steps done and the loss; it returns false to stop early. Throws ConfigError if the task has no demonstrations.
model::Transformer WarmStart(const TrainerConfig& config, const std::function<bool(int64_t step, double loss)>& progress);

}  // namespace replay::trainer
