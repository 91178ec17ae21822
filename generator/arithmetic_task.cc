// The arithmetic task. Prompts by difficulty:
//   1: 3+4=     2: 37-58=     3: 37*5=  371+58=     4: 37*5-411=  371+58-6=

#include <algorithm>

#include "generator/kinds.h"
#include "generator/prompts.h"
#include "generator/text_task.h"

namespace replay {
namespace {

constexpr int64_t kPowerOf10[] = {1, 10, 100, 1000};

class ArithmeticTask final : public MadeUp<TextTask> {
 public:
  explicit ArithmeticTask(int difficulty) : difficulty_(difficulty) {}

  std::string Summary() const override { return "arithmetic: difficulty " + std::to_string(difficulty_); }
  uint32_t max_prompt_tokens() const override { return 12; }  // 999-999-999=
  uint32_t max_answer_tokens() const override { return 6; }   // -1998 and the end

  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const bool correct = Ended(answer) == prompt.answer;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override {
    return AnswerTokens(prompt.answer);
  }

 protected:
  Prompt RandomPrompt(std::mt19937_64& random) const override {
    const auto number = [&](int digits) { return Below(random, kPowerOf10[digits]); };
    const bool times = difficulty_ >= 3 && Below(random, 2) == 0;
    const bool minus = !times && difficulty_ >= 2 && Below(random, 2) == 0;
    const int digits = std::min(difficulty_, 3);
    const int64_t a = number(times ? 2 : digits);
    const int64_t b = number(times ? 1 : digits);
    int64_t result = times ? a * b : minus ? a - b : a + b;
    std::string question = std::to_string(a) + (times ? "*" : minus ? "-" : "+") + std::to_string(b);
    if (difficulty_ >= 4) {
      const int64_t c = number(3);
      result -= c;
      question += "-" + std::to_string(c);
    }
    return MakePrompt(question + "=", std::to_string(result));
  }

 private:
  const int difficulty_;
};

}  // namespace

std::unique_ptr<Task> MakeArithmeticTask(int difficulty) { return std::make_unique<ArithmeticTask>(difficulty); }

}  // namespace replay
