#include "trainer/model/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

namespace replay::model {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

Transformer MakeModel(int seed, int64_t vocab = 23) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.4;
  return Transformer(config);
}

// log p of every token that follows ids[0 … i], at `temperature`: [ids.size(), vocab].
Tensor Logprobs(const Transformer& model, const std::vector<int32_t>& ids, double temperature) {
  const torch::NoGradGuard no_grad;
  const Tensor tokens = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  return torch::log_softmax(model.Logits(model.Forward(tokens))[0] / temperature, -1);
}

std::vector<int32_t> Whole(const std::vector<int32_t>& prompt, const Answer& answer) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), answer.token_ids.begin(), answer.token_ids.end());
  return ids;
}

TEST(Decoder, GreedyAnswersAreTheLikeliestTokensOfTheWholeForward) {
  const Transformer model = MakeModel(1);
  const std::vector<std::vector<int32_t>> prompts = {{3}, {1, 2, 3, 4, 5, 6}, {7, 7, 7}};
  Decoder decoder(model, 8, 32, {.temperature = 0, .max_answer_tokens = 10}, 1);
  std::vector<Decoder::Job> jobs;
  for (size_t i = 0; i < prompts.size(); ++i) jobs.push_back({.prompt = prompts[i], .count = 2, .tag = i});
  decoder.Add(jobs);
  const std::vector<Answer> answers = decoder.Finish();
  ASSERT_EQ(answers.size(), 6u);
  for (const Answer& answer : answers) {
    const std::vector<int32_t>& prompt = prompts[answer.tag];
    const Tensor logprobs = Logprobs(model, Whole(prompt, answer), 1);
    ASSERT_EQ(answer.token_ids.size(), 10u);
    for (size_t i = 0; i < 10; ++i) {
      const Tensor row = logprobs[static_cast<int64_t>(prompt.size() + i) - 1];
      EXPECT_EQ(answer.token_ids[i], row.argmax().item<int64_t>());
      EXPECT_NEAR(answer.logprobs[i], row[answer.token_ids[i]].item<float>(), 1e-4);
    }
    EXPECT_FALSE(answer.ended);
  }
}

TEST(Decoder, LogprobsAreOfTheDistributionBeforeTopPAtTheTemperature) {
  const Transformer model = MakeModel(2);
  const std::vector<int32_t> prompt = {4, 5};
  Decoder decoder(model, 64, 32, {.temperature = 0.7, .top_p = 0.6, .max_answer_tokens = 6}, 5);
  decoder.Add({{.prompt = prompt, .count = 64}});
  for (const Answer& answer : decoder.Finish()) {
    const Tensor logprobs = Logprobs(model, Whole(prompt, answer), 0.7);
    for (size_t i = 0; i < answer.token_ids.size(); ++i) {
      const Tensor row = logprobs[static_cast<int64_t>(prompt.size() + i) - 1];
      const float own = row[answer.token_ids[i]].item<float>();
      EXPECT_NEAR(answer.logprobs[i], own, 1e-4);
      // In the nucleus: what is likelier adds up to less than top_p.
      EXPECT_LT((row.exp() * (row > own + 1e-6)).sum().item<double>(), 0.6 + 1e-5);
    }
  }
}

