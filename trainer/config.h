#pragma once
// The trainer's configuration file: JSON, unknown keys refused.
//
//   {
//     "address": "127.0.0.1:7070", "buffer": "rollouts", "run_id": "run", "seed": 0, "threads": 1,
//     "task":    { "kind": "opcode" },                    generator/task.h
//     "model":   "run/warm",                              folder with config.json and model.safetensors
//     "weights": "run/weights",                           where versions are published; shared with the generators
//     "output":  "run/trainer",                           log.jsonl and checkpoint-<step>/
//     "steps": 1000, "batch_size": 64, "micro_batch_tokens": 8192, "publish_every": 2, "keep_versions": 4,
//     "checkpoint_every": 0, "keep_checkpoints": 2, "max_bad_steps": 10,
//     "loss":       { "kind": "grpo", "averaging": "token", "clip_low": 0.2, "clip_high": 0.2, "kl_weight": 0,
//                     "baseline_shift": -0.1, "largest_weight": 2 },
//     "optimizer":  { "learning_rate": 3e-4, "warmup_steps": 0, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
//                     "weight_decay": 0, "max_gradient_norm": 1 },
//     "evaluation": { "every_steps": 0, "every_units": 20, "prompts": 300, "samples": 16, "accuracy_temperature": 0.1,
//                     "temperature": 1, "top_p": 0.95, "rows": 256 },
//     "compute":    { "mu": 5.28, "workers": 6, "trainers": 2 },     declared, see trainer/compute.h
//     "stop":       { "accuracy": 0, "units": 0 },                   0: never for this reason
//     "warm_start": { "steps": 6000, "batch_size": 128, "learning_rate": 2e-3, "decay_share": 0.3,
//                     "architecture": { "hidden_size": 64, … } }     as in config.json; vocab_size is the task's
//   }
//
// model, weights and output must be given. What else is left out has the value that stands beside its field.

#include <cstdint>
#include <memory>
#include <string>

#include "generator/task.h"
#include "trainer/evaluate.h"
#include "trainer/learner.h"
#include "trainer/model/transformer.h"

namespace replay::trainer {

struct TrainerConfig {
  std::string address = "127.0.0.1:7070";
  std::string buffer = "rollouts";
  std::string run_id = "run";
  uint64_t seed = 0;
  int threads = 1;
  std::unique_ptr<Task> task;
  std::string model;
  std::string weights;
  std::string output;
  int64_t steps = 1000;
  uint32_t batch_size = 64;
  int64_t publish_every = 1;  // steps
  uint32_t keep_versions = 4;
  int64_t checkpoint_every = 0;  // steps; 0: none
  uint32_t keep_checkpoints = 2;
  uint32_t max_bad_steps = 10;  // in a row, whose loss or gradient is not finite; then the trainer stops
  LearnerOptions learner;
  struct {
    int64_t every_steps = 0;  // 0: not by steps
    double every_units = 0;   // 0: not by compute
    EvaluationOptions options;
  } evaluation;
  struct {
    double mu = 5;
    double workers = 1, trainers = 1;  // W and T of the declared split
  } compute;
  struct {
    double accuracy = 0;
    double units = 0;
  } stop;
  struct {
    int64_t steps = 6000;
    uint32_t batch_size = 128;
    double learning_rate = 2e-3;
    double decay_share = 0.3;  // the rate falls to 0 over the last such part of the steps
    model::ModelConfig architecture;
  } warm_start;
};

// Throws ConfigError. `text` is the file's content.
TrainerConfig ParseTrainerConfig(const std::string& text);

}  // namespace replay::trainer
