#pragma once
// Run: the trainer's loop and what it holds.
//
//   sample ─► batch ─► loss ─► step ─► publish            and, when due: evaluate, save a checkpoint
//
// It never ends by itself for want of data or of a daemon: it says what it waits for and goes on when it is there.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "replay/client.h"
#include "trainer/compute.h"
#include "trainer/config.h"
#include "trainer/journal.h"
#include "trainer/learner.h"
#include "trainer/model/busy_clock.h"
#include "trainer/publisher.h"

namespace replay::trainer {

class Run {
 public:
  enum class End : uint8_t { kDone, kStopped, kDiverged };

  // Loads the model, or the newest checkpoint with `resume`. Throws model::CheckpointError. `config` and `stop` outlive the run.
  Run(const TrainerConfig& config, bool resume, const std::atomic<bool>& stop);

  End Loop();

 private:
  using Clock = std::chrono::steady_clock;

  void Resume();
  // The batch for the next step. Nothing if the run is to stop.
  std::optional<Batch> NextBatch();
  StepReport Train(const Batch& batch);
  void Publish();
  // While the run waits: what was not published is tried again, and a daemon that came back is told the version.
  void PublishWhatIsMissing();
  // Asks the daemon for its counters, at most every half second unless it is `urgent`.
  void LookAtServer(bool urgent = false);
  void ReportCost();
  bool EvaluationDue() const;
  void EvaluateNow();
  void ScheduleEvaluation();  // the next one, after this step's
  std::string CheckpointFolder(int64_t step) const;
  void SaveCheckpoint();
  double Units() const;

  const TrainerConfig& config_;
  const std::atomic<bool>& stop_;
  const std::vector<Prompt> held_out_;
  Learner learner_;
  Client client_;
  Publisher publisher_;
  std::unique_ptr<Sampler> sampler_;
  Journal journal_;
  ComputeMeter meter_;
  model::BusyClock busy_;

  int64_t step_ = 0;  // done
  uint32_t bad_steps_ = 0;
  std::string unpublished_;                          // why the last attempt to publish failed
  uint64_t trained_draws_ = 0, trained_tokens_ = 0;  // not yet reported
  double waited_seconds_ = 0;                        // in all
  std::optional<int64_t> evaluated_at_;
  double next_evaluation_units_ = 0;
  double accuracy_ = 0;
  Clock::time_point began_ = Clock::now();
  Clock::time_point looked_at_{};
  uint64_t tokens_at_look_ = 0;
  double generated_tokens_per_second_ = 0;
};

}  // namespace replay::trainer
