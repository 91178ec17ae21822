#pragma once
// From draws to tensors, cut into micro-batches by a budget of tokens.
//
//   draws ─► rows ─► sorted by length ─► micro-batches of at most `max_tokens` padded tokens ─► gradients added up
//
// A row is a draw: a trajectory that was drawn twice is trained on twice. What the loss divides by is counted over all rows, so
// the gradients of the parts add up to that of one big batch, up to rounding.

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "replay/trajectory.h"
#include "trainer/loss.h"
#include "trainer/model/transformer.h"

namespace replay::trainer {

// What training needs of one draw: L tokens, in spans over bytes that somebody else keeps.
struct Row {
  std::span<const int32_t> token_ids;         // [L]
  std::span<const uint8_t> loss_mask;         // [L] 1 on tokens to train on; never on the first, which nothing predicts
  std::span<const float> behaviour_logprobs;  // [L], read where the mask is 1
  std::span<const float> advantages;          // [L], or empty: `advantage` for every token
  float advantage = 0;                        // NaN: none was stored
  float reward = 0;
  float group_mean = 0;   // mean reward of its group when it was generated; NaN: none was stored
  float temperature = 1;  // of sampling
};

// A prompt with an answer that is trained on or looked at, with no log-probabilities of whoever wrote it: for what is computed
// from the model's own alone. Keeps the bytes of its row.
class AnsweredPrompt {
 public:
  AnsweredPrompt(std::span<const int32_t> prompt, std::span<const int32_t> answer);
  Row row() const;  // must not outlive it

 private:
  std::vector<int32_t> token_ids_;
  std::vector<uint8_t> loss_mask_;
  std::vector<float> logprobs_;
};

// A view of the trajectory, which must outlive it.
Row RowOf(const TrajectoryView& trajectory);

// Empty, or why the row cannot be trained on: "token id 99 at 3: the vocabulary has 23".
std::string CheckRow(const Row& row, int64_t vocab_size, int64_t context, const LossOptions& loss);

// Position i of the [b, t] tensors speaks of token i + 1, which the model predicts from tokens 0 … i: t = longest - 1. Only the
// n positions where the mask is 1 are run through the model's head: logits of prompts are never made.
struct MicroBatch {
  torch::Tensor ids;          // int64 [b, t] all but each row's last token, padded on the right with 0
  torch::Tensor positions;    // int64 [n] into the flattened [b * t]
  torch::Tensor targets;      // int64 [n] the tokens to predict there
  torch::Tensor temperature;  // [n]
  LossInput loss;             // all but logprobs
};

// At most `max_tokens` padded tokens each (a row that is longer alone gets a part of its own). Rows must pass CheckRow; those
// without a token to train on are left out. `device` is the model's.
std::vector<MicroBatch> MakeMicroBatches(std::span<const Row> rows, int64_t max_tokens, torch::Device device,
                                         Normalizer* normalizer);

// log p of the targets from hidden states [b, t, hidden], at each row's temperature (0 counts as 1: the log-probabilities of
// greedy answers are those at 1): [b, t], 0 where the mask is. `entropy_sum`, where wanted: of the model's distributions at the
// n positions, added up, in nats.
torch::Tensor TargetLogprobs(const model::Transformer& transformer, const torch::Tensor& hidden, const MicroBatch& batch,
                             double* entropy_sum);

}  // namespace replay::trainer
