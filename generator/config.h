#pragma once
// The generator's configuration file: JSON, unknown keys refused.
//
//   {
//     "address": "127.0.0.1:7070", "buffer": "rollouts", "run_id": "run", "seed": 0, "threads": 1,
//     "task": { "kind": "opcode" },          generator/task.h
//     "group_size": 8,                       answers to each prompt
//     "rows": 32,                            answers under way at once: at least group_size
//     "temperature": 1, "top_p": 1,
//     "max_answer_tokens": 0,                0: the task's
//     "equal_rewards": "keep",               groups whose rewards are all equal: "keep" (advantage 0) or "skip"
//     "groups_in_flight": 2,                 sent and not acknowledged: what is further ahead of pacing waits as unfinished answers
//     "max_groups": 0                        then it ends; 0: never
//   }

#include <cstdint>
#include <memory>
#include <string>

#include "generator/task.h"

namespace replay {

struct GeneratorConfig {
  std::string address = "127.0.0.1:7070";
  std::string buffer = "rollouts";
  std::string run_id = "run";
  uint64_t seed = 0;
  int threads = 1;
  std::unique_ptr<Task> task;
  uint32_t group_size = 8;
  int64_t rows = 32;
  double temperature = 1;
  double top_p = 1;
  int64_t max_answer_tokens = 0;
  bool skip_equal_rewards = false;
  uint32_t groups_in_flight = 2;
  uint64_t max_groups = 0;
};

// Throws ConfigError. `text` is the file's content.
GeneratorConfig ParseGeneratorConfig(const std::string& text);

}  // namespace replay
