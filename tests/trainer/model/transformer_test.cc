#include "trainer/model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Transformer, ExtendsRowsOfDifferentLengthsAsIfEachWereAlone) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  const Transformer model(SmallConfig());
  const Tensor ids = torch::randint(19, {3, 12}, torch::kInt64);
  const std::vector<int64_t> lengths = {1, 5, 7};
  KvCache cache(model, 4, 12);
  // Prompts of 1, 5 and 7 tokens, padded on the right; then two tokens more for each at once.
  model.Extend(ids.narrow(1, 0, 7), torch::zeros({3}, torch::kInt64), 7, &cache);
  Tensor next = torch::empty({3, 2}, torch::kInt64);
  for (int64_t r = 0; r < 3; ++r) next[r].copy_(ids[r].narrow(0, lengths[static_cast<size_t>(r)], 2));
  const Tensor hidden = model.Extend(next, torch::tensor(lengths), 9, &cache);
  const Tensor whole = model.Forward(ids);
  for (int64_t r = 0; r < 3; ++r)
    EXPECT_LE(LargestDifference(hidden[r], whole[r].narrow(0, lengths[static_cast<size_t>(r)], 2)), 1e-5) << "row " << r;
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

TEST(Transformer, RefusesMoreTokensThanItsContext) {
  const Transformer model(SmallConfig());
  EXPECT_THAT(
      [&] {
        model.Forward(torch::zeros({1, 33}, torch::kInt64));
      },
      ::testing::ThrowsMessage<c10::Error>(HasSubstr("a sequence of 33 tokens: the model's context is 32")));
}

TEST(CheckModelConfig, NamesTheFieldTheValueAndTheRule) {
  EXPECT_EQ(CheckModelConfig(SmallConfig()), "");
  const auto broken = [](auto change) {
    ModelConfig config = SmallConfig();
    change(config);
    return CheckModelConfig(config);
  };
  EXPECT_EQ(broken([](ModelConfig& c) { c.hidden_size = 0; }), "hidden_size is 0: must be at least 1");
  EXPECT_EQ(broken([](ModelConfig& c) { c.head_dim = 5; }), "head_dim is 5: must be even");
  EXPECT_EQ(broken([](ModelConfig& c) { c.num_key_value_heads = 3; }),
            "num_attention_heads is 4: must be a multiple of num_key_value_heads, 3");
  EXPECT_THAT(broken([](ModelConfig& c) { c.rope_theta = -1; }), HasSubstr("rope_theta is -1"));
  EXPECT_THAT(broken([](ModelConfig& c) { c.rms_norm_eps = NAN; }), HasSubstr("rms_norm_eps is nan"));
}

TEST(Transformer, CopyFromRefusesAnotherShape) {
  ModelConfig wider = SmallConfig();
  wider.intermediate_size = 32;
  Transformer model(SmallConfig());
  EXPECT_THROW(model.CopyFrom(Transformer(wider)), c10::Error);
}

}  // namespace
}  // namespace replay::model
