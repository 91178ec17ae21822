#pragma once
// What a run has cost, in the units of the paper (2604.08706): one step without a buffer = 1, of which mu / (1 + mu) is generating
// its batch and 1 / (1 + mu) training on it.
//
//   mu       cost to generate one rollout / cost to train on one draw
//   y        draws / rollouts, the replay ratio              W/T = mu / y
//   gamma    (1 + W/T) / (1 + mu)                            units of one step
//   units    (mu rollouts + draws) / (batch (1 + mu))        = gamma steps
//
// mu is declared by whoever runs it, as that of the machines the result is meant for, and measured from the CPU seconds that
// generators and trainer report. Both are always shown.

#include <cstdint>

#include "replay/client.h"

namespace replay::trainer {

double ReplayRatio(uint64_t rollouts, uint64_t draws);
double Gamma(double mu, uint64_t rollouts, uint64_t draws);
double ComputeUnits(double mu, uint64_t rollouts, uint64_t draws, uint32_t batch);

// Adds up what a daemon's counters say, over restarts of the daemon that set them to zero.
class ComputeMeter {
 public:
  // What was spent before this process, from a checkpoint.
  void Resume(uint64_t rollouts, uint64_t draws);
  // Rollouts that were in the buffer before the first call are not of this run. `generation` is the server's: another one than
  // before has begun its counters anew, as has a buffer that was dropped and made again.
  void Update(uint64_t generation, const BufferStats& stats);
  void AddDraws(uint64_t draws) { draws_ += draws; }

  uint64_t rollouts() const { return rollouts_; }
  uint64_t draws() const { return draws_; }
  uint64_t tokens_inserted() const { return tokens_inserted_; }
  // Of what was reported so far; 0 until both sides have.
  double MeasuredMu() const;
  double generation_seconds() const { return generation_seconds_; }
  double training_seconds() const { return training_seconds_; }

 private:
  struct Seen {
    uint64_t accepted = 0, tokens_inserted = 0, generated = 0, trained = 0;
    double generation_seconds = 0, training_seconds = 0;
  };
  bool first_ = true;
  uint64_t generation_ = 0;
  Seen last_;
  uint64_t rollouts_ = 0, draws_ = 0, tokens_inserted_ = 0, generated_ = 0, trained_ = 0;
  double generation_seconds_ = 0, training_seconds_ = 0;
};

}  // namespace replay::trainer
