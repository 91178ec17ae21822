#pragma once
// The kinds of task, each in a file of its own; MakeTask chooses.

#include <memory>
#include <string>

#include "generator/task.h"

namespace replay {

std::unique_ptr<Task> MakeOpcodeTask();
std::unique_ptr<Task> MakeArithmeticTask(int difficulty);    // 1 to 4
std::unique_ptr<Task> MakeCountdownTask(int numbers_count);  // 2 to 6

struct FileTaskOptions {
  std::string path;
  uint32_t max_prompt_tokens = 512;  // GSM8K: 27 of 1,319 questions are longer
  uint32_t max_answer_tokens = 64;
};
// Throws ConfigError, which names the file, the line, the field and what is wrong with it.
std::unique_ptr<Task> MakeFileTask(const FileTaskOptions& options);

}  // namespace replay
