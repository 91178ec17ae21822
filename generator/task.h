#pragma once
// A task gives prompts and scores what a model answers: verifiable, so that no reward model is needed.
//
//   opcode       [op1, op2, five digits, SEP] -> five digits: which of six transformations of the digits is asked for is a
//                fixed secret of the pair of operations. Only three in ten demonstrations are right, on purpose, so that
//                reinforcement has modes to flip: the task on which replay was measured to pay at tiny scale.
//   arithmetic   "37+58=" -> "95", by difficulty 1 to 4: digits and operations
//   countdown    "3 7 25 4 -> 71:" -> "25*3-4", each number at most once; + - * / and brackets, worked out exactly
//   file         JSON Lines of {"question", "answer"}, as GSM8K: "Question: …\nAnswer:" -> text that gives the same number,
//                as number_answer.h finds it
//
// The first is in tokens of its own. The others are text: a token is a byte, and end_token() ends an answer; one that does not
// end, or goes on behind it, is wrong. The reward is 1 for a correct answer and 0 for every other.
//
// Prompts are divided once and for all by a hash of their content: held-out ones are never given for training. A task never
// changes once it is made, so any thread may use it; the same random numbers give the same prompts.

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "schema/json_config.h"

namespace replay {

struct Prompt {
  std::string id;                  // of its content: the same prompt has the same id in every process; at most 128 bytes
  std::vector<int32_t> token_ids;  // what the model is given
  std::string answer;              // a right one, for a person to read
};

struct Score {
  float reward = 0;
  bool correct = false;
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string Summary() const = 0;  // "arithmetic: difficulty 2", for a log
  virtual int32_t vocab_size() const = 0;
  virtual int32_t end_token() const = 0;           // ends an answer; -1: answers have max_answer_tokens
  virtual uint32_t max_prompt_tokens() const = 0;  // No prompt is longer.
  virtual uint32_t max_answer_tokens() const = 0;  // with the end token; no demonstration is longer

  virtual Prompt NextTrainingPrompt(std::mt19937_64& random) const = 0;
  // Different ones, always the same and in the same order: the first ten are those of HeldOutPrompts(10). Fewer where the task
  // does not have as many; made-up ones end at about 25,000.
  virtual std::vector<Prompt> HeldOutPrompts(size_t count) const = 0;
  // `prompt` is one of this task, here and below; `answer` may be anything.
  virtual Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const = 0;
  // An answer to learn from before any reward is to be had: a right one, except with opcode.
  virtual std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64& random) const = 0;
  // For a person to read, whatever the tokens are.
  virtual std::string Text(std::span<const int32_t> token_ids) const = 0;
};

// {"kind": "opcode"} · {"kind": "arithmetic", "difficulty": 2} · {"kind": "countdown", "numbers": 4} ·
// {"kind": "file", "path": "gsm8k_test.jsonl", "max_prompt_tokens": 512, "max_answer_tokens": 64}. Throws ConfigError, also
// where the file is not as it must be. Questions that are too long are left out, and so is a question that was there before:
// Summary counts them.
std::unique_ptr<Task> MakeTask(JsonConfig& config);

}  // namespace replay
