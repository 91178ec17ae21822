#pragma once
// From draws to tensors, cut into micro-batches by a budget of tokens.
//
//   draws ─► rows sorted by length ─► micro-batches of at most `max_tokens` padded tokens ─► gradients added up
//
// A row is a draw, so a trajectory that was drawn twice is trained on twice. Normalizers are those of the whole batch: the gradient
// of the parts is that of one big batch, up to rounding.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/loss.h"

namespace replay::trainer {

// One draw, as plain values: what the loss needs of a trajectory. L tokens.
struct Row {
  std::vector<int32_t> token_ids;         // [L]
  std::vector<uint8_t> loss_mask;         // [L] 1 on tokens to train on; never on the first, which nothing predicts
  std::vector<float> behaviour_logprobs;  // [L], NaN where not generated
  float advantage = 0;
  float reward = 0;
  float group_mean = 0;
  float temperature = 1;
};

// Empty, or why the row cannot be trained on: "token id 99 at 3: the vocabulary has 23".
std::string CheckRow(const Row& row, int64_t vocab_size, int64_t context);

// Position i of the [b, t] tensors speaks of token i + 1, which the model predicts from tokens 0 … i: t = longest - 1.
struct MicroBatch {
  torch::Tensor ids;          // int64 [b, longest], padded on the right with 0
  torch::Tensor targets;      // int64 [b, t] the tokens to predict
  torch::Tensor temperature;  // [b]
  LossInput loss;             // all but logprobs
};

// At most `max_tokens` padded tokens each (a row that is longer alone gets one of its own). Rows without a token to train on are
// left out. `device` is the model's.
std::vector<MicroBatch> MakeMicroBatches(std::span<const Row> rows, int64_t max_tokens, torch::Device device, Normalizer* normalizer);

// log p of the targets, [b, t], from logits [b, t, vocab] at each row's temperature (0 counts as 1: greedy answers are scored as
// the decoder reports them); and the mean entropy over the masked tokens, without gradient.
torch::Tensor TargetLogprobs(const torch::Tensor& logits, const MicroBatch& batch, torch::Tensor* entropy_sum);

}  // namespace replay::trainer
