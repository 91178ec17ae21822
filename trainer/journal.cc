#include "trainer/journal.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace replay::trainer {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN; what was not measured is null.
ordered_json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * 1e6) / 1e6;
}

struct BatchSummary {
  double reward = 0, accuracy = 0;  // means over draws; accuracy over those whose producer said
  int64_t staleness_p50 = 0, staleness_p90 = 0;
  double new_share = 0;  // first uses
};

BatchSummary Summarize(const Batch& batch) {
  BatchSummary summary;
  if (batch.draws.empty()) return summary;
  std::vector<int64_t> staleness;
  double scored = 0, correct = 0;
  const auto count = static_cast<double>(batch.draws.size());
  for (const Draw& draw : batch.draws) {
    const TrajectoryView& trajectory = batch.trajectory(draw);
    summary.reward += trajectory.reward() / count;
    scored += trajectory.correct() != Correctness::kUnknown ? 1 : 0;
    correct += trajectory.correct() == Correctness::kYes ? 1 : 0;
    summary.new_share += draw.steps_since_last_use < 0 ? 1 / count : 0;
    staleness.push_back(draw.staleness);
  }
  summary.accuracy = scored > 0 ? correct / scored : NAN;
  std::sort(staleness.begin(), staleness.end());
  summary.staleness_p50 = staleness[staleness.size() / 2];
  summary.staleness_p90 = staleness[staleness.size() * 9 / 10];
  return summary;
}

}  // namespace

Journal::Journal(const std::string& path)
    : file_(path, O_WRONLY | O_CREAT | O_APPEND), is_terminal_(isatty(STDERR_FILENO) == 1) {}

Journal::~Journal() {
  ClearProgress();
  if (failed_lines_ > 0) std::fprintf(stderr, "%lu lines of the log could not be written\n", failed_lines_);
}

void Journal::WriteLine(std::string line) {
  line += '\n';
  const off_t size = lseek(file_.fd(), 0, SEEK_END);
  try {
    file_.Write(line.data(), line.size());
  } catch (const model::CheckpointError&) {
    ++failed_lines_;
    // What was written of it would spoil the next line, and does where it cannot be taken back.
    if (size >= 0 && ftruncate(file_.fd(), size) != 0) ++failed_lines_;
  }
}

void Journal::ClearProgress() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void Journal::Step(const StepRecord& record) {
  const StepReport& report = *record.report;
  const BatchSummary summary = Summarize(*record.batch);
  const double tokens = std::max(1.0, report.sums.tokens);
  ordered_json line = {{"event", "step"},
                       {"step", record.step},
                       {"reward", Number(summary.reward)},
                       {"accuracy", Number(summary.accuracy)},
                       {"loss", Number(report.loss)},
                       {"entropy", Number(report.entropy)},
                       {"staleness_p50", summary.staleness_p50},
                       {"staleness_p90", summary.staleness_p90},
                       {"new_share", Number(summary.new_share)},
                       {"replay_ratio", Number(record.replay_ratio)},
                       {"clip_fraction", Number(report.ClipFraction())},
                       {"importance_ratio", Number(report.sums.ratio / tokens)},
                       {"kl_to_behaviour", Number(report.sums.kl / tokens)},
                       {"effective_sample_size", Number(report.EffectiveSampleSize())},
                       {"gradient_norm", Number(report.gradient_norm)},
                       {"learning_rate", report.learning_rate},
                       {"units", Number(record.units)},
                       {"seconds", Number(record.seconds)},
                       {"waited_seconds", Number(record.waited_seconds)},
                       {"generated_tokens_per_second", Number(record.generated_tokens_per_second)},
                       {"trained_tokens_per_second", Number(record.trained_tokens_per_second)},
                       {"taken", report.taken}};
  if (!report.taken) line["why_not"] = report.why_not;
  if (report.unusable > 0) line["unusable"] = report.unusable;
  WriteLine(line.dump());

  const Clock::time_point now = Clock::now();
  if (!is_terminal_ || now - shown_at_ < std::chrono::milliseconds(200)) return;
  shown_at_ = now;
  shown_ = true;
  std::fprintf(stderr,
               "\r\033[Kstep %ld/%ld  units %.0f  reward %.2f  entropy %.2f  stale %ld/%ld  replay %.2f  clip %.2f  |g| %.2f  "
               "ess %.2f  gen %.0f tok/s  train %.0f tok/s  waited %.2f s",
               record.step, record.steps, record.units, summary.reward, report.entropy, summary.staleness_p50,
               summary.staleness_p90, record.replay_ratio, report.ClipFraction(), report.gradient_norm,
               report.EffectiveSampleSize(), record.generated_tokens_per_second, record.trained_tokens_per_second,
               record.waited_seconds);
}

void Journal::Evaluated(const EvaluationRecord& record) {
  const Evaluation& evaluation = *record.evaluation;
  ordered_json line = {{"event", "evaluation"}, {"step", record.step}, {"accuracy", Number(evaluation.accuracy)}};
  for (const auto& [k, value] : evaluation.pass_at) line["pass@" + std::to_string(k)] = Number(value);
  const auto units = [&](double mu) {
    return Number(mu > 0 ? ComputeUnits(mu, record.rollouts, record.draws, record.batch) : NAN);
  };
  const double ratio = ReplayRatio(record.rollouts, record.draws);
  line.update(
      {{"entropy", Number(evaluation.entropy)},
       {"answer_tokens", Number(evaluation.answer_tokens)},
       {"rollouts", record.rollouts},
       {"draws", record.draws},
       {"replay_ratio", Number(ratio)},
       {"mu_declared", record.mu_declared},
       {"mu_measured", Number(record.mu_measured > 0 ? record.mu_measured : NAN)},
       {"workers_per_trainer_declared", Number(record.workers_per_trainer_declared)},
       {"workers_per_trainer", Number(ratio > 0 ? record.mu_declared / ratio : NAN)},
       {"gamma", Number(Gamma(record.mu_declared, record.rollouts, record.draws))},
       {"gamma_measured", Number(record.mu_measured > 0 ? Gamma(record.mu_measured, record.rollouts, record.draws) : NAN)},
       {"units", units(record.mu_declared)},
       {"units_measured", units(record.mu_measured)},
       {"generation_cpu_seconds", Number(record.generation_seconds)},
       {"training_cpu_seconds", Number(record.training_seconds)},
       {"seconds", Number(record.seconds)}});
  WriteLine(line.dump());
}

void Journal::Note(const std::string& event, int64_t step, const std::string& message) {
  WriteLine(ordered_json{{"event", event}, {"step", step}, {"message", message}}.dump(-1, ' ', false,
                                                                                      ordered_json::error_handler_t::replace));
}

}  // namespace replay::trainer
