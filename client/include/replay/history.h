#pragma once
// What a buffer with prompt_history remembers of its prompts.

#include <cstdint>
#include <vector>

namespace replay {

// What became of the rollouts of a prompt: a source and a dataset_index of 0 or more.
struct PromptOutcomes {
  int64_t dataset_index = 0;
  uint64_t rollouts = 0;
  uint64_t scored = 0;  // Of rollouts: correctness known.
  uint64_t correct = 0;
  double reward_sum = 0;  // As inserted.
};

struct HistoryPage {
  std::vector<PromptOutcomes> prompts;  // by dataset_index
  bool more = false;                    // There are some with a higher one.
};

}  // namespace replay
