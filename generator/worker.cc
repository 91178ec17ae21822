#include "generator/worker.h"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "trainer/model/checkpoint.h"

namespace replay {

using namespace std::chrono_literals;

namespace {

constexpr auto kReportEvery = 500ms;
constexpr auto kSayEvery = 10s;

// Two processes, or one that was killed and started again, must not make the same ids.
std::string RandomPrefix(const std::string& run_id) {
  std::random_device device;
  char text[20];
  std::snprintf(text, sizeof text, "-%08x%08x-", device(), device());
  return run_id.substr(0, 64) + text;
}

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Worker::Worker(const GeneratorConfig& config, const std::atomic<bool>& stop)
    : config_(config),
      stop_(stop),
      prefix_(RandomPrefix(config.run_id)),
      client_({.address = config.address, .name = "generator " + config.run_id}),
      // Every group is a request of its own, so that the window counts groups. It never gives up: whoever runs it stops it.
      writer_(client_.NewWriter(config.buffer, {.max_in_flight = config.groups_in_flight,
                                                .batch_trajectories = 1,
                                                .linger = milliseconds(0),
                                                .give_up_after = std::chrono::hours(24 * 365)})),
      weights_(client_, config.run_id),
      random_(config.seed) {
  rollout_.run_id = config.run_id;
  rollout_.temperature = static_cast<float>(config.temperature);
}

void Worker::Loop() {
  while (!stop_ && RefreshWeights() && (config_.max_groups == 0 || groups_ < config_.max_groups)) {
    busy_.Begin();
    StartPrompts();
    std::vector<model::Answer> complete = decoder_->Step();
    busy_.End();
    Collect(std::move(complete));
    Report();
  }
  if (const Result<Done> flushed = writer_->Flush(2s); !flushed)
    spdlog::warn("not everything was acknowledged: {}", flushed.error().ToString());
  const Writer::Progress progress = writer_->progress();
  spdlog::info(
      "stopped after {} groups ({} with equal rewards, {} of them not sent): {} rollouts accepted, {} refused, {} not "
      "acknowledged",
      groups_, equal_groups_, skipped_groups_, progress.accepted, progress.failed, progress.in_flight);
}

bool Worker::RefreshWeights() {
  if (const std::optional<PolicyVersion> newer = weights_.TakeNewer(0ms)) Load(*newer);
  while (!stop_ && !model_) {
    if (const std::optional<PolicyVersion> first = weights_.TakeNewer(500ms)) Load(*first);
    if (!model_ && Clock::now() - said_at_ > kSayEvery) {
      said_at_ = Clock::now();
      const std::string trouble = weights_.trouble();
      spdlog::warn("waiting for the first version of run \"{}\" at {}{}", config_.run_id, config_.address,
                   trouble.empty() ? "" : ": " + trouble);
    }
  }
  return !stop_;
}

void Worker::Load(const PolicyVersion& version) {
  const std::string folder = FolderOfUri(version.uri);
  try {
    if (folder.empty()) throw model::CheckpointError("its uri is \"" + version.uri + "\": only file:// can be read");
    model::Transformer loaded = model::LoadModel(folder);
    if (model_) {
      model_->CopyFrom(loaded);  // into the tensors that the decoder uses
    } else {
      const auto& context = loaded.config().max_position_embeddings;
      const int64_t longest = static_cast<int64_t>(config_.task->max_prompt_tokens()) + config_.max_answer_tokens;
      if (longest > context)
        throw std::runtime_error("prompts of up to " + std::to_string(config_.task->max_prompt_tokens()) +
                                 " tokens and answers of " + std::to_string(config_.max_answer_tokens) +
                                 " do not fit into the model's context of " + std::to_string(context));
      if (config_.task->vocab_size() > loaded.config().vocab_size)
        throw std::runtime_error("the task needs a vocabulary of " + std::to_string(config_.task->vocab_size()) +
                                 ": the model has " + std::to_string(loaded.config().vocab_size));
      model_.emplace(std::move(loaded));
      decoder_.emplace(*model_, config_.rows, longest,
                       model::SamplingOptions{.temperature = config_.temperature,
                                              .top_p = config_.top_p,
                                              .max_answer_tokens = config_.max_answer_tokens,
                                              .end_token = config_.task->end_token()},
                       random_());
      spdlog::info("generating for {} with {} parameters from version {}, {} answers to each prompt", config_.task->Summary(),
                   model_->parameter_count(), version.version, config_.group_size);
    }
  } catch (const model::CheckpointError& error) {
    // It may have been removed meanwhile, for newer ones: those come next.
    spdlog::warn("version {} cannot be read{}: {}", version.version, model_ ? ", going on with an older one" : "",
                 error.what());
    return;
  }
  version_ = version.version;
  rollout_.epoch = version.epoch;
  decoder_->SetVersion(version.version);
}

void Worker::StartPrompts() {
  std::vector<model::Decoder::Job> jobs;
  for (int64_t room = decoder_->room(); room >= config_.group_size; room -= config_.group_size) {
    OpenGroup& group = open_[next_tag_];
    group.prompt = config_.task->NextTrainingPrompt(random_);
    jobs.push_back({.prompt = group.prompt.token_ids, .count = config_.group_size, .tag = next_tag_++});
  }
  decoder_->Add(jobs);
}

void Worker::Collect(std::vector<model::Answer> answers) {
  for (model::Answer& answer : answers) {
    const auto found = open_.find(answer.tag);
    OpenGroup& group = found->second;
    group.answers.push_back(std::move(answer));
    if (group.answers.size() < config_.group_size) continue;
    busy_.Begin();
    const Group made =
        MakeGroup(*config_.task, group.prompt, prefix_ + std::to_string(found->first), std::move(group.answers), rollout_);
    busy_.End();
    open_.erase(found);
    Insert(made);
  }
}

void Worker::Insert(const Group& group) {
  ++groups_;
  ++reward_groups_;
  reward_sum_ += group.mean_reward;
  trajectories_ += group.trajectories.size();
  tokens_ += group.answer_tokens;
  line_tokens_ += group.answer_tokens;
  equal_groups_ += group.all_equal ? 1 : 0;
  if (group.all_equal && config_.skip_equal_rewards) {
    ++skipped_groups_;
    return;
  }
  // Short waits, so that a signal is heard and reports go on while pacing holds the group back.
  while (!stop_) {
    const Result<Done> queued = writer_->InsertGroup(group.trajectories, 500ms);
    if (queued) return;
    Report();
    if (queued.error().code == ErrorCode::kTimedOut) continue;
    spdlog::error("a group of {} was refused: {}", group.trajectories.size(), queued.error().ToString());
    return;
  }
}

void Worker::Report() {
  const Clock::time_point now = Clock::now();
  if (now - reported_at_ >= kReportEvery && trajectories_ > 0) {
    reported_at_ = now;
    const Result<Done> reported = client_.ReportCost(config_.buffer, {.generation_seconds = busy_.TakeSeconds(),
                                                                      .generated_trajectories = std::exchange(trajectories_, 0),
                                                                      .generated_tokens = std::exchange(tokens_, 0),
                                                                      .workers = 1});
    (void)reported;  // Not worth a retry: mu is a ratio of many.
  }
  if (now - said_at_ < kSayEvery) return;
  const Writer::Progress progress = writer_->progress();
  if (progress.reconnects > reconnects_seen_) spdlog::warn("connected to {} again", config_.address);
  if (progress.content_lost > lost_seen_)
    spdlog::warn("the daemon restarted without {} rollouts that it had", progress.content_lost - lost_seen_);
  if (progress.failed > failed_seen_) {
    const Result<Done> why = writer_->Flush(0ms);
    spdlog::warn("{} rollouts were refused: {}", progress.failed - failed_seen_, why ? "" : why.error().ToString());
  }
  reconnects_seen_ = progress.reconnects;
  lost_seen_ = progress.content_lost;
  failed_seen_ = progress.failed;
  if (const std::string trouble = weights_.trouble(); !trouble.empty())
    spdlog::warn("no daemon at {}, trying again: {}", config_.address, trouble);
  const double seconds = Seconds(now - std::exchange(said_at_, now));
  spdlog::info("version {}  groups {}  reward {:.2f}  {:.0f} tokens/s  {} rollouts under way", version_, groups_,
               reward_groups_ > 0 ? reward_sum_ / static_cast<double>(reward_groups_) : 0,
               static_cast<double>(line_tokens_) / seconds, progress.in_flight);
  reward_sum_ = 0;
  reward_groups_ = line_tokens_ = 0;
}

}  // namespace replay
