// How fast our model generates and trains: tokens a second, and what share of the memory bandwidth decoding reaches.
//
//   training_bench --model FOLDER --make tiny|20m                       writes a random model that others can load too
//   training_bench --model FOLDER --verb generate|train --seconds 3     one line of JSON
//
// tests/bench/figures_main-job.py runs it in turn with transformers on the same weights.

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <random>

#include "trainer/learner.h"
#include "trainer/model/checkpoint.h"
#include "trainer/model/decoder.h"
#include "trainer/model/keep_freed_memory.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace replay;

double SecondsSince(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

model::ModelConfig ConfigOf(const std::string& size) {
  model::ModelConfig config;
  config.model_type = "qwen3";
  config.qk_norm = true;
  config.max_position_embeddings = 512;
  if (size == "tiny") {  // that of the demo
    config.vocab_size = 23;
    config.hidden_size = 64;
    config.intermediate_size = 256;
    config.num_hidden_layers = 2;
    config.num_attention_heads = config.num_key_value_heads = 4;
    config.head_dim = 16;
  } else {  // 20 million parameters
    config.vocab_size = 8'192;
    config.hidden_size = 384;
    config.intermediate_size = 1'024;
    config.num_hidden_layers = 8;
    config.num_attention_heads = 6;
    config.num_key_value_heads = 2;
    config.head_dim = 64;
  }
  return config;
}

// What this process can read from memory, bytes a second: sums over a block that no cache holds.
double ReadBandwidth() {
  const torch::Tensor block = torch::ones({int64_t{64} << 20});  // 256 MiB
  (void)block.sum().item<float>();
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const Clock::time_point began = Clock::now();
    (void)block.sum().item<float>();
    best = std::max(best, static_cast<double>(block.nbytes()) / SecondsSince(began));
  }
  return best;
}

struct Shape {
  int64_t rows = 32, prompt = 32, answer = 64;
};

void Generate(const model::Transformer& transformer, const Shape& shape, double seconds) {
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(shape.rows));
  for (auto& prompt : prompts)
    for (int64_t i = 0; i < shape.prompt; ++i)
      prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(transformer.config().vocab_size)));
  std::vector<model::Decoder::Job> jobs;
  for (const auto& prompt : prompts) jobs.push_back({.prompt = prompt});
  model::Decoder decoder(transformer, shape.rows, shape.prompt + shape.answer, {.max_answer_tokens = shape.answer}, 1);
  const auto round = [&] {
    decoder.Add(jobs);
    decoder.Finish();
  };
  round();  // warm
  const uint64_t before = decoder.tokens_sampled();
  const Clock::time_point began = Clock::now();
  while (SecondsSince(began) < seconds) round();
  const double rate = static_cast<double>(decoder.tokens_sampled() - before) / SecondsSince(began);
  // A step reads every weight once, and the keys and values of all rows.
  const double weights = static_cast<double>(transformer.parameter_count()) * 4;
  const double cache =
      static_cast<double>(transformer.config().num_hidden_layers * 2 * transformer.config().kv_size() * 4 * shape.rows) *
      static_cast<double>(shape.prompt + shape.answer / 2);
  const double bytes = (weights + cache) * rate / static_cast<double>(shape.rows);
  std::printf("{\"tokens_per_second\": %.1f, \"bandwidth_share\": %.4f}\n", rate, bytes / ReadBandwidth());
}

void Train(model::Transformer transformer, const Shape& shape, double seconds) {
  const auto vocab = static_cast<uint32_t>(transformer.config().vocab_size);
  trainer::Learner learner(std::move(transformer),
                           {.loss = {}, .optimizer = {.learning_rate = 1e-5}, .micro_batch_tokens = 1 << 20});
  std::mt19937 random(1);
  const auto length = static_cast<size_t>(shape.prompt + shape.answer);
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(shape.rows), std::vector<int32_t>(length));
  std::vector<uint8_t> mask(length, 1);
  std::fill_n(mask.begin(), shape.prompt, uint8_t{0});
  const std::vector<float> logprobs(length, -3);
  std::vector<trainer::Row> rows;
  for (auto& each : ids) {
    for (int32_t& id : each) id = static_cast<int32_t>(random() % vocab);
    rows.push_back({.token_ids = each,
                    .loss_mask = mask,
                    .behaviour_logprobs = logprobs,
                    .advantages = {},
                    .advantage = rows.size() % 2 == 0 ? 1.0f : -1.0f});
  }
  learner.Step(rows);  // warm
  uint64_t tokens = 0;
  const Clock::time_point began = Clock::now();
  while (SecondsSince(began) < seconds) {
    learner.Step(rows);
    tokens += rows.size() * length;
  }
  std::printf("{\"tokens_per_second\": %.1f}\n", static_cast<double>(tokens) / SecondsSince(began));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"training_bench: tokens a second of generation and training"};
  std::string folder, make, verb;
  double seconds = 3;
  int threads = 1;
  Shape shape;
  app.add_option("--model", folder, "Folder of the model")->required();
  app.add_option("--make", make, "Write a random model of this size there, and end")->check(CLI::IsMember({"tiny", "20m"}));
  app.add_option("--verb", verb)->check(CLI::IsMember({"generate", "train"}));
  app.add_option("--seconds", seconds);
  app.add_option("--threads", threads);
  app.add_option("--rows", shape.rows);
  app.add_option("--prompt", shape.prompt);
  app.add_option("--answer", shape.answer);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  if (verb == "train") model::KeepFreedMemory();  // as the trainer does
  try {
    if (!make.empty()) {
      torch::manual_seed(1);
      model::SaveModel(folder, model::Transformer(ConfigOf(make)));
      return 0;
    }
    model::Transformer transformer = model::LoadModel(folder);
    if (verb == "generate") Generate(transformer, shape, seconds);
    if (verb == "train") Train(std::move(transformer), shape, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "training_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
