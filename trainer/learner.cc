#include "trainer/learner.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "trainer/model/checkpoint.h"

namespace replay::trainer {

namespace fs = std::filesystem;
using model::CheckpointError;
using torch::Tensor;

Learner::Learner(model::Transformer transformer, const LearnerOptions& options)
    : options_(options), model_(std::move(transformer)), optimizer_(model_.Parameters(), options.optimizer) {
  if (options.loss.kl_weight == 0) return;
  reference_.emplace(model_.config(), model_.device(), model_.dtype());
  reference_->CopyFrom(model_);
}

StepReport Learner::Step(std::span<const Row> rows) {
  StepReport report;
  std::vector<Row> usable;
  for (const Row& row : rows) {
    std::string error = CheckRow(row, model_.config().vocab_size, model_.config().max_position_embeddings, options_.loss);
    if (error.empty()) {
      usable.push_back(row);
    } else if (report.unusable++ == 0) {
      report.first_unusable = std::move(error);
    }
  }
  Normalizer normalizer;
  const auto batches = MakeMicroBatches(usable, options_.micro_batch_tokens, model_.device(), &normalizer);
  report.rows = static_cast<uint64_t>(normalizer.sequences);
  if (batches.empty()) {
    report.why_not = "the batch has no token to train on";
    return report;
  }

  double entropy_sum = 0;
  for (const MicroBatch& batch : batches) {
    LossInput input = batch.loss;
    double entropy = 0;
    input.logprobs = TargetLogprobs(model_, model_.Forward(batch.ids), batch, &entropy);
    if (reference_) {
      const torch::NoGradGuard no_grad;
      input.reference_logprobs = TargetLogprobs(*reference_, reference_->Forward(batch.ids), batch, nullptr);
    }
    const Loss loss = ComputeLoss(input, options_.loss, normalizer);
    loss.value.backward();
    report.loss += loss.value.item<double>();
    report.sums += loss.metrics;
    entropy_sum += entropy;
  }
  report.entropy = entropy_sum / normalizer.tokens;

  if (!std::isfinite(report.loss)) {
    optimizer_.ClearGradients();
    report.why_not = "the loss is " + std::to_string(report.loss);
    return report;
  }
  const AdamW::Result result = optimizer_.Step();
  report.gradient_norm = result.gradient_norm;
  report.learning_rate = result.learning_rate;
  report.taken = result.taken;
  if (!result.taken) report.why_not = "the gradient's norm is " + std::to_string(result.gradient_norm);
  return report;
}

void Learner::Save(const std::string& folder, const std::map<std::string, std::string>& facts) const {
  std::error_code error;
  if (fs::exists(folder, error)) throw CheckpointError(folder + " exists already");
  const std::string temporary = folder + ".incomplete";
  fs::remove_all(temporary, error);  // of an attempt that was killed
  try {
    if (!fs::create_directories(temporary, error) && error)
      throw CheckpointError(temporary + " cannot be made: " + error.message());
    model::SaveModel(temporary + "/model", model_);
    std::vector<model::NamedTensor> state = optimizer_.State();
    state.push_back({"random_state", at::globalContext().defaultGenerator(at::kCPU).get_state()});
    model::WriteSafeTensors(temporary + "/trainer.safetensors", state, {.metadata = facts});
    fs::rename(temporary, folder, error);
    if (error) throw CheckpointError(folder + " cannot be put in place: " + error.message());
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  model::SyncFolder(fs::path(folder).parent_path());
}

std::map<std::string, std::string> Learner::Load(const std::string& folder) {
  const model::Transformer stored = model::LoadModel(folder + "/model", model_.device(), model_.dtype());
  const model::SafeTensors file(folder + "/trainer.safetensors");
  std::vector<model::NamedTensor> state;
  for (const std::string& name : file.Names()) state.push_back({name, file.Get(name)});
  try {
    model_.CopyFrom(stored);
    optimizer_.Load(state);
    torch::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_state(file.Get("random_state").clone());
  } catch (const c10::Error& failure) {
    throw CheckpointError(folder + " does not fit this model: " + failure.what_without_backtrace());
  }
  return file.metadata();
}

}  // namespace replay::trainer
