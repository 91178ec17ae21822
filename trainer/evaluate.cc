#include "trainer/evaluate.h"

#include <algorithm>

#include "trainer/batch.h"
#include "trainer/model/decoder.h"

namespace replay::trainer {
namespace {

// `count` answers to each prompt, in any order; tag is the prompt's index.
std::vector<model::Answer> AnswerAll(const model::Transformer& transformer, const Task& task, std::span<const Prompt> prompts,
                                     uint32_t count, double temperature, const EvaluationOptions& options) {
  size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.token_ids.size());
  const auto capacity = static_cast<int64_t>(longest + task.max_answer_tokens());
  const int64_t rows = std::max<int64_t>(options.rows, count);
  model::Decoder decoder(transformer, rows, capacity,
                         {.temperature = temperature,
                          .top_p = options.top_p,
                          .max_answer_tokens = task.max_answer_tokens(),
                          .end_token = task.end_token()},
                         options.seed);
  std::vector<model::Answer> answers;
  for (size_t next = 0; next < prompts.size();) {
    std::vector<model::Decoder::Job> jobs;
    for (int64_t room = decoder.room(); next < prompts.size() && room >= count; room -= count, ++next)
      jobs.push_back({.prompt = prompts[next].token_ids, .count = count, .tag = next});
    decoder.Add(jobs);
    for (model::Answer& answer : decoder.Step()) answers.push_back(std::move(answer));
  }
  for (model::Answer& answer : decoder.Finish()) answers.push_back(std::move(answer));
  return answers;
}

double MeanEntropy(const model::Transformer& transformer, std::span<const Prompt> prompts,
                   const std::vector<model::Answer>& answers) {
  std::vector<AnsweredPrompt> answered;
  std::vector<Row> rows;
  for (const model::Answer& answer : answers) answered.emplace_back(prompts[answer.tag].token_ids, answer.token_ids);
  for (const AnsweredPrompt& each : answered) rows.push_back(each.row());
  Normalizer normalizer;
  double sum = 0;
  const torch::NoGradGuard no_grad;
  for (const MicroBatch& batch : MakeMicroBatches(rows, 8192, transformer.device(), &normalizer)) {
    double part = 0;
    TargetLogprobs(transformer, transformer.Forward(batch.ids), batch, &part);
    sum += part;
  }
  return normalizer.tokens > 0 ? sum / normalizer.tokens : 0;
}

}  // namespace

double PassAtK(uint32_t n, uint32_t c, uint32_t k) {
  if (n - c < k) return 1;
  double none = 1;  // C(n-c, k) / C(n, k) as a product of ratios at most 1
  for (uint32_t i = 0; i < k; ++i) none *= static_cast<double>(n - c - i) / static_cast<double>(n - i);
  return 1 - none;
}

Evaluation Evaluate(const model::Transformer& transformer, const Task& task, std::span<const Prompt> prompts,
                    const EvaluationOptions& options) {
  Evaluation result;
  if (prompts.empty()) return result;
  const auto answers = AnswerAll(transformer, task, prompts, 1, options.accuracy_temperature, options);
  for (const model::Answer& answer : answers) {
    result.accuracy += task.ScoreAnswer(prompts[answer.tag], answer.token_ids).correct ? 1 : 0;
    result.answer_tokens += static_cast<double>(answer.token_ids.size());
  }
  result.accuracy /= static_cast<double>(prompts.size());
  result.answer_tokens /= static_cast<double>(prompts.size());
  result.entropy = MeanEntropy(transformer, prompts, answers);
  if (options.samples == 0) return result;

  std::vector<uint32_t> correct(prompts.size(), 0);
  for (const model::Answer& answer : AnswerAll(transformer, task, prompts, options.samples, options.temperature, options))
    correct[answer.tag] += task.ScoreAnswer(prompts[answer.tag], answer.token_ids).correct ? 1 : 0;
  for (uint32_t k = 1; k <= options.samples; k *= 2) {
    double sum = 0;
    for (const uint32_t c : correct) sum += PassAtK(options.samples, c, k);
    result.pass_at.emplace_back(k, sum / static_cast<double>(prompts.size()));
  }
  return result;
}

}  // namespace replay::trainer
