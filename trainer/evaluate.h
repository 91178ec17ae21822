#pragma once
// How good the model is on prompts that it is never trained on.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "generator/task.h"
#include "trainer/model/transformer.h"

namespace replay::trainer {

// As in the paper (2604.08706): accuracy is one answer a prompt at temperature 0.1, pass@k is of answers at temperature 1, both
// with top_p 0.95.
struct EvaluationOptions {
  size_t prompts = 300;
  uint32_t samples = 16;  // answers a prompt for pass@k, k = 1, 2, 4 … samples; 0: no pass@k
  double accuracy_temperature = 0.1;
  double temperature = 1;
  double top_p = 0.95;
  int64_t rows = 256;  // answers decoded at once
  uint64_t seed = 0;   // the same for every evaluation, so that they differ by the model alone
};

struct Evaluation {
  double accuracy = 0;                               // share of prompts answered correctly
  std::vector<std::pair<uint32_t, double>> pass_at;  // (k, mean over prompts)
  double entropy = 0;                                // mean over answer tokens of the model's distribution, nats
  double answer_tokens = 0;                          // mean length
};

Evaluation Evaluate(const model::Transformer& transformer, const Task& task, std::span<const Prompt> prompts,
                    const EvaluationOptions& options);

// The chance that at least one of k answers is correct, estimated without bias from n answers of which c are (2107.03374):
// 1 - C(n-c, k) / C(n, k). k is at most n.
double PassAtK(uint32_t n, uint32_t c, uint32_t k);

}  // namespace replay::trainer
