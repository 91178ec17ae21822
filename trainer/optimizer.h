#pragma once
// AdamW (1711.05101) with warm-up and a bound on the gradient's norm. With decay weight_decay, at step t:
//
//   g   scaled down so that its norm over all parameters is at most max_gradient_norm
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²
//   p = p - rate (weight_decay p + (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon))
//
// A gradient that is not finite changes nothing. Not thread-safe.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "trainer/model/transformer.h"

namespace replay::trainer {

struct OptimizerOptions {
  double learning_rate = 1e-6;
  int64_t warmup_steps = 0;  // the rate rises linearly over these
  int64_t decay_begin = 0;   // from this step on it falls linearly …
  int64_t decay_end = 0;     // … to 0 at this one; 0: it never does
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double max_gradient_norm = 1;  // 0: no bound
};

// Of step `step`, counted from 0.
double LearningRate(const OptimizerOptions& options, int64_t step);

class AdamW {
 public:
  AdamW(std::vector<torch::Tensor> parameters, const OptimizerOptions& options);

  struct Result {
    double gradient_norm = 0;  // before scaling; not finite: the step was not taken
    double learning_rate = 0;
    bool taken = false;
  };
  // Steps with the gradients at hand and clears them. A parameter without a gradient stays as it is.
  Result Step();
  void ClearGradients();

  int64_t steps_taken() const { return steps_taken_; }

  // For a checkpoint: "m.0", "v.0", … in order of the parameters, and "steps". Load throws c10::Error if they do not fit,
  // and then has changed nothing.
  std::vector<model::NamedTensor> State() const;
  void Load(const std::vector<model::NamedTensor>& state);

 private:
  const OptimizerOptions options_;
  const std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> first_, second_;  // m and v, as the parameters
  int64_t steps_taken_ = 0;
};

}  // namespace replay::trainer
