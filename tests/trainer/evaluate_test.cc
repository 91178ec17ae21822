#include "trainer/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "schema/json_config.h"
#include "tests/trainer/make_rows.h"
#include "trainer/warm_start.h"

namespace replay::trainer {
namespace {

// Of all subsets of k of the n answers, the share that holds one of the c correct ones.
double BruteForce(uint32_t n, uint32_t c, uint32_t k) {
  double subsets = 0, hits = 0;
  for (uint32_t bits = 0; bits < (1u << n); ++bits) {
    if (static_cast<uint32_t>(__builtin_popcount(bits)) != k) continue;
    subsets += 1;
    hits += (bits & ((1u << c) - 1)) != 0 ? 1 : 0;
  }
  return hits / subsets;
}

TEST(PassAtK, IsTheShareOfSubsetsWithACorrectAnswer) {
  for (uint32_t n = 1; n <= 8; ++n)
    for (uint32_t c = 0; c <= n; ++c)
      for (uint32_t k = 1; k <= n; ++k) EXPECT_NEAR(PassAtK(n, c, k), BruteForce(n, c, k), 1e-12) << n << " " << c << " " << k;
}

// A task whose answers are two tokens of 13, right if they add up to an even number: half of all random ones.
class EvenTask final : public Task {
 public:
  std::string Summary() const override { return "even"; }
  int32_t vocab_size() const override { return 13; }
  int32_t end_token() const override { return -1; }
  uint32_t max_prompt_tokens() const override { return 3; }
  uint32_t max_answer_tokens() const override { return 2; }
  Prompt NextTrainingPrompt(std::mt19937_64&) const override { return {}; }
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    std::vector<Prompt> prompts;
    for (size_t i = 0; i < count; ++i) {
      Prompt prompt{.id = std::to_string(i),
                    .token_ids = {static_cast<int32_t>(i % 13), static_cast<int32_t>(i / 13 % 13)},
                    .answer = ""};
      if (i % 2 == 0) prompt.token_ids.push_back(5);
      prompts.push_back(prompt);
    }
    return prompts;
  }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    EXPECT_EQ(answer.size(), 2u);
    const bool correct = (answer[0] + answer[1] + prompt.token_ids[0]) % 2 == 0;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt&, std::mt19937_64&) const override { return {}; }
  std::string Text(std::span<const int32_t>) const override { return ""; }
};

// The likeliest token, again and again, by whole forward passes: what an answer at temperature 0 must be.
std::vector<int32_t> Greedy(const model::Transformer& model, const Task& task, const Prompt& prompt) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> ids(prompt.token_ids.begin(), prompt.token_ids.end());
  std::vector<int32_t> answer;
  while (answer.size() < task.max_answer_tokens() && (answer.empty() || answer.back() != task.end_token())) {
    const torch::Tensor logits = model.Logits(model.Forward(torch::tensor(ids).unsqueeze(0)).select(1, -1));
    answer.push_back(static_cast<int32_t>(logits.argmax().item<int64_t>()));
    ids.push_back(answer.back());
  }
  return answer;
}

// Of the model's distributions over each token of the answer, added up.
double EntropyOf(const model::Transformer& model, const Prompt& prompt, const std::vector<int32_t>& answer) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> ids(prompt.token_ids.begin(), prompt.token_ids.end());
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  const torch::Tensor logprobs = torch::log_softmax(model.Logits(model.Forward(torch::tensor(ids).unsqueeze(0)))[0], -1);
  const torch::Tensor answering = logprobs.slice(0, static_cast<int64_t>(prompt.token_ids.size()) - 1);
  return -(answering.exp() * answering).sum().item<double>();
}

