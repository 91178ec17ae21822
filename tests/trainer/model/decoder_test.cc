#include "trainer/model/decoder.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace replay::model {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

Transformer MakeModel(int seed, int64_t vocab = 23) {
  at::set_num_threads(1);  // tests run side by side, and OpenMP's threads spin: up to 30 times slower
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

// How often each token comes first after the prompt {1, 2}.
std::map<int32_t, double> CountDraws(const Transformer& model, int draws, const SamplingOptions& options, uint64_t seed) {
  const std::vector<int32_t> prompt = {1, 2};
  Decoder decoder(model, 500, 8, options, seed);
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws / 500; ++i) {
    decoder.Add({{.prompt = prompt, .count = 500}});
    for (const Answer& answer : decoder.Finish()) counts[answer.token_ids.at(0)] += 1;
  }
  return counts;
}

TEST(Decoder, DrawsTokensInProportionToTheirProbability) {
  const Transformer model = MakeModel(3, 6);
  constexpr int kDraws = 20'000;
  for (const double temperature : {0.4, 1.0, 1.3}) {
    auto counts = CountDraws(model, kDraws, {.temperature = temperature, .max_answer_tokens = 1}, 11);
    const Tensor expected = Logprobs(model, {1, 2}, temperature)[1].exp();
    double chi_square = 0;
    for (int32_t id = 0; id < 6; ++id) {
      const double mean = kDraws * expected[id].item<double>();
      chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
    }
    EXPECT_LT(chi_square, 20.5) << temperature;  // 5 degrees of freedom: 0.1 % by chance, and the seed is fixed
  }
}

// The nucleus by its definition, one token at a time: token -> its share of it.
std::map<int32_t, double> Nucleus(const Tensor& logprobs, double top_p) {
  std::vector<std::pair<double, int32_t>> tokens;
  for (int32_t id = 0; id < logprobs.size(0); ++id) tokens.emplace_back(std::exp(logprobs[id].item<double>()), id);
  std::sort(tokens.rbegin(), tokens.rend());
  std::map<int32_t, double> nucleus;
  double sum = 0;
  for (size_t i = 0; sum < top_p; ++i) sum += nucleus[tokens[i].second] = tokens[i].first;
  for (auto& [id, share] : nucleus) share /= sum;
  return nucleus;
}

TEST(Decoder, TopPLeavesTheNucleusInItsProportionsAndNothingElse) {
  constexpr int kDraws = 20'000;
  // A small vocabulary is sorted whole. Of 600 tokens the 256 likeliest hold 0.8 at temperature 1, and do not at 5.
  const struct {
    int64_t vocab;
    double temperature, top_p;
    size_t least, most;  // tokens in the nucleus
  } cases[] = {{23, 1, 0.5, 2, 22}, {23, 1, 1e-6, 1, 1}, {600, 1, 0.8, 3, 255}, {600, 5, 0.8, 257, 599}};
  for (const auto& [vocab, temperature, top_p, least, most] : cases) {
    const Transformer model = MakeModel(10, vocab);
    const auto nucleus = Nucleus(Logprobs(model, {1, 2}, temperature)[1], top_p);
    ASSERT_GE(nucleus.size(), least);
    ASSERT_LE(nucleus.size(), most);
    const auto counts = CountDraws(model, kDraws, {.temperature = temperature, .top_p = top_p, .max_answer_tokens = 1}, 12);
    for (const auto& [id, count] : counts) EXPECT_TRUE(nucleus.contains(id)) << id << " was drawn " << count << " times";
    double chi_square = 0;
    for (const auto& [id, share] : nucleus) {
      const double count = counts.contains(id) ? counts.at(id) : 0;
      chi_square += (count - kDraws * share) * (count - kDraws * share) / (kDraws * share);
    }
    // Mean d, variance 2 d for d degrees of freedom: four standard deviations, and the seed is fixed.
    const auto freedom = static_cast<double>(nucleus.size() - 1);
    EXPECT_LE(chi_square, freedom + 4 * std::sqrt(2 * freedom)) << vocab << " tokens, temperature " << temperature;
  }
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
  // What follows is by the new weights, over the keys and values that the old ones left: the same by hand.
  const torch::NoGradGuard no_grad;
  const Transformer older = MakeModel(5);
  KvCache cache(older, 1, 16);
  const auto row = [](const std::vector<int64_t>& ids) { return torch::tensor(ids, torch::kInt64).unsqueeze(0); };
  Tensor hidden = older.Forward(row({1, 2, 3}), &cache).narrow(1, 2, 1);
  for (int64_t i = 0; i < 6; ++i) {
    const Transformer& current = i < 2 ? older : newer;
    const Tensor logprobs = torch::log_softmax(current.Logits(hidden).flatten(), -1);
    const int32_t token = answer.token_ids[static_cast<size_t>(i)];
    EXPECT_EQ(token, logprobs.argmax().item<int64_t>()) << i;
    EXPECT_NEAR(answer.logprobs[static_cast<size_t>(i)], logprobs[token].item<float>(), 1e-5) << i;
    const Transformer& next = i + 1 < 2 ? older : newer;
    hidden = next.Extend(row({token}), torch::tensor({3 + i}, torch::kInt64), 4 + i, &cache);
  }
}

