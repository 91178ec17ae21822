#include "trainer/warm_start.h"

#include <random>
#include <utility>
#include <vector>

#include "schema/json_config.h"
#include "trainer/learner.h"

namespace replay::trainer {
namespace {

struct Demonstration {
  std::vector<int32_t> token_ids;
  std::vector<uint8_t> loss_mask;
  std::vector<float> logprobs;  // of nobody: the supervised loss looks at none
};

Demonstration MakeDemonstration(const Task& task, std::mt19937_64& random) {
  const Prompt prompt = task.NextTrainingPrompt(random);
  const std::vector<int32_t> answer = task.Demonstration(prompt, random);
  if (answer.empty()) throw ConfigError("the task has no demonstrations to start from: give a trained model instead");
  Demonstration made{
      .token_ids = prompt.token_ids, .loss_mask = std::vector<uint8_t>(prompt.token_ids.size(), 0), .logprobs = {}};
  made.token_ids.insert(made.token_ids.end(), answer.begin(), answer.end());
  made.loss_mask.resize(made.token_ids.size(), 1);
  made.logprobs.resize(made.token_ids.size(), 0);
  return made;
}

}  // namespace

model::Transformer WarmStart(const TrainerConfig& config, const std::function<bool(int64_t, double)>& progress) {
  const auto& options = config.warm_start;
  torch::manual_seed(config.seed);
  std::mt19937_64 random(config.seed);
  LearnerOptions learning{.loss = {.kind = "supervised"},
                          .optimizer = {.learning_rate = options.learning_rate,
                                        .decay_begin = options.steps - static_cast<int64_t>(options.decay_share *
                                                                                            static_cast<double>(options.steps)),
                                        .decay_end = options.steps},
                          .micro_batch_tokens = config.learner.micro_batch_tokens};
  Learner learner(model::Transformer(options.architecture), learning);
  for (int64_t step = 0; step < options.steps; ++step) {
    std::vector<Demonstration> demonstrations;
    for (uint32_t i = 0; i < options.batch_size; ++i) demonstrations.push_back(MakeDemonstration(*config.task, random));
    std::vector<Row> rows;
    for (const Demonstration& each : demonstrations)
      rows.push_back(
          {.token_ids = each.token_ids, .loss_mask = each.loss_mask, .behaviour_logprobs = each.logprobs, .advantages = {}});
    const StepReport report = learner.Step(rows);
    if (!progress(step + 1, report.loss)) break;
  }
  model::Transformer trained(options.architecture);
  trained.CopyFrom(learner.model());
  return trained;
}

}  // namespace replay::trainer
