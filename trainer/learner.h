#pragma once
// Learner: a model and its optimizer. One step of it is
//
//   rows ─► micro-batches ─► Forward ─► log-probabilities ─► loss ─► backward, gradients added up ─► AdamW
//
// A step whose loss or gradient is not finite is not taken: weights and optimizer stay as they were.
// Not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "trainer/batch.h"
#include "trainer/loss.h"
#include "trainer/model/transformer.h"
#include "trainer/optimizer.h"

namespace replay::trainer {

struct LearnerOptions {
  LossOptions loss;
  OptimizerOptions optimizer;
  int64_t micro_batch_tokens = 8192;  // padded; bounds the memory of one forward and backward pass
};

struct StepReport {
  LossMetrics sums;  // over the batch
  double loss = 0;
  double entropy = 0;        // mean over trained tokens, nats
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  uint64_t rows = 0;           // trained on
  uint64_t unusable = 0;       // refused by CheckRow
  std::string first_unusable;  // why
  bool taken = false;
  std::string why_not;  // where it was not: "the loss is nan"

  double ClipFraction() const { return sums.tokens > 0 ? sums.clipped / sums.tokens : 0; }
  // (sum w)² / (n sum w²) of the sequences' importance weights: 1 is on-policy.
  double EffectiveSampleSize() const {
    return sums.weight_squared > 0 ? sums.weight * sums.weight / (sums.sequences * sums.weight_squared) : 0;
  }
};

class Learner {
 public:
  Learner(model::Transformer transformer, const LearnerOptions& options);

  // Rows that cannot be trained on are left out and counted.
  StepReport Step(std::span<const Row> rows);

  const model::Transformer& model() const { return model_; }
  int64_t steps_taken() const { return optimizer_.steps_taken(); }

  // Everything that the next step depends on: weights, optimizer, torch's random state, and `facts` of the caller. The folder
  //   model/ (Hugging Face layout)  trainer.safetensors
  // comes into being whole or not at all, and must not exist. Throws model::CheckpointError.
  void Save(const std::string& folder, const std::map<std::string, std::string>& facts) const;
  // Into a learner of the same model. Returns the facts. Throws model::CheckpointError.
  std::map<std::string, std::string> Load(const std::string& folder);

 private:
  const LearnerOptions options_;
  model::Transformer model_;
  std::optional<model::Transformer> reference_;  // the model as it was at first, for the KL term
  AdamW optimizer_;
};

}  // namespace replay::trainer