TEST(Decoder, VersionsCoverEveryAnswerWithoutAGap) {
  const Transformer model = MakeModel(11);
  std::mt19937 random(13);
  const std::vector<int32_t> prompt = {4};
  Decoder decoder(model, 6, 32, {.max_answer_tokens = 12, .end_token = 3}, 1);
  std::vector<Answer> answers;
  int64_t version = 100;
  std::set<int64_t> set;
  for (uint64_t tag = 0; tag < 40;) {
    if (random() % 3 == 0) decoder.SetVersion(++version);
    set.insert(version);
    if (version == 100) decoder.SetVersion(100);
    if (decoder.room() > 0 && random() % 2 == 0) decoder.Add({{.prompt = prompt, .tag = tag++}});
    for (Answer& answer : decoder.Step()) answers.push_back(std::move(answer));
  }
  for (Answer& answer : decoder.Finish()) answers.push_back(std::move(answer));
  ASSERT_EQ(answers.size(), 40u);
  size_t parts = 0;
  for (const Answer& answer : answers) {
    uint32_t end = 0;
    int64_t last = 0;
    for (const TokenVersions& part : answer.versions) {
      EXPECT_EQ(part.begin, end);
      EXPECT_LT(part.begin, part.end);
      EXPECT_LT(last, part.version);
      EXPECT_TRUE(set.contains(part.version));
      end = part.end;
      last = part.version;
    }
    EXPECT_EQ(end, answer.token_ids.size());
    EXPECT_EQ(answer.logprobs.size(), answer.token_ids.size());
    parts += answer.versions.size();
  }
  EXPECT_GT(parts, 60u) << "hardly any answer was of two versions";
}

TEST(Decoder, EndsAnAnswerAtItsEndTokenOrAtTheMost) {
  const Transformer model = MakeModel(14, 5);
  const std::vector<int32_t> prompt = {4};
  Decoder decoder(model, 50, 16, {.max_answer_tokens = 4, .end_token = 2}, 1);
  decoder.Add({{.prompt = prompt, .count = 50, .tag = 9}});
  std::set<uint32_t> indices;
  int ended = 0;
  for (const Answer& answer : decoder.Finish()) {
    EXPECT_EQ(answer.tag, 9u);
    EXPECT_TRUE(indices.insert(answer.index).second);
    EXPECT_LT(answer.index, 50u);
    EXPECT_EQ(answer.ended, answer.token_ids.back() == 2);
    EXPECT_EQ(std::count(answer.token_ids.begin(), answer.token_ids.end(), 2), answer.ended);
    EXPECT_TRUE(answer.ended || answer.token_ids.size() == 4);
    ended += answer.ended;
  }
  EXPECT_EQ(indices.size(), 50u);
  EXPECT_GT(ended, 5);
  EXPECT_LT(ended, 45);
}

TEST(Decoder, AnswersOfOneTokenComeWithTheNextStepAndTakeNoRoom) {
  const Transformer model = MakeModel(13);
  const std::vector<int32_t> prompt = {4};
  Decoder decoder(model, 2, 16, {.max_answer_tokens = 1}, 1);
  for (int i = 0; i < 3; ++i) decoder.Add({{.prompt = prompt, .count = 2}});
  EXPECT_EQ(decoder.active(), 0);
  EXPECT_EQ(decoder.Step().size(), 6u);
  EXPECT_EQ(decoder.Step().size(), 0u);
  EXPECT_EQ(decoder.tokens_sampled(), 6u);
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
  torch::manual_seed(99);  // of others' randomness it takes nothing
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
  EXPECT_THAT(add({}, 1), HasSubstr("a prompt of 0 tokens: must be at least 1"));
  EXPECT_THAT(add({1}, 0), HasSubstr("0 answers wanted to a prompt: must be at least 1"));
  EXPECT_THAT(add({1, 23}, 1), HasSubstr("token id 23 of a prompt: the vocabulary has 23"));
  EXPECT_THAT(add({-1}, 1), HasSubstr("token id -1"));
  EXPECT_THAT(add(std::vector<int32_t>(9, 1), 1), HasSubstr("a prompt of 9 tokens and an answer of 8 do not fit into 16"));
  EXPECT_THAT(add({1}, 3), HasSubstr("3 answers wanted, there is room for 2"));
  EXPECT_EQ(decoder.active(), 0);
  EXPECT_EQ(add({1}, 2), "");
  EXPECT_EQ(decoder.Finish().size(), 2u);
}

TEST(Decoder, RefusesOptionsThatMeanNothing) {
  const Transformer model = MakeModel(9);
  const auto refuses = [&](const SamplingOptions& options, const std::string& message) {
    EXPECT_THAT([&] { Decoder(model, 2, 16, options, 1); }, ::testing::ThrowsMessage<c10::Error>(HasSubstr(message)));
  };
  refuses({}, "max_answer_tokens is 0: must be at least 1");
  refuses({.temperature = -1, .max_answer_tokens = 1}, "temperature is -1: must be 0 or from 0.0001 to 10000");
  refuses({.temperature = 1e-30, .max_answer_tokens = 1}, "temperature is 1e-30: must be 0 or from 0.0001 to 10000");
  refuses({.temperature = NAN, .max_answer_tokens = 1}, "temperature is nan: must be 0 or from 0.0001 to 10000");
  refuses({.top_p = 0, .max_answer_tokens = 1}, "top_p is 0: must be in (0, 1]");
  refuses({.top_p = 1.5, .max_answer_tokens = 1}, "top_p is 1.5: must be in (0, 1]");
  refuses({.max_answer_tokens = 1, .end_token = 23}, "end_token is 23: must be -1 or below 23, the size of the vocabulary");
  EXPECT_THAT([&] { Decoder(model, 2, 65, {.max_answer_tokens = 1}, 1); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("a cache of 65 tokens: the model's context is 64")));
}

}  // namespace
}  // namespace replay::model
