#pragma once
// A tiny model and rows that own their bytes, for the tests of the trainer.

#include <random>
#include <string>
#include <vector>

#include "trainer/batch.h"
#include "trainer/model/transformer.h"

namespace replay::trainer::testing {

inline model::ModelConfig TinyConfig() {
  model::ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.qk_norm = true;
  config.initializer_range = 0.3;
  return config;
}

inline model::Transformer TinyModel(uint64_t seed, torch::ScalarType dtype = torch::kFloat32) {
  torch::manual_seed(seed);
  return model::Transformer(TinyConfig(), torch::kCPU, dtype);
}

struct OwnedRow {
  std::vector<int32_t> token_ids;
  std::vector<uint8_t> loss_mask;
  std::vector<float> logprobs;
  float advantage = 0.5;
  Row row() const {
    return {.token_ids = token_ids,
            .loss_mask = loss_mask,
            .behaviour_logprobs = logprobs,
            .advantages = {},
            .advantage = advantage,
            .reward = 1,
            .group_mean = 0.5f};
  }
};

// `prompt` tokens that are not trained on, then `answer` that are.
inline OwnedRow MakeRow(std::mt19937& random, size_t prompt, size_t answer) {
  OwnedRow made;
  for (size_t i = 0; i < prompt + answer; ++i) {
    made.token_ids.push_back(static_cast<int32_t>(random() % 13));
    made.loss_mask.push_back(i >= prompt);
    made.logprobs.push_back(i < prompt ? NAN : -static_cast<float>(random() % 1000) / 400.0f);
  }
  made.advantage = static_cast<float>(random() % 2000) / 1000.0f - 1;
  return made;
}

// Views of `owned`, which must outlive them.
inline std::vector<Row> RowsOf(const std::vector<OwnedRow>& owned) {
  std::vector<Row> rows;
  for (const OwnedRow& each : owned) rows.push_back(each.row());
  return rows;
}

inline bool Equal(const model::Transformer& a, const model::Transformer& b) {
  const auto ours = a.Parameters(), theirs = b.Parameters();
  for (size_t i = 0; i < ours.size(); ++i)
    if (!torch::equal(ours[i], theirs[i])) return false;
  return ours.size() == theirs.size();
}

}  // namespace replay::trainer::testing
