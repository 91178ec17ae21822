#pragma once
// What a run leaves to be read: one JSON object a line in log.jsonl, and on a terminal one line that redraws itself.
//
//   {"event":"step","step":12,"reward":0.41,"accuracy":0.41,"entropy":0.31,"staleness_p50":2,"staleness_p90":5, …}
//   {"event":"evaluation","step":63,"accuracy":0.52,"pass@1":0.5,"pass@16":0.86,"mu_declared":5.28,"mu_measured":1.4, …}
//
// A line that cannot be written is left out whole and counted, and training goes on. Not thread-safe.

#include <chrono>
#include <cstdint>
#include <string>

#include "replay/client.h"
#include "trainer/compute.h"
#include "trainer/evaluate.h"
#include "trainer/learner.h"
#include "trainer/model/file.h"

namespace replay::trainer {

struct StepRecord {
  int64_t step = 0;   // done, with this one
  int64_t steps = 0;  // in all
  const StepReport* report = nullptr;
  const Batch* batch = nullptr;
  double units = 0;                        // of compute so far, by the declared mu
  double replay_ratio = 0;                 // draws / rollouts so far
  double waited_seconds = 0;               // for this batch
  double seconds = 0;                      // this step, waiting included
  double generated_tokens_per_second = 0;  // of all generators, lately
  double trained_tokens_per_second = 0;    // of the time that was not waited
};

struct EvaluationRecord {
  int64_t step = 0;
  const Evaluation* evaluation = nullptr;
  uint64_t rollouts = 0, draws = 0;
  double mu_declared = 0, mu_measured = 0;
  double workers_per_trainer_declared = 0;
  uint32_t batch = 0;
  double seconds = 0;                                   // since the run began
  double generation_seconds = 0, training_seconds = 0;  // CPU, as reported
};

class Journal {
 public:
  // Appends to `path`. Throws model::CheckpointError if it cannot be opened.
  explicit Journal(const std::string& path);
  ~Journal();

  void Step(const StepRecord& record);
  void Evaluated(const EvaluationRecord& record);
  // Anything else worth a line: {"event": event, "step": step, "message": message}.
  void Note(const std::string& event, int64_t step, const std::string& message);
  // Takes the progress line off the terminal, before something else is written there.
  void ClearProgress();

 private:
  using Clock = std::chrono::steady_clock;

  void WriteLine(std::string line);

  model::File file_;
  const bool is_terminal_;
  bool shown_ = false;
  Clock::time_point shown_at_{};
  uint64_t failed_lines_ = 0;
};

}  // namespace replay::trainer
