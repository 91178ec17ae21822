#include "trainer/model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trainer/model/checkpoint.h"

namespace replay::model {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

std::string Golden(const std::string& name) { return std::string(REPLAY_GOLDEN_FOLDER) + "/" + name; }

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 19;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 32;
  config.qk_norm = true;
  config.initializer_range = 0.3;
  return config;
}

auto Refuses(const std::string& message) { return ::testing::ThrowsMessage<c10::Error>(HasSubstr(message)); }

double LargestDifference(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

class Parity : public ::testing::TestWithParam<const char*> {};

// tests/golden/make_model_goldens.py says how the expected logits were made.
TEST_P(Parity, LogitsAreThoseOfTransformers) {
  const torch::NoGradGuard no_grad;
  const Transformer model = LoadModel(Golden(GetParam()));
  const SafeTensors golden(Golden(GetParam()) + "/golden.safetensors");
  const Tensor logits = model.Logits(model.Forward(golden.Get("input_ids")));
  const double difference = LargestDifference(logits, golden.Get("logits"));
  RecordProperty("max_abs_logit_difference", std::to_string(difference));
  std::printf("max_abs_logit_difference %s %.2g\n", GetParam(), difference);
  EXPECT_LE(difference, 1e-4);
  EXPECT_GT(golden.Get("logits").abs().max().item<double>(), 1);  // not parity of nothing
}

TEST_P(Parity, TokensOneByOneThroughTheCacheGiveTheSameLogits) {
  const torch::NoGradGuard no_grad;
  const Transformer model = LoadModel(Golden(GetParam()));
  const SafeTensors golden(Golden(GetParam()) + "/golden.safetensors");
  const Tensor ids = golden.Get("input_ids");
  KvCache cache(model, 2, ids.size(1));
  for (int64_t at = 0; at < ids.size(1); ++at) {
    const Tensor hidden = model.Extend(ids.narrow(1, at, 1), torch::full({2}, at, torch::kInt64), at + 1, &cache);
    EXPECT_LE(LargestDifference(model.Logits(hidden), golden.Get("logits").narrow(1, at, 1)), 1e-4) << "at " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, ::testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Transformer, ScalesRopeLinearly) {
  const torch::NoGradGuard no_grad;
  ModelConfig config = ReadModelConfig(Golden("llama"));
  config.rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4};
  Transformer model(config);
  model.CopyFrom(LoadModel(Golden("llama")));
  const SafeTensors golden(Golden("llama") + "/golden.safetensors");
  EXPECT_LE(LargestDifference(model.Logits(model.Forward(golden.Get("input_ids"))),
                              golden.Get("logits_with_linear_rope_of_factor_4")),
            1e-4);
}

TEST(Transformer, ExtendsRowsOfDifferentLengthsInPiecesAsIfEachWereAlone) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  const Transformer model(SmallConfig());
  const Tensor ids = torch::randint(19, {3, 12}, torch::kInt64);
  const Tensor whole = model.Forward(ids);
  for (const bool by_forward : {false, true}) {
    // Prompts of 1, 5 and 7 tokens, padded on the right; then for each row at once 2 tokens more, 1 and 2.
    std::vector<int64_t> lengths = {1, 5, 7};
    KvCache cache(model, 4, 12);
    const Tensor prompts = ids.narrow(1, 0, 7), none = torch::zeros({3}, torch::kInt64);
    const Tensor first = by_forward ? model.Forward(prompts, &cache) : model.Extend(prompts, none, 7, &cache);
    EXPECT_LE(LargestDifference(first, whole.narrow(1, 0, 7)), 1e-5);
    for (const int64_t added : {2, 1, 2}) {
      const Tensor next = torch::empty({3, added}, torch::kInt64);
      for (int64_t r = 0; r < 3; ++r) next[r].copy_(ids[r].narrow(0, lengths[static_cast<size_t>(r)], added));
      const Tensor hidden = model.Extend(next, torch::tensor(lengths), lengths[2] + added, &cache);
      for (int64_t r = 0; r < 3; ++r) {
        const int64_t length = lengths[static_cast<size_t>(r)];
        EXPECT_LE(LargestDifference(hidden[r], whole[r].narrow(0, length, added)), 1e-5) << "row " << r << " at " << length;
      }
      for (int64_t& length : lengths) length += added;
    }
  }
}

