#pragma once
// The losses: each one function of what the model says now and what was stored when the rollout was generated. All are minimised.
//
// Shapes: b sequences, t tokens of the longest; everything [b, t] stands on answer tokens where mask is 1 and is ignored elsewhere.
// A batch may be cut into micro-batches: every function returns sums divided by what the *whole* batch has, so that gradients of
// the parts add up to that of the whole.

#include <torch/types.h>

#include <cstdint>
#include <string>

namespace replay::trainer {

struct LossInput {
  torch::Tensor logprobs;            // [b, t] of the model being trained, at the temperature of sampling; with gradient
  torch::Tensor behaviour_logprobs;  // [b, t] as stored
  torch::Tensor mask;                // [b, t] 1 on tokens to train on, else 0
  torch::Tensor advantage;           // [b, t] as stored: for GRPO (r - mean of group) / (standard deviation of group)
  torch::Tensor reward;              // [b]
  torch::Tensor group_mean;          // [b] mean reward of the group at generation
  torch::Tensor reference_logprobs;  // [b, t] of the model that the KL term holds on to; undefined without one
};

enum class Averaging : uint8_t {
  kToken,     // each token of the batch counts alike: long answers weigh more
  kSequence,  // the mean over each sequence's tokens, then over sequences
};

struct LossOptions {
  std::string kind = "grpo";  // grpo, asymre, reinforce, supervised
  Averaging averaging = Averaging::kToken;
  double clip_low = 0.2;  // grpo: ratios below 1 - clip_low gain nothing
  double clip_high =
      0.2;  // grpo: ratios above 1 + clip_high gain nothing; larger than clip_low is "clip-higher" (DAPO, 2503.14476)
  double kl_weight = 0;          // of the KL term towards the reference; 0: none
  double baseline_shift = -0.1;  // asymre: dV, in units of the reward
  double largest_weight = 2;     // reinforce: importance weights are cut off above it
};

// What the whole batch has, over all its micro-batches.
struct Normalizer {
  double tokens = 0;  // sum of mask
  double sequences = 0;
};

// Sums over the micro-batch, to be added up: ratios of them are what is shown.
struct LossMetrics {
  double tokens = 0;
  double clipped = 0;  // tokens whose gradient the clip took away; with reinforce, whose weight was cut off
  double ratio = 0;    // sum of pi / pi_old over tokens
  double kl = 0;       // sum over tokens of the estimate pi_old / pi - 1 - log(pi_old / pi) (k3, joschu.net/blog/kl-approx)
  double sequences = 0;
  double weight = 0;          // sum over sequences of w = exp(sum of log pi / pi_old), for the effective sample size
  double weight_squared = 0;  //   ESS = (sum w)^2 / sum w^2
  LossMetrics& operator+=(const LossMetrics& other);
};

struct Loss {
  torch::Tensor value;  // scalar, with gradient
  LossMetrics metrics;
};

// GRPO (2402.03300, without its per-token KL unless asked): with rho = pi / pi_old of each token,
//   -mean min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
Loss Grpo(const LossInput& input, const LossOptions& options, const Normalizer& normalizer);

// AsymRE (2506.20520): no importance ratio, a baseline that is shifted below the group's mean so that failures push less,
//   -mean (r - (V + dV)) log pi,   V = group mean
Loss AsymRe(const LossInput& input, const LossOptions& options, const Normalizer& normalizer);

// REINFORCE with truncated importance weights (one-sided, as IMPALA 1802.01561 and CISPO 2506.13585): the weight is a constant,
//   -mean min(rho, c) A log pi
Loss Reinforce(const LossInput& input, const LossOptions& options, const Normalizer& normalizer);

// Cross-entropy, for the warm start on demonstrations: -mean log pi
Loss Supervised(const LossInput& input, const LossOptions& options, const Normalizer& normalizer);

// The one that options.kind names.
Loss ComputeLoss(const LossInput& input, const LossOptions& options, const Normalizer& normalizer);

}  // namespace replay::trainer