// A model that is right now and then, and whose answers end by themselves.
TEST(Evaluate, AgreesWithDecodingByHand) {
  const TrainerConfig config = ParseTrainerConfig(R"({"model": "m", "weights": "w", "output": "o",
    "task": {"kind": "arithmetic", "difficulty": 1},
    "warm_start": {"steps": 50, "batch_size": 64, "learning_rate": 0.01,
                   "architecture": {"hidden_size": 32, "intermediate_size": 64}}})");
  const model::Transformer model = WarmStart(config, [](int64_t, double) { return true; });
  std::mt19937_64 random(1);
  std::vector<Prompt> prompts;
  while (prompts.size() < 40) prompts.push_back(config.task->NextTrainingPrompt(random));
  double correct = 0, tokens = 0, entropy = 0;
  for (const Prompt& prompt : prompts) {
    const std::vector<int32_t> answer = Greedy(model, *config.task, prompt);
    correct += config.task->ScoreAnswer(prompt, answer).correct ? 1 : 0;
    tokens += static_cast<double>(answer.size());
    entropy += EntropyOf(model, prompt, answer);
  }
  EXPECT_GT(correct, 0);
  EXPECT_LT(correct, 40);
  // More answers than rows; all answers to a prompt are the same, so pass@k is the accuracy for every k.
  const EvaluationOptions greedy{.samples = 4, .accuracy_temperature = 0, .temperature = 0, .rows = 7};
  const Evaluation evaluation = Evaluate(model, *config.task, prompts, greedy);
  EXPECT_EQ(evaluation.accuracy, correct / 40);
  EXPECT_DOUBLE_EQ(evaluation.answer_tokens, tokens / 40);
  EXPECT_NEAR(evaluation.entropy, entropy / tokens, 1e-4);
  ASSERT_EQ(evaluation.pass_at.size(), 3u);
  for (const auto& [k, value] : evaluation.pass_at) EXPECT_NEAR(value, evaluation.accuracy, 1e-12) << k;
  // At the temperatures of the paper: the same again, and more tries find more.
  const EvaluationOptions paper{.samples = 8, .rows = 16};
  const Evaluation sampled = Evaluate(model, *config.task, prompts, paper);
  EXPECT_EQ(Evaluate(model, *config.task, prompts, paper).pass_at, sampled.pass_at);
  ASSERT_EQ(sampled.pass_at.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_GE(sampled.pass_at[i].second, sampled.pass_at[i - 1].second);
  EXPECT_GT(sampled.pass_at[3].second, sampled.pass_at[0].second);
}

TEST(Evaluate, IsTheSameAgainAndWhateverTheNumberOfRows) {
  const model::Transformer model = testing::TinyModel(1);
  const EvenTask task;
  const auto prompts = task.HeldOutPrompts(60);
  EvaluationOptions options{.samples = 8, .accuracy_temperature = 0, .rows = 16};
  const Evaluation first = Evaluate(model, task, prompts, options), again = Evaluate(model, task, prompts, options);
  EXPECT_EQ(first.accuracy, again.accuracy);
  EXPECT_EQ(first.pass_at, again.pass_at);
  EXPECT_EQ(first.answer_tokens, 2);
  options.rows = 200;  // at temperature 0 the answers do not depend on how they are batched
  EXPECT_EQ(Evaluate(model, task, prompts, options).accuracy, first.accuracy);
  EXPECT_GT(first.entropy, 0);
  EXPECT_LT(first.entropy, std::log(13.0));
}

TEST(Evaluate, PassAtKGrowsWithKAndAgreesWithChance) {
  model::ModelConfig config = testing::TinyConfig();
  config.initializer_range = 0;  // every token is as likely as any other: half of the answers are right
  const model::Transformer model(config);
  const EvenTask task;
  const Evaluation evaluation = Evaluate(model, task, task.HeldOutPrompts(200), {.samples = 16, .top_p = 1});
  ASSERT_EQ(evaluation.pass_at.size(), 5u);
  EXPECT_NEAR(evaluation.entropy, std::log(13.0), 1e-4);
  for (const auto& [k, value] : evaluation.pass_at) EXPECT_NEAR(value, 1 - std::pow(0.5, k), 0.03) << k;
}

TEST(Evaluate, OfNoPromptsIsNothing) {
  const EvenTask task;
  EXPECT_EQ(Evaluate(testing::TinyModel(1), task, {}, {}).accuracy, 0);
  EXPECT_TRUE(Evaluate(testing::TinyModel(1), task, task.HeldOutPrompts(3), {.samples = 0}).pass_at.empty());
}

}  // namespace
}  // namespace replay::trainer