TEST(Transformer, ExtendsACopiedRowAsTheRowItIsACopyOf) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(6);
  const Transformer model(SmallConfig());
  const Tensor ids = torch::randint(19, {2, 6}, torch::kInt64), next = torch::randint(19, {3, 1}, torch::kInt64);
  KvCache prompts(model, 2, 6), cache(model, 3, 8);
  model.Forward(ids, &prompts);
  cache.CopyRow(prompts, 1, {0, 2}, 6);
  cache.CopyRow(prompts, 0, {1}, 4);
  const Tensor hidden = model.Extend(next, torch::tensor({6, 4, 6}, torch::kInt64), 7, &cache);
  const auto alone = [&](const Tensor& prompt, int64_t row) {
    return model.Forward(torch::cat({prompt, next[row]}).unsqueeze(0))[0][-1];
  };
  EXPECT_LE(LargestDifference(hidden[0][0], alone(ids[1], 0)), 1e-5);
  EXPECT_LE(LargestDifference(hidden[1][0], alone(ids[0].narrow(0, 0, 4), 1)), 1e-5);
  EXPECT_LE(LargestDifference(hidden[2][0], alone(ids[1], 2)), 1e-5);
}

TEST(Transformer, FillingACacheLeavesTheGradientsAsTheyAre) {
  torch::manual_seed(7);
  const Transformer model(SmallConfig());
  const Tensor ids = torch::randint(19, {2, 6}, torch::kInt64);
  const auto gradients = [&](KvCache* cache) {
    std::vector<Tensor> copies;
    model.Forward(ids, cache).square().sum().backward();
    for (const Tensor& parameter : model.Parameters()) {
      if (parameter.grad().defined()) copies.push_back(parameter.grad().clone());
      parameter.mutable_grad() = Tensor();
    }
    return copies;
  };
  KvCache cache(model, 2, 6);
  const std::vector<Tensor> with = gradients(&cache), without = gradients(nullptr);
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(torch::equal(with[i], without[i])) << i;
}

TEST(Transformer, PaddingOnTheRightChangesNothingBeforeIt) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(4);
  const Transformer model(SmallConfig());
  const Tensor ids = torch::randint(19, {1, 8}, torch::kInt64);
  const Tensor padded = torch::cat({ids, torch::zeros({1, 5}, torch::kInt64)}, 1);
  EXPECT_LE(LargestDifference(model.Forward(padded).narrow(1, 0, 8), model.Forward(ids)), 1e-6);
}

TEST(Transformer, GradientsReachEveryParameter) {
  for (const bool tied : {false, true}) {
    for (const bool bias : {false, true}) {
      ModelConfig config = SmallConfig();
      config.tie_word_embeddings = tied;
      config.qkv_bias = bias;
      const Transformer model(config);
      model.Logits(model.Forward(torch::randint(19, {2, 6}, torch::kInt64))).square().sum().backward();
      for (const Tensor& parameter : model.Parameters()) {
        ASSERT_TRUE(parameter.grad().defined());
        EXPECT_GT(parameter.grad().abs().sum().item<double>(), 0) << parameter.sizes();
      }
    }
  }
}

TEST(Transformer, GradientIsTheSlopeOfTheLoss) {
  torch::manual_seed(5);
  ModelConfig config = SmallConfig();
  const Transformer model(config, torch::kCPU, torch::kFloat64);
  const Tensor ids = torch::randint(19, {2, 6}, torch::kInt64);
  const auto loss = [&] { return torch::log_softmax(model.Logits(model.Forward(ids)), -1).select(-1, 3).sum(); };
  loss().backward();
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model.Parameters()) {
    const Tensor direction = torch::randn_like(parameter);
    constexpr double kStep = 1e-5;
    parameter.add_(direction, kStep);
    const double above = loss().item<double>();
    parameter.add_(direction, -2 * kStep);
    const double below = loss().item<double>();
    parameter.add_(direction, kStep);
    const double expected = (parameter.grad() * direction).sum().item<double>();
    EXPECT_NEAR((above - below) / (2 * kStep), expected, 1e-4 * std::max(1.0, std::abs(expected))) << parameter.sizes();
  }
}

