#include "trainer/config.h"

#include "schema/json_config.h"

namespace replay::trainer {
namespace {

constexpr double kMost = 1e12;
constexpr int64_t kMany = int64_t{1} << 40;

LossOptions ParseLoss(JsonConfig config) {
  LossOptions loss;
  loss.kind = config.Text("kind", loss.kind);
  if (loss.kind != "grpo" && loss.kind != "asymre" && loss.kind != "reinforce")
    config.Fail("kind", "must be \"grpo\", \"asymre\" or \"reinforce\"");
  const std::string averaging = config.Text("averaging", "token");
  if (averaging != "token" && averaging != "sequence") config.Fail("averaging", "must be \"token\" or \"sequence\"");
  loss.averaging = averaging == "token" ? Averaging::kToken : Averaging::kSequence;
  loss.clip_low = config.Number("clip_low", loss.clip_low, 0, 1);
  loss.clip_high = config.Number("clip_high", loss.clip_high, 0, kMost);
  loss.kl_weight = config.Number("kl_weight", loss.kl_weight, 0, kMost);
  loss.baseline_shift = config.Number("baseline_shift", loss.baseline_shift, -kMost, kMost);
  loss.largest_weight = config.Number("largest_weight", loss.largest_weight, 0, kMost);
  config.RefuseUnknown();
  return loss;
}

OptimizerOptions ParseOptimizer(JsonConfig config) {
  OptimizerOptions optimizer;
  optimizer.learning_rate = config.Number("learning_rate", optimizer.learning_rate, 0, 10);
  optimizer.warmup_steps = config.Integer("warmup_steps", 0, 0, kMany);
  optimizer.beta1 = config.Number("beta1", optimizer.beta1, 0, 0.999999);
  optimizer.beta2 = config.Number("beta2", optimizer.beta2, 0, 0.999999999);
  optimizer.epsilon = config.Number("epsilon", optimizer.epsilon, 1e-30, 1);
  optimizer.weight_decay = config.Number("weight_decay", 0, 0, 10);
  optimizer.max_gradient_norm = config.Number("max_gradient_norm", optimizer.max_gradient_norm, 0, kMost);
  config.RefuseUnknown();
  return optimizer;
}

// The names of config.json; the context and the vocabulary are what the task needs.
model::ModelConfig ParseArchitecture(JsonConfig config, const Task& task) {
  model::ModelConfig model;
  model.model_type = config.Text("model_type", "qwen3");
  if (model.model_type != "qwen3" && model.model_type != "qwen2" && model.model_type != "llama")
    config.Fail("model_type", "must be \"qwen3\", \"qwen2\" or \"llama\"");
  model.qkv_bias = model.model_type == "qwen2";
  model.qk_norm = model.model_type == "qwen3";
  model.vocab_size = task.vocab_size();
  model.hidden_size = config.Integer("hidden_size", 64, 1, 1 << 20);
  model.intermediate_size = config.Integer("intermediate_size", 4 * model.hidden_size, 1, 1 << 22);
  model.num_hidden_layers = config.Integer("num_hidden_layers", 2, 1, 1'000);
  model.num_attention_heads = config.Integer("num_attention_heads", 4, 1, 1'024);
  model.num_key_value_heads = config.Integer("num_key_value_heads", model.num_attention_heads, 1, 1'024);
  model.head_dim = config.Integer("head_dim", std::max<int64_t>(2, model.hidden_size / model.num_attention_heads), 2, 1'024);
  const int64_t context = int64_t{task.max_prompt_tokens()} + task.max_answer_tokens();
  model.max_position_embeddings = config.Integer("max_position_embeddings", context, context, 1 << 24);
  model.rope_theta = config.Number("rope_theta", model.rope_theta, 1, kMost);
  model.tie_word_embeddings = config.Flag("tie_word_embeddings", false);
  model.initializer_range = config.Number("initializer_range", model.initializer_range, 0, 10);
  config.RefuseUnknown();
  if (const std::string error = model::CheckModelConfig(model); !error.empty()) throw ConfigError(config.Path(error));
  return model;
}

}  // namespace

TrainerConfig ParseTrainerConfig(const std::string& text) {
  JsonConfig file = JsonConfig::Parse(text);
  TrainerConfig config;
  config.address = file.Text("address", config.address);
  config.buffer = file.Text("buffer", config.buffer);
  config.run_id = file.Text("run_id", config.run_id);
  config.seed = static_cast<uint64_t>(file.Integer("seed", 0, 0));
  config.threads = static_cast<int>(file.Integer("threads", 1, 1, 1'024));
  JsonConfig task = file.Object("task");
  config.task = MakeTask(task);
  for (const auto& [key, value] :
       {std::pair{"model", &config.model}, {"weights", &config.weights}, {"output", &config.output}}) {
    *value = file.Text(key, "");
    if (value->empty()) file.Fail(key, "must name a folder");
  }
  config.steps = file.Integer("steps", config.steps, 1, kMany);
  config.batch_size = static_cast<uint32_t>(file.Integer("batch_size", config.batch_size, 1, 65'536));
  config.learner.micro_batch_tokens = file.Integer("micro_batch_tokens", config.learner.micro_batch_tokens, 1, kMany);
  config.publish_every = file.Integer("publish_every", config.publish_every, 1, kMany);
  config.keep_versions = static_cast<uint32_t>(file.Integer("keep_versions", config.keep_versions, 2, 1'000'000));
  config.checkpoint_every = file.Integer("checkpoint_every", 0, 0, kMany);
  config.keep_checkpoints = static_cast<uint32_t>(file.Integer("keep_checkpoints", config.keep_checkpoints, 1, 1'000'000));
  config.max_bad_steps = static_cast<uint32_t>(file.Integer("max_bad_steps", config.max_bad_steps, 1, 1'000'000));
  config.learner.loss = ParseLoss(file.Object("loss"));
  config.learner.optimizer = ParseOptimizer(file.Object("optimizer"));

  JsonConfig evaluation = file.Object("evaluation");
  config.evaluation.every_steps = evaluation.Integer("every_steps", 0, 0, kMany);
  config.evaluation.every_units = evaluation.Number("every_units", 0, 0, kMost);
  EvaluationOptions& options = config.evaluation.options;
  options.prompts = static_cast<size_t>(evaluation.Integer("prompts", static_cast<int64_t>(options.prompts), 1, 1'000'000));
  options.samples = static_cast<uint32_t>(evaluation.Integer("samples", options.samples, 0, 4'096));
  options.accuracy_temperature = evaluation.Number("accuracy_temperature", options.accuracy_temperature, 0, 100);
  options.temperature = evaluation.Number("temperature", options.temperature, 0, 100);
  options.top_p = evaluation.Number("top_p", options.top_p, 1e-6, 1);
  options.rows = evaluation.Integer("rows", options.rows, 1, 1 << 20);
  evaluation.RefuseUnknown();

  JsonConfig compute = file.Object("compute");
  config.compute.mu = compute.Number("mu", config.compute.mu, 1e-6, kMost);
  config.compute.workers = compute.Number("workers", 1, 1e-6, kMost);
  config.compute.trainers = compute.Number("trainers", 1, 1e-6, kMost);
  compute.RefuseUnknown();
  JsonConfig stop = file.Object("stop");
  config.stop.accuracy = stop.Number("accuracy", 0, 0, 1);
  config.stop.units = stop.Number("units", 0, 0, kMost);
  stop.RefuseUnknown();

  JsonConfig warm = file.Object("warm_start");
  config.warm_start.steps = warm.Integer("steps", config.warm_start.steps, 1, kMany);
  config.warm_start.batch_size = static_cast<uint32_t>(warm.Integer("batch_size", config.warm_start.batch_size, 1, 65'536));
  config.warm_start.learning_rate = warm.Number("learning_rate", config.warm_start.learning_rate, 0, 10);
  config.warm_start.decay_share = warm.Number("decay_share", config.warm_start.decay_share, 0, 1);
  config.warm_start.architecture = ParseArchitecture(warm.Object("architecture"), *config.task);
  warm.RefuseUnknown();
  file.RefuseUnknown();
  return config;
}

}  // namespace replay::trainer
