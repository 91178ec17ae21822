#include "trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

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

// All of it, as text.
std::string Describe(const TrainerConfig& config) {
  std::ostringstream text;
  text << config.address << " " << config.buffer << " " << config.run_id << " seed " << config.seed << " threads "
       << config.threads << ", " << config.task->Summary() << "\n"
       << config.model << " " << config.weights << " " << config.output << "\n"
       << "steps " << config.steps << " batch " << config.batch_size << " micro " << config.learner.micro_batch_tokens
       << " publish " << config.publish_every << " keep " << config.keep_versions << " checkpoint " << config.checkpoint_every
       << " keep " << config.keep_checkpoints << " bad " << config.max_bad_steps << "\n";
  const LossOptions& loss = config.learner.loss;
  text << "loss " << loss.kind << (loss.averaging == Averaging::kToken ? " token" : " sequence") << " clip " << loss.clip_low
       << " " << loss.clip_high << " kl " << loss.kl_weight << " shift " << loss.baseline_shift << " weight "
       << loss.largest_weight << "\n";
  const OptimizerOptions& optimizer = config.learner.optimizer;
  text << "optimizer " << optimizer.learning_rate << " warm-up " << optimizer.warmup_steps << " betas " << optimizer.beta1
       << " " << optimizer.beta2 << " " << optimizer.epsilon << " decay " << optimizer.weight_decay << " norm "
       << optimizer.max_gradient_norm << "\n";
  const EvaluationOptions& evaluation = config.evaluation.options;
  text << "evaluation " << config.evaluation.every_steps << " " << config.evaluation.every_units << " prompts "
       << evaluation.prompts << " samples " << evaluation.samples << " at " << evaluation.accuracy_temperature << " "
       << evaluation.temperature << " " << evaluation.top_p << " rows " << evaluation.rows << "\n"
       << "compute " << config.compute.mu << " " << config.compute.workers << " " << config.compute.trainers << " stop "
       << config.stop.accuracy << " " << config.stop.units << "\n"
       << "warm start " << config.warm_start.steps << " batch " << config.warm_start.batch_size << " "
       << config.warm_start.learning_rate << " " << config.warm_start.decay_share << "\n";
  const model::ModelConfig& model = config.warm_start.architecture;
  text << model.model_type << " vocabulary " << model.vocab_size << " hidden " << model.hidden_size << " "
       << model.intermediate_size << " layers " << model.num_hidden_layers << " heads " << model.num_attention_heads << " "
       << model.num_key_value_heads << " of " << model.head_dim << " context " << model.max_position_embeddings << " rope "
       << model.rope_theta << (model.tie_word_embeddings ? " tied" : "") << (model.qkv_bias ? " bias" : "")
       << (model.qk_norm ? " norm" : "") << " init " << model.initializer_range << "\n";
  return text.str();
}

TEST(TrainerConfig, HasTheDocumentedDefaults) {
  EXPECT_EQ(Describe(ParseTrainerConfig(Minimal())),
            "127.0.0.1:7070 rollouts run seed 0 threads 1, opcode: 36 pairs of operations on 5 digits\n"
            "m w o\n"
            "steps 1000 batch 64 micro 8192 publish 1 keep 4 checkpoint 0 keep 2 bad 10\n"
            "loss grpo token clip 0.2 0.2 kl 0 shift -0.1 weight 2\n"
            "optimizer 1e-06 warm-up 0 betas 0.9 0.95 1e-08 decay 0 norm 1\n"
            "evaluation 0 0 prompts 300 samples 16 at 0.1 1 0.95 rows 256\n"
            "compute 5 1 1 stop 0 0\n"
            "warm start 6000 batch 128 0.002 0.3\n"
            "qwen3 vocabulary 23 hidden 64 256 layers 2 heads 4 4 of 16 context 13 rope 10000 norm init 0.02\n");
}

