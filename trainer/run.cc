#include "trainer/run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "trainer/model/checkpoint.h"
#include "trainer/numbered_folders.h"

namespace replay::trainer {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view kCheckpoint = "checkpoint-";  // A folder gets its name when it is whole.

std::string Journaled(const std::string& output) {
  std::error_code error;
  fs::create_directories(output, error);
  if (error) throw model::CheckpointError(output + " cannot be made: " + error.message());
  return output + "/log.jsonl";
}

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Run::Run(const TrainerConfig& config, bool resume, const std::atomic<bool>& stop)
    : config_(config),
      stop_(stop),
      held_out_(config.task->HeldOutPrompts(config.evaluation.options.prompts)),
      learner_(model::LoadModel(config.model), config.learner),
      client_({.address = config.address, .name = "trainer " + config.run_id}),
      publisher_(client_, {.run_id = config.run_id, .folder = config.weights, .keep = config.keep_versions}),
      sampler_(client_.NewSampler(config.buffer, {.count = config.batch_size, .prefetch = 1, .max_prefetch_age = 0})),
      journal_(Journaled(config.output)) {
  if (learner_.model().config().vocab_size < config.task->vocab_size())
    throw ConfigError("model has a vocabulary of " + std::to_string(learner_.model().config().vocab_size) +
                      ": the task needs " + std::to_string(config.task->vocab_size()));
  const int64_t context = int64_t{config.task->max_prompt_tokens()} + config.task->max_answer_tokens();
  if (learner_.model().config().max_position_embeddings < context)
    throw ConfigError("model has a context of " + std::to_string(learner_.model().config().max_position_embeddings) +
                      " tokens: the task's prompts and answers need " + std::to_string(context));
  torch::manual_seed(config.seed);
  if (resume) Resume();
}

Run::End Run::Loop() {
  for (Result<Done> joined = publisher_.JoinRegistry(step_); !joined && !stop_; joined = publisher_.JoinRegistry(step_)) {
    spdlog::warn("no daemon at {} yet: {}", config_.address, joined.error().ToString());
    std::this_thread::sleep_for(1s);
  }
  LookAtServer(/*urgent=*/true);  // what is in the buffer by now is not of this run
  Publish();
  spdlog::info("training {} parameters on {} from step {} to {}, batch {}, buffer \"{}\" at {}",
               learner_.model().parameter_count(), config_.task->Summary(), step_, config_.steps, config_.batch_size,
               config_.buffer, config_.address);

  while (!stop_ && step_ < config_.steps) {
    if (EvaluationDue()) EvaluateNow();
    if (config_.stop.accuracy > 0 && accuracy_ >= config_.stop.accuracy) break;
    if (config_.stop.units > 0 && Units() >= config_.stop.units) break;

    const Clock::time_point began = Clock::now();
    const std::optional<Batch> batch = NextBatch();
    if (!batch) break;
    const double waited = Seconds(Clock::now() - began);
    const StepReport report = Train(*batch);
    ++step_;
    if (step_ % config_.publish_every == 0) Publish();

    const double seconds = Seconds(Clock::now() - began);
    waited_seconds_ += waited;
    LookAtServer();
    journal_.Step({.step = step_,
                   .steps = config_.steps,
                   .report = &report,
                   .batch = &*batch,
                   .units = Units(),
                   .replay_ratio = ReplayRatio(meter_.rollouts(), meter_.draws()),
                   .waited_seconds = waited,
                   .seconds = seconds,
                   .generated_tokens_per_second = generated_tokens_per_second_,
                   .trained_tokens_per_second = report.sums.tokens / std::max(1e-9, seconds - waited)});
    if (report.taken) {
      bad_steps_ = 0;
    } else if (++bad_steps_ >= config_.max_bad_steps) {
      journal_.ClearProgress();
      spdlog::error("step {} not taken: {}; that is {} in a row: stopping", step_, report.why_not, bad_steps_);
      journal_.Note("diverged", step_, report.why_not);
      return End::kDiverged;
    }
    if (config_.checkpoint_every > 0 && step_ % config_.checkpoint_every == 0) SaveCheckpoint();
  }

  journal_.ClearProgress();
  ReportCost();
  if (!stop_ && evaluated_at_ != step_ && (config_.evaluation.every_steps > 0 || config_.evaluation.every_units > 0))
    EvaluateNow();
  if (config_.checkpoint_every > 0) SaveCheckpoint();
  const double total = Seconds(Clock::now() - began_);
  spdlog::info(
      "{} at step {}: {:.0f} compute units, {} rollouts, {} draws, {:.0f} s, of which {:.1f} s ({:.1f} %) waiting for data",
      stop_ ? "stopped" : "done", step_, Units(), meter_.rollouts(), meter_.draws(), total, waited_seconds_,
      100 * waited_seconds_ / std::max(1e-9, total));
  return stop_ ? End::kStopped : End::kDone;
}

std::optional<Batch> Run::NextBatch() {
  Clock::time_point said = Clock::now();
  while (!stop_) {
    Result<Batch> batch = sampler_->Next(step_, 1'000ms);
    if (batch) return std::move(*batch);
    PublishWhatIsMissing();
    if (Clock::now() - said < 10s) continue;
    said = Clock::now();
    journal_.ClearProgress();
    const std::string why =
        batch.error().ToString() + (unpublished_.empty() ? "" : "; the weights are not published: " + unpublished_);
    spdlog::warn("step {} waits for data: {}", step_, why);
    journal_.Note("waiting", step_, why);
  }
  return std::nullopt;
}

StepReport Run::Train(const Batch& batch) {
  busy_.Begin();
  std::vector<Row> rows;
  for (const Draw& draw : batch.draws) rows.push_back(RowOf(batch.trajectory(draw)));
  StepReport report = learner_.Step(rows);
  busy_.End();
  meter_.AddDraws(batch.draws.size());
  trained_draws_ += batch.draws.size();
  trained_tokens_ += static_cast<uint64_t>(report.sums.tokens);
  if (report.unusable > 0) {
    journal_.ClearProgress();
    spdlog::warn("step {}: {} of {} draws cannot be trained on; the first: {}", step_, report.unusable, batch.draws.size(),
                 report.first_unusable);
  }
  if (!report.taken) {
    journal_.ClearProgress();
    spdlog::warn("step {} is not taken: {}", step_, report.why_not);
  }
  return report;
}

void Run::Publish() {
  unpublished_ = publisher_.Publish(step_, learner_.model());
  if (unpublished_.empty()) return;
  journal_.ClearProgress();
  spdlog::warn("version {} is not published, generators go on with what they have: {}", step_, unpublished_);
  journal_.Note("not_published", step_, unpublished_);
}

void Run::PublishWhatIsMissing() {
  if (!unpublished_.empty()) {
    unpublished_ = publisher_.Publish(step_, learner_.model());
    return;
  }
  const Result<std::vector<PolicyVersion>> versions = client_.Versions(config_.run_id);
  if (!versions || !versions->empty()) return;
  journal_.ClearProgress();
  spdlog::warn("the daemon at {} restarted without the versions of this run: publishing {} again", config_.address,
               publisher_.published());
  unpublished_ = publisher_.PublishAgain();
}

void Run::LookAtServer(bool urgent) {
  const Clock::time_point now = Clock::now();
  if (now - looked_at_ < 500ms && !urgent) return;
  ReportCost();
  const Result<ServerStats> stats = client_.Stats(config_.buffer);
  if (!stats || stats->buffers.empty()) {
    looked_at_ = now;
    return;
  }
  const uint64_t tokens_before = meter_.tokens_inserted();
  meter_.Update(stats->generation, stats->buffers[0]);
  if (looked_at_ != Clock::time_point{}) {
    const double rate = static_cast<double>(meter_.tokens_inserted() - tokens_before) / Seconds(now - looked_at_);
    generated_tokens_per_second_ += 0.3 * (rate - generated_tokens_per_second_);
  }
  looked_at_ = now;
}

void Run::ReportCost() {
  if (trained_draws_ == 0) return;
  const Cost cost{.training_seconds = busy_.TakeSeconds(),
                  .trained_draws = std::exchange(trained_draws_, 0),
                  .trained_tokens = std::exchange(trained_tokens_, 0),
                  .trainers = 1};
  (void)client_.ReportCost(config_.buffer, cost);  // Not worth a retry: mu is a ratio of many.
}

double Run::Units() const { return ComputeUnits(config_.compute.mu, meter_.rollouts(), meter_.draws(), config_.batch_size); }

bool Run::EvaluationDue() const {
  const auto& when = config_.evaluation;
  if (when.every_units > 0 && Units() >= next_evaluation_units_) return true;
  return when.every_steps > 0 && step_ % when.every_steps == 0 && evaluated_at_ != step_;
}

void Run::ScheduleEvaluation() {
  evaluated_at_ = step_;
  const double every = config_.evaluation.every_units;
  while (every > 0 && next_evaluation_units_ <= Units()) next_evaluation_units_ += every;
}

void Run::EvaluateNow() {
  LookAtServer(/*urgent=*/true);  // so that what was spent is as of this step
  const Evaluation evaluation = Evaluate(learner_.model(), *config_.task, held_out_, config_.evaluation.options);
  accuracy_ = evaluation.accuracy;
  ScheduleEvaluation();
  journal_.Evaluated({.step = step_,
                      .evaluation = &evaluation,
                      .rollouts = meter_.rollouts(),
                      .draws = meter_.draws(),
                      .mu_declared = config_.compute.mu,
                      .mu_measured = meter_.MeasuredMu(),
                      .workers_per_trainer_declared = config_.compute.workers / config_.compute.trainers,
                      .batch = config_.batch_size,
                      .seconds = Seconds(Clock::now() - began_),
                      .generation_seconds = meter_.generation_seconds(),
                      .training_seconds = meter_.training_seconds()});
  journal_.ClearProgress();
  std::string passes;
  for (const auto& [k, value] : evaluation.pass_at) passes += spdlog::fmt_lib::format(" pass@{} {:.3f}", k, value);
  spdlog::info(
      "step {}  units {:.0f}  rollouts {}  accuracy {:.3f} {}  entropy {:.2f}  replay ratio {:.2f}  mu declared {:.2f} "
      "measured {:.2f}",
      step_, Units(), meter_.rollouts(), evaluation.accuracy, passes, evaluation.entropy,
      ReplayRatio(meter_.rollouts(), meter_.draws()), config_.compute.mu, meter_.MeasuredMu());
}

std::string Run::CheckpointFolder(int64_t step) const {
  return config_.output + "/" + std::string(kCheckpoint) + std::to_string(step);
}

void Run::SaveCheckpoint() {
  const std::string folder = CheckpointFolder(step_);
  if (fs::exists(folder)) return;
  try {
    learner_.Save(folder, {{"step", std::to_string(step_)},
                           {"rollouts", std::to_string(meter_.rollouts())},
                           {"draws", std::to_string(meter_.draws())},
                           {"run_id", config_.run_id}});
  } catch (const model::CheckpointError& error) {
    journal_.ClearProgress();
    spdlog::error("no checkpoint at step {}: {}", step_, error.what());
    journal_.Note("no_checkpoint", step_, error.what());
    return;
  }
  const std::vector<int64_t> steps = NumberedFolders(config_.output, kCheckpoint);
  std::error_code error;
  for (size_t i = 0; i + config_.keep_checkpoints < steps.size(); ++i) fs::remove_all(CheckpointFolder(steps[i]), error);
}

void Run::Resume() {
  const std::vector<int64_t> steps = NumberedFolders(config_.output, kCheckpoint);
  if (steps.empty()) {
    spdlog::info("no checkpoint in {}: starting from {}", config_.output, config_.model);
    return;
  }
  const std::string folder = CheckpointFolder(steps.back());
  const std::map<std::string, std::string> facts = learner_.Load(folder);
  const auto number = [&](const char* name) -> int64_t {
    const auto found = facts.find(name);
    if (found == facts.end() || found->second.empty() || found->second.size() > 18 ||
        found->second.find_first_not_of("0123456789") != std::string::npos)
      throw model::CheckpointError(folder + "/trainer.safetensors has no number \"" + name + "\"");
    return std::stoll(found->second);
  };
  step_ = number("step");
  meter_.Resume(static_cast<uint64_t>(number("rollouts")), static_cast<uint64_t>(number("draws")));
  ScheduleEvaluation();
  spdlog::info("resuming from {}", folder);
}

}  // namespace replay::trainer
