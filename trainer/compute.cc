#include "trainer/compute.h"

namespace replay::trainer {

double ReplayRatio(uint64_t rollouts, uint64_t draws) {
  return rollouts == 0 ? 0 : static_cast<double>(draws) / static_cast<double>(rollouts);
}

double Gamma(double mu, uint64_t rollouts, uint64_t draws) {
  if (draws == 0) return 0;
  return (1 + mu * static_cast<double>(rollouts) / static_cast<double>(draws)) / (1 + mu);
}

double ComputeUnits(double mu, uint64_t rollouts, uint64_t draws, uint32_t batch) {
  return (mu * static_cast<double>(rollouts) + static_cast<double>(draws)) / (batch * (1 + mu));
}

void ComputeMeter::Resume(uint64_t rollouts, uint64_t draws) {
  rollouts_ = rollouts;
  draws_ = draws;
}

void ComputeMeter::Update(uint64_t generation, const BufferStats& stats) {
  const Seen now{.accepted = stats.accepted,
                 .tokens_inserted = stats.tokens_inserted,
                 .generated = stats.generated_trajectories,
                 .trained = stats.trained_draws,
                 .generation_seconds = stats.generation_seconds,
                 .training_seconds = stats.training_seconds};
  // Counters only grow, except those of a buffer that was made again; all are compared, since any may have caught up.
  const bool begun_anew = generation != generation_ || now.accepted < last_.accepted || now.generated < last_.generated ||
                          now.trained < last_.trained || now.tokens_inserted < last_.tokens_inserted ||
                          now.generation_seconds < last_.generation_seconds || now.training_seconds < last_.training_seconds;
  const Seen since = first_ ? now : begun_anew ? Seen{} : last_;
  first_ = false;
  generation_ = generation;
  last_ = now;
  rollouts_ += now.accepted - since.accepted;
  tokens_inserted_ += now.tokens_inserted - since.tokens_inserted;
  generated_ += now.generated - since.generated;
  trained_ += now.trained - since.trained;
  generation_seconds_ += now.generation_seconds - since.generation_seconds;
  training_seconds_ += now.training_seconds - since.training_seconds;
}

double ComputeMeter::MeasuredMu() const {
  if (generated_ == 0 || trained_ == 0 || training_seconds_ <= 0) return 0;
  return (generation_seconds_ / static_cast<double>(generated_)) / (training_seconds_ / static_cast<double>(trained_));
}

}  // namespace replay::trainer