TEST(Decoder, DrawsTokensInProportionToTheirProbability) {
  const Transformer model = MakeModel(3, 6);
  const std::vector<int32_t> prompt = {1, 2};
  constexpr int kDraws = 20'000;
  Decoder decoder(model, 500, 8, {.temperature = 1.3, .max_answer_tokens = 1}, 11);
  std::map<int32_t, double> counts;
  for (int i = 0; i < kDraws / 500; ++i) {
    decoder.Add({{.prompt = prompt, .count = 500}});
    for (const Answer& answer : decoder.Finish()) counts[answer.token_ids.at(0)] += 1;
  }
  const Tensor expected = Logprobs(model, prompt, 1.3)[1].exp();
  double chi_square = 0;
  for (int32_t id = 0; id < 6; ++id) {
    const double mean = kDraws * expected[id].item<double>();
    chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  EXPECT_LT(chi_square, 20.5);  // 5 degrees of freedom: 0.1 % by chance, and the seed is fixed
}

TEST(Decoder, AnswersThatEnterAndLeaveDoNotChangeEachOther) {
  const Transformer model = MakeModel(4);
  std::mt19937 random(7);
  std::map<uint64_t, std::vector<int32_t>> prompts;
  // The token that the model likes best after some prompts ends an answer, so that lengths differ.
  const SamplingOptions options{.temperature = 0, .max_answer_tokens = 9, .end_token = 5};
  Decoder decoder(model, 4, 32, options, 1);
  std::vector<Answer> answers;
  for (uint64_t tag = 0; tag < 30;) {
    std::vector<Decoder::Job> jobs;
    for (int64_t room = decoder.room(); room > 0 && tag < 30; --room, ++tag) {
      std::vector<int32_t>& prompt = prompts[tag];
      for (size_t i = 0; i < 1 + random() % 8; ++i) prompt.push_back(static_cast<int32_t>(random() % 23));
      jobs.push_back({.prompt = prompt, .tag = tag});
    }
    decoder.Add(jobs);
    for (Answer& answer : decoder.Step()) answers.push_back(std::move(answer));
  }
  for (Answer& answer : decoder.Finish()) answers.push_back(std::move(answer));
  ASSERT_EQ(answers.size(), 30u);
  std::set<size_t> lengths;
  for (const Answer& answer : answers) {
    Decoder alone(model, 1, 32, options, 1);
    alone.Add({{.prompt = prompts[answer.tag], .tag = answer.tag}});
    EXPECT_EQ(alone.Finish().at(0).token_ids, answer.token_ids) << "prompt " << answer.tag;
    EXPECT_EQ(answer.ended, answer.token_ids.back() == 5);
    lengths.insert(answer.token_ids.size());
  }
  EXPECT_GT(lengths.size(), 1u) << "every answer was of one length: nothing entered in the middle";
}

TEST(Decoder, TellsWhichTokensCameFromWhichVersion) {
  Transformer model = MakeModel(5);
  const Transformer newer = MakeModel(6);
  const std::vector<int32_t> prompt = {1, 2, 3};
  Decoder decoder(model, 2, 32, {.temperature = 0, .max_answer_tokens = 6}, 1);
  decoder.SetVersion(7);
  decoder.Add({{.prompt = prompt}});  // the first token
  decoder.Step();                     // the second
  model.CopyFrom(newer);
  decoder.SetVersion(9);
  const Answer answer = decoder.Finish().at(0);
  ASSERT_EQ(answer.versions.size(), 2u);
  const auto text = [](const TokenVersions& part) {
    return std::to_string(part.begin) + "-" + std::to_string(part.end) + " v" + std::to_string(part.version);
  };
  EXPECT_EQ(text(answer.versions[0]), "0-2 v7");
  EXPECT_EQ(text(answer.versions[1]), "2-6 v9");
  // What follows is by the new weights, over the keys and values that the old ones left.
  const Tensor old_first = Logprobs(MakeModel(5), prompt, 1)[2];
  EXPECT_EQ(answer.token_ids[0], old_first.argmax().item<int64_t>());
}

TEST(Decoder, GivesTheSameAnswersForTheSameSeed) {
  const Transformer model = MakeModel(8);
  const std::vector<int32_t> prompt = {1};
  const auto run = [&](uint64_t seed) {
    Decoder decoder(model, 8, 16, {.max_answer_tokens = 8}, seed);
    decoder.Add({{.prompt = prompt, .count = 8}});
    std::vector<std::vector<int32_t>> tokens;
    for (const Answer& answer : decoder.Finish()) tokens.push_back(answer.token_ids);
    return tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Decoder, RefusesWhatDoesNotFit) {
  const Transformer model = MakeModel(9);
  Decoder decoder(model, 2, 16, {.max_answer_tokens = 8}, 1);
  const auto add = [&](std::vector<int32_t> prompt, uint32_t count) {
    try {
      decoder.Add({{.prompt = prompt, .count = count}});
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_THAT(add({}, 1), HasSubstr("an empty prompt"));
  EXPECT_THAT(add({1, 23}, 1), HasSubstr("token id 23 of a prompt: the vocabulary has 23"));
  EXPECT_THAT(add({-1}, 1), HasSubstr("token id -1"));
  EXPECT_THAT(add(std::vector<int32_t>(9, 1), 1), HasSubstr("a prompt of 9 tokens and an answer of 8 do not fit into 16"));
  EXPECT_THAT(add({1}, 3), HasSubstr("3 answers wanted, there is room for 2"));
  EXPECT_EQ(add({1}, 2), "");
  EXPECT_EQ(decoder.Finish().size(), 2u);
}

}  // namespace
}  // namespace replay::model
