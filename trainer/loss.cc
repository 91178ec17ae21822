#include "trainer/loss.h"

namespace replay::trainer {
namespace {

using torch::Tensor;

// `per_token` [b, t] where the mask is 1, 0 elsewhere. Not a product: 0 times what stands there may be NaN.
Tensor Masked(const Tensor& per_token, const LossInput& input) {
  return torch::where(input.mask > 0, per_token, torch::zeros({}, per_token.options()));
}

// The sum over the micro-batch of `per_token` [b, t], divided so that the parts of a batch add up to its mean.
Tensor Mean(const Tensor& per_token, const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  const Tensor masked = Masked(per_token, input);
  if (options.averaging == Averaging::kToken) return masked.sum() / normalizer.tokens;
  return (masked.sum(1) / input.mask.sum(1).clamp_min(1)).sum() / normalizer.sequences;
}

// log pi - log pi_old: stored log-probabilities are NaN where nothing was generated.
Tensor LogRatio(const LossInput& input) { return Masked(input.logprobs - input.behaviour_logprobs, input); }

// `log_ratio` is masked. In double precision: the square of a sequence's weight leaves the range of single precision where
// log w is 44, which a thousand tokens reach when each is 5 % likelier than it was.
LossMetrics Measure(const LossInput& input, const Tensor& log_ratio, const Tensor& clipped) {
  const torch::NoGradGuard no_grad;
  const Tensor log_rho = log_ratio.to(torch::kFloat64), mask = input.mask.to(torch::kFloat64);
  const Tensor weights = log_rho.sum(1).exp();
  const Tensor sums = torch::stack({mask.sum(), clipped.defined() ? (clipped * mask).sum() : torch::zeros({}, mask.options()),
                                    (log_rho.exp() * mask).sum(), (torch::exp(-log_rho) - 1 + log_rho).sum(), weights.sum(),
                                    weights.square().sum()})
                          .to(torch::kCPU);
  const double* sum = sums.data_ptr<double>();
  return {.tokens = sum[0],
          .clipped = sum[1],
          .ratio = sum[2],
          .kl = sum[3],
          .sequences = static_cast<double>(input.mask.size(0)),
          .weight = sum[4],
          .weight_squared = sum[5]};
}

// k3: unbiased for KL(pi || reference) when tokens come from pi, and never negative.
Tensor KlTerm(const LossInput& input) {
  const Tensor log_ratio = Masked(input.reference_logprobs - input.logprobs, input);
  return log_ratio.exp() - 1 - log_ratio;
}

Tensor WithKl(Tensor loss, const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  if (options.kl_weight == 0) return loss;
  TORCH_CHECK(input.reference_logprobs.defined(), "kl_weight is ", options.kl_weight, " but there is no reference");
  return loss + options.kl_weight * Mean(KlTerm(input), input, options, normalizer);
}

}  // namespace

LossMetrics& LossMetrics::operator+=(const LossMetrics& other) {
  tokens += other.tokens;
  clipped += other.clipped;
  ratio += other.ratio;
  kl += other.kl;
  sequences += other.sequences;
  weight += other.weight;
  weight_squared += other.weight_squared;
  return *this;
}

Loss Grpo(const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  const Tensor log_ratio = LogRatio(input), ratio = log_ratio.exp();
  const Tensor free = ratio * input.advantage;
  const Tensor held = ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * input.advantage;
  const Tensor loss = Mean(-torch::min(free, held), input, options, normalizer);
  return {WithKl(loss, input, options, normalizer),
          Measure(input, log_ratio.detach(), (held < free).to(ratio.dtype()).detach())};
}

Loss AsymRe(const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  const Tensor advantage = (input.reward - (input.group_mean + options.baseline_shift)).unsqueeze(1);
  const Tensor loss = Mean(-advantage * input.logprobs, input, options, normalizer);
  return {WithKl(loss, input, options, normalizer), Measure(input, LogRatio(input).detach(), {})};
}

Loss Reinforce(const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  const Tensor log_ratio = LogRatio(input).detach(), ratio = log_ratio.exp();
  const Tensor weight = ratio.clamp_max(options.largest_weight) * Masked(input.advantage, input);
  const Tensor loss = Mean(-weight * input.logprobs, input, options, normalizer);
  return {WithKl(loss, input, options, normalizer),
          Measure(input, log_ratio, (ratio > options.largest_weight).to(ratio.dtype()))};
}

Loss Supervised(const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  return {Mean(-input.logprobs, input, options, normalizer), Measure(input, torch::zeros_like(input.logprobs), {})};
}

Loss ComputeLoss(const LossInput& input, const LossOptions& options, const Normalizer& normalizer) {
  if (options.kind == "grpo") return Grpo(input, options, normalizer);
  if (options.kind == "asymre") return AsymRe(input, options, normalizer);
  if (options.kind == "supervised") return Supervised(input, options, normalizer);
  TORCH_CHECK(options.kind == "reinforce", "the loss \"", options.kind, "\" is not known");
  return Reinforce(input, options, normalizer);
}

}  // namespace replay::trainer
