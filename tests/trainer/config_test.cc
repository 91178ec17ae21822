#include "trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/json_config.h"
#include "tests/support/temporary_folder.h"

namespace replay::trainer {
namespace {

using ::testing::HasSubstr;

std::string Minimal(const std::string& more = "") {
  return R"({"model": "m", "weights": "w", "output": "o")" + (more.empty() ? "" : ", " + more) + "}";
}

std::string ErrorOf(const std::string& text) {
  try {
    ParseTrainerConfig(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(TrainerConfig, HasTheDocumentedDefaults) {
  const TrainerConfig config = ParseTrainerConfig(Minimal());
  EXPECT_EQ(config.address, "127.0.0.1:7070");
  EXPECT_EQ(config.task->vocab_size(), 23);
  EXPECT_EQ(config.batch_size, 64u);
  EXPECT_EQ(config.learner.loss.kind, "grpo");
  EXPECT_EQ(config.learner.loss.clip_high, 0.2);
  EXPECT_EQ(config.learner.optimizer.max_gradient_norm, 1);
  EXPECT_EQ(config.warm_start.architecture.vocab_size, 23);
  EXPECT_EQ(config.warm_start.architecture.max_position_embeddings, 13);
}

TEST(TrainerConfig, ReadsEveryKey) {
  const TrainerConfig config = ParseTrainerConfig(R"({
    "address": "unix:/a", "buffer": "b", "run_id": "r", "seed": 3, "threads": 2, "task": {"kind": "arithmetic", "difficulty": 1},
    "model": "m", "weights": "w", "output": "o", "steps": 5, "batch_size": 6, "micro_batch_tokens": 7, "publish_every": 8,
    "keep_versions": 9, "checkpoint_every": 10, "keep_checkpoints": 11, "max_bad_steps": 12,
    "loss": {"kind": "asymre", "averaging": "sequence", "clip_low": 0.1, "clip_high": 0.3, "kl_weight": 0.5, "baseline_shift": -0.05, "largest_weight": 4},
    "optimizer": {"learning_rate": 0.001, "warmup_steps": 13, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.2, "max_gradient_norm": 0.5},
    "evaluation": {"every_steps": 14, "every_units": 15, "prompts": 16, "samples": 17, "accuracy_temperature": 0, "temperature": 0.9, "top_p": 0.8, "rows": 18},
    "compute": {"mu": 2.5, "workers": 6, "trainers": 2}, "stop": {"accuracy": 0.75, "units": 19},
    "warm_start": {"steps": 20, "batch_size": 21, "learning_rate": 0.01, "decay_share": 0.5,
                   "architecture": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
                                    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64, "rope_theta": 500, "tie_word_embeddings": true,
                                    "initializer_range": 0.1}}})");
  EXPECT_EQ(config.max_bad_steps, 12u);
  EXPECT_EQ(config.learner.loss.averaging, Averaging::kSequence);
  EXPECT_EQ(config.learner.loss.baseline_shift, -0.05);
  EXPECT_EQ(config.learner.optimizer.warmup_steps, 13);
  EXPECT_EQ(config.evaluation.options.samples, 17u);
  EXPECT_EQ(config.compute.mu, 2.5);
  EXPECT_EQ(config.stop.units, 19);
  EXPECT_EQ(config.warm_start.decay_share, 0.5);
  EXPECT_EQ(config.warm_start.architecture.head_dim, 6);
  EXPECT_FALSE(config.warm_start.architecture.qk_norm);
}

TEST(TrainerConfig, NamesTheKeyTheValueAndTheRule) {
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("model is absent: must name a folder"));
  EXPECT_THAT(ErrorOf(Minimal(R"("lerning_rate": 1)")), HasSubstr("unknown key lerning_rate"));
  EXPECT_THAT(ErrorOf(Minimal(R"("optimizer": {"learning_rat": 1})")),
              HasSubstr("unknown key optimizer.learning_rat: did you mean \"learning_rate\"?"));
  EXPECT_THAT(ErrorOf(Minimal(R"("batch_size": 0)")), HasSubstr("batch_size is 0: must be from 1 to 65536"));
  EXPECT_THAT(ErrorOf(Minimal(R"("loss": {"kind": "ppo"})")),
              HasSubstr("loss.kind is \"ppo\": must be \"grpo\", \"asymre\" or \"reinforce\""));
  EXPECT_THAT(ErrorOf(Minimal(R"("loss": {"averaging": "none"})")), HasSubstr("loss.averaging is \"none\""));
  EXPECT_THAT(ErrorOf(Minimal(R"("task": {"kind": "chess"})")), HasSubstr("task.kind is \"chess\""));
  EXPECT_THAT(ErrorOf(Minimal(R"("evaluation": {"top_p": 0})")), HasSubstr("evaluation.top_p is 0"));
  EXPECT_THAT(ErrorOf(Minimal(R"("stop": {"accuracy": 80})")), HasSubstr("stop.accuracy is 80"));
  EXPECT_THAT(ErrorOf(Minimal(R"("warm_start": {"architecture": {"head_dim": 3}})")),
              HasSubstr("warm_start.architecture.head_dim is 3: must be even"));
}

TEST(TrainerConfig, OfTheDemoIsValid) {
  for (const char* name : {"trainer.json", "trainer_quick.json"}) {
    const std::string text = test::ReadFile(std::string(REPLAY_GOLDEN_FOLDER) + "/../../deploy/config/demo/" + name);
    EXPECT_EQ(ErrorOf(text), "") << name;
  }
}

}  // namespace
}  // namespace replay::trainer