TEST(Transformer, SaysWhatDoesNotFitIntoItsContextOrTheCache) {
  const Transformer model(SmallConfig());
  KvCache cache(model, 2, 8);
  const auto zeros = [](int64_t rows, int64_t length) { return torch::zeros({rows, length}, torch::kInt64); };
  EXPECT_THAT([&] { model.Forward(zeros(1, 33)); }, Refuses("a sequence of 33 tokens: the model's context is 32"));
  EXPECT_THAT([&] { model.Forward(zeros(3, 8), &cache); },
              Refuses("3 sequences of up to 8 tokens do not fit into a cache of 2 by 8"));
  EXPECT_THAT(
      [&] {
        model.Extend(zeros(2, 1), torch::tensor({8, 1}, torch::kInt64), 9, &cache);
      },
      Refuses("2 sequences of up to 9 tokens do not fit into a cache of 2 by 8"));
  EXPECT_THAT([&] { KvCache(model, 2, 33); }, Refuses("a cache of 33 tokens: the model's context is 32"));
  EXPECT_THAT([&] { KvCache(model, 0, 8); }, Refuses("a cache of 0 rows: must be at least 1"));
  EXPECT_THAT([&] { KvCache(model, 2, -1); }, Refuses("a cache of -1 tokens: must be at least 1"));
}

TEST(CheckModelConfig, NamesTheFieldTheValueAndTheRule) {
  EXPECT_EQ(CheckModelConfig(SmallConfig()), "");
  const auto broken = [](auto change) {
    ModelConfig config = SmallConfig();
    change(config);
    return CheckModelConfig(config);
  };
  EXPECT_EQ(broken([](ModelConfig& c) { c.hidden_size = 0; }), "hidden_size is 0: must be from 1 to 1048576");
  EXPECT_EQ(broken([](ModelConfig& c) { c.vocab_size = 1'000'000'000'000'000; }),
            "vocab_size is 1000000000000000: must be from 1 to 16777216");
  EXPECT_EQ(broken([](ModelConfig& c) { c.max_position_embeddings = -7; }),
            "max_position_embeddings is -7: must be from 1 to 1048576");
  EXPECT_EQ(broken([](ModelConfig& c) { c.head_dim = 5; }), "head_dim is 5: must be even");
  EXPECT_EQ(broken([](ModelConfig& c) { c.num_key_value_heads = 3; }),
            "num_attention_heads is 4: must be a multiple of num_key_value_heads, 3");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rope_theta = -1; }), "rope_theta is -1: must be at least 1");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rope_theta = INFINITY; }), "rope_theta is inf: must be at least 1");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rms_norm_eps = NAN; }), "rms_norm_eps is nan: must be at least 1e-12");
  EXPECT_EQ(broken([](ModelConfig& c) { c.initializer_range = -0.5; }), "initializer_range is -0.5: must be at least 0");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rope_scaling.factor = 0.5; }), "rope_scaling.factor is 0.5: must be at least 1");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rope_scaling.low_freq_factor = 4; }),
            "rope_scaling.high_freq_factor is 4: must be above low_freq_factor, 4");
  EXPECT_EQ(broken([](ModelConfig& c) { c.rope_scaling.original_max_position_embeddings = 0; }),
            "rope_scaling.original_max_position_embeddings is 0: must be from 1 to 1048576");
  EXPECT_THAT(
      [&] {
        ModelConfig config = SmallConfig();
        config.head_dim = 5;
        Transformer model(config);
      },
      Refuses("head_dim is 5: must be even"));
}