TEST(TrainerConfig, ReadsEveryKey) {
  const char* const text = R"({
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
                                    "initializer_range": 0.1}}})";
  EXPECT_EQ(Describe(ParseTrainerConfig(text)),
            "unix:/a b r seed 3 threads 2, arithmetic: difficulty 1\n"
            "m w o\n"
            "steps 5 batch 6 micro 7 publish 8 keep 9 checkpoint 10 keep 11 bad 12\n"
            "loss asymre sequence clip 0.1 0.3 kl 0.5 shift -0.05 weight 4\n"
            "optimizer 0.001 warm-up 13 betas 0.8 0.9 1e-06 decay 0.2 norm 0.5\n"
            "evaluation 14 15 prompts 16 samples 17 at 0 0.9 0.8 rows 18\n"
            "compute 2.5 6 2 stop 0.75 19\n"
            "warm start 20 batch 21 0.01 0.5\n"
            "llama vocabulary 257 hidden 32 40 layers 3 heads 4 2 of 6 context 64 rope 500 tied init 0.1\n");
}

TEST(TrainerConfig, KnowsWhatEachKindOfModelHas) {
  const auto model = [](const std::string& type) {
    return ParseTrainerConfig(Minimal(R"("warm_start": {"architecture": {"model_type": ")" + type + "\"}}"))
        .warm_start.architecture;
  };
  EXPECT_TRUE(model("qwen2").qkv_bias && !model("qwen2").qk_norm);
  EXPECT_TRUE(!model("qwen3").qkv_bias && model("qwen3").qk_norm);
  EXPECT_TRUE(!model("llama").qkv_bias && !model("llama").qk_norm);
}

TEST(TrainerConfig, NamesTheKeyTheValueAndTheRule) {
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("model is absent: must name a folder"));
  EXPECT_THAT(ErrorOf("not JSON"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(Minimal(R"("lerning_rate": 1)")), HasSubstr("unknown key lerning_rate"));
  EXPECT_THAT(ErrorOf(Minimal(R"("keep_version": 3)")), HasSubstr("unknown key keep_version: did you mean \"keep_versions\"?"));
  EXPECT_THAT(ErrorOf(Minimal(R"("steps": "many")")), HasSubstr("steps is \"many\": must be a whole number"));
  EXPECT_THAT(ErrorOf(Minimal(R"("steps": 1.5)")), HasSubstr("steps is 1.5: must be a whole number"));
  EXPECT_THAT(ErrorOf(Minimal(R"("loss": {"kl_weight": "no"})")), HasSubstr("loss.kl_weight is \"no\": must be a number"));
  EXPECT_THAT(ErrorOf(Minimal(R"("loss": "grpo")")), HasSubstr("loss is \"grpo\": must be an object"));
  EXPECT_THAT(ErrorOf(Minimal(R"("buffer": 7)")), HasSubstr("buffer is 7: must be a string"));
  EXPECT_THAT(ErrorOf(Minimal(R"("seed": -1)")), HasSubstr("seed is -1: must be from 0"));
  EXPECT_THAT(ErrorOf(Minimal(R"("keep_versions": 1)")), HasSubstr("keep_versions is 1: must be from 2"));
  EXPECT_THAT(ErrorOf(Minimal(R"("optimizer": {"beta2": 1})")), HasSubstr("optimizer.beta2 is 1: must be from 0.0 to"));
  EXPECT_THAT(ErrorOf(Minimal(R"("loss": {"kind": "supervised"})")), HasSubstr("loss.kind is \"supervised\""));
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
  // A model that cannot hold the task's prompts and answers would learn nothing.
  EXPECT_THAT(ErrorOf(Minimal(R"("warm_start": {"architecture": {"max_position_embeddings": 12}})")),
              HasSubstr("warm_start.architecture.max_position_embeddings is 12: must be from 13"));
}

TEST(TrainerConfig, OfTheDemoIsValid) {
  for (const char* name : {"trainer.json", "trainer_quick.json"}) {
    const std::string text = test::ReadFile(std::string(REPLAY_GOLDEN_FOLDER) + "/../../deploy/config/demo/" + name);
    EXPECT_NE(text, "") << name;
    EXPECT_EQ(ErrorOf(text), "") << name;
  }
}

}  // namespace
}  // namespace replay::trainer
