#pragma once
// A task gives prompts and scores what a model answers: verifiable, so that no reward model is needed.
//
//   opcode       [op1, op2, five digits, SEP] -> five digits: which of six transformations of the digits is asked for is a fixed
//                secret of the pair of operations. Warm-start data is wrong on purpose more often than right, so that reinforcement
//                has modes to flip: the task on which replay was measured to pay at tiny scale.
//   arithmetic   "37+58=" -> "95", by difficulty 1 to 4: digits and operations
//   countdown    "3 7 25 4 -> 71:" -> "25*3-4", each number at most once
//   file         JSON Lines of {"question", "answer"} (the answer behind "####" or in \boxed{}): -> text whose last number counts
//
// The first is in tokens of its own; the others are text, a byte a token, ended by kEndOfText.
//
// Prompts are divided once and for all by a hash of their content: held-out ones are never given for training nor in
// demonstrations. A plain value with no state but what it was made with: the same random numbers give the same prompts.

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "schema/json_config.h"

namespace replay {

struct Prompt {
  std::string id;                  // of its content: the same prompt has the same id in every process
  std::vector<int32_t> token_ids;  // what the model is given
  std::string answer;              // what Score compares with; for a person to read
};

struct Score {
  float reward = 0;
  bool correct = false;
};

class Task {
 public:
  virtual ~Task() = default;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t end_token() const = 0;           // ends an answer; -1: answers have max_answer_tokens
  virtual uint32_t max_prompt_tokens() const = 0;  // longest prompt there is
  virtual uint32_t max_answer_tokens() const = 0;

  virtual Prompt NextTrainingPrompt(std::mt19937_64& random) const = 0;
  // Different ones, always the same, at most as many as there are.
  virtual std::vector<Prompt> HeldOutPrompts(size_t count) const = 0;
  virtual Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const = 0;
  // An answer to learn from before any reward is to be had; empty if the task has none.
  virtual std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64& random) const = 0;
  // For a person to read.
  virtual std::string Text(std::span<const int32_t> token_ids) const = 0;
};

// {"kind": "opcode"} · {"kind": "arithmetic", "difficulty": 2} · {"kind": "countdown", "numbers": 4} ·
// {"kind": "file", "path": "gsm8k_test.jsonl", "max_prompt_tokens": 512, "max_answer_tokens": 64}. Throws ConfigError.
std::unique_ptr<Task> MakeTask(JsonConfig& config);

// The number that an answer gives: what stands in the last \boxed{}, else behind the last "####", else the last number. Without
// thousands' commas, "$" and a trailing "." or "%"; "" if there is none.
std::string FinalNumber(const std::string& text);
// True if both are numbers and equal: "18" and "18.0", "1/2" and "0.5".
bool SameNumber(const std::string& a, const std::string& b);

}  // namespace replay
