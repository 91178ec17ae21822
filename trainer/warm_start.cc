#include "trainer/warm_start.h"

#include <random>
#include <utility>
#include <vector>

#include "schema/json_config.h"
#include "trainer/learner.h"

namespace replay::trainer {
namespace {

AnsweredPrompt MakeDemonstration(const Task& task, std::mt19937_64& random) {
  const Prompt prompt = task.NextTrainingPrompt(random);
  const std::vector<int32_t> answer = task.Demonstration(prompt, random);
  if (answer.empty()) throw ConfigError("the task has no demonstrations to start from: give a trained model instead");
  return AnsweredPrompt(prompt.token_ids, answer);
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
    std::vector<AnsweredPrompt> demonstrations;
    std::vector<Row> rows;
    for (uint32_t i = 0; i < options.batch_size; ++i) demonstrations.push_back(MakeDemonstration(*config.task, random));
    for (const AnsweredPrompt& each : demonstrations) rows.push_back(each.row());
    const StepReport report = learner.Step(rows);
    if (!progress(step + 1, report.loss)) break;
  }
  model::Transformer trained(options.architecture);
  trained.CopyFrom(learner.model());
  return trained;
}

}  // namespace replay::trainer