TEST(Transformer, CopyFromTakesEveryValueAndConverts) {
  torch::manual_seed(8);
  const Transformer source(SmallConfig());
  Transformer copy = Transformer::Unset(SmallConfig()), half = Transformer::Unset(SmallConfig(), torch::kCPU, torch::kBFloat16);
  copy.CopyFrom(source);
  half.CopyFrom(source);
  const auto expected = source.Parameters(), copied = copy.Parameters(), halved = half.Parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(copied[i], expected[i])) << i;
    EXPECT_NE(copied[i].data_ptr(), expected[i].data_ptr());
    EXPECT_TRUE(torch::equal(halved[i], expected[i].to(torch::kBFloat16))) << i;
    EXPECT_TRUE(copied[i].requires_grad());
  }
}

TEST(Transformer, CopyFromAnotherShapeNamesTheTensorAndCopiesNothing) {
  torch::manual_seed(9);
  Transformer model(SmallConfig());
  const Tensor before = model.Parameters()[0].clone();
  const auto copy_from = [&](auto change) {
    ModelConfig other = SmallConfig();
    change(other);
    model.CopyFrom(Transformer(other));
  };
  EXPECT_THAT([&] { copy_from([](ModelConfig& c) { c.intermediate_size = 32; }); },
              Refuses("tensor \"model.layers.0.mlp.gate_proj.weight\" has shape [24, 16], that of the other model [32, 16]"));
  EXPECT_THAT([&] { copy_from([](ModelConfig& c) { c.num_hidden_layers = 1; }); },
              Refuses("this model has a tensor \"model.layers.1.input_layernorm.weight\", the other one has not"));
  EXPECT_THAT([&] { copy_from([](ModelConfig& c) { c.tie_word_embeddings = true; }); },
              Refuses("this model has a tensor \"lm_head.weight\", the other one has not"));
  Transformer tied = [] {
    ModelConfig config = SmallConfig();
    config.tie_word_embeddings = true;
    return Transformer(config);
  }();
  EXPECT_THAT([&] { tied.CopyFrom(model); }, Refuses("the other model has a tensor \"lm_head.weight\", this one has not"));
  EXPECT_TRUE(torch::equal(model.Parameters()[0], before));
}

TEST(Transformer, UnsetOnTheMetaDeviceHasTheShapesAndNoMemory) {
  const Transformer model(SmallConfig()), shapes = Transformer::Unset(SmallConfig(), torch::kMeta);
  const auto expected = model.HuggingFaceTensors(), found = shapes.HuggingFaceTensors();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    EXPECT_EQ(found[i].tensor.sizes(), expected[i].tensor.sizes());
    EXPECT_TRUE(found[i].tensor.is_meta());
  }
  EXPECT_EQ(shapes.parameter_count(), model.parameter_count());
}

TEST(Transformer, HasTheSameRandomWeightsForTheSameSeed) {
  const auto weights = [](uint64_t seed) {
    torch::manual_seed(seed);
    return Transformer(SmallConfig()).Parameters();
  };
  const auto one = weights(1), again = weights(1), two = weights(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], again[i])) << i;
  EXPECT_FALSE(torch::equal(one[0], two[0]));
  EXPECT_NEAR(one[0].std().item<double>(), SmallConfig().initializer_range, 0.05);
}

TEST(Transformer, InBfloat16IsNearItselfInFloat32) {
  const torch::NoGradGuard no_grad;
  const Transformer single = LoadModel(Golden("qwen3")), half = LoadModel(Golden("qwen3"), torch::kCPU, torch::kBFloat16);
  const Tensor ids = SafeTensors(Golden("qwen3") + "/golden.safetensors").Get("input_ids");
  const Tensor logits = half.Logits(half.Forward(ids));
  EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
  EXPECT_LE(LargestDifference(logits, single.Logits(single.Forward(ids))), 0.25);  // 8 bits, 2 layers, logits up to 4.5
  KvCache cache(half, 2, ids.size(1));
  half.Forward(ids.narrow(1, 0, 20), &cache);
  const Tensor next = half.Logits(half.Extend(ids.narrow(1, 20, 1), torch::full({2}, 20, torch::kInt64), 21, &cache));
  EXPECT_LE(LargestDifference(next, logits.narrow(1, 20, 1)), 0.25);
}

}  // namespace
}  // namespace replay::model
