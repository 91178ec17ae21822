// The countdown task. "3 7 25 4 -> 71:" asks for an expression of value 71 over those numbers, each at most once. The
// expression that a prompt was made from uses all of them and is one answer of many.

#include <set>

#include "generator/expression.h"
#include "generator/kinds.h"
#include "generator/prompts.h"
#include "generator/text_task.h"

namespace replay {
namespace {

constexpr int64_t kMaxNumber = 25, kMaxTarget = 999;

class CountdownTask final : public MadeUp<TextTask> {
 public:
  explicit CountdownTask(int numbers_count) : numbers_count_(numbers_count) {}

  std::string Summary() const override { return "countdown: " + std::to_string(numbers_count_) + " numbers"; }
  // Numbers of two digits with a blank behind each, "-> ", a target of three digits, ":".
  uint32_t max_prompt_tokens() const override { return static_cast<uint32_t>(3 * numbers_count_ + 7); }
  // For each number two digits, an operation and two brackets, and the end: room for brackets that need not be.
  uint32_t max_answer_tokens() const override { return static_cast<uint32_t>(5 * numbers_count_ + 1); }

  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const std::optional<std::string> text = Ended(answer);
    const std::optional<Expression> expression = text ? ParseExpression(*text) : std::nullopt;
    if (!expression) return {};
    Question question = ParseQuestion(prompt.id);
    for (const int64_t number : expression->numbers) {
      const auto found = question.numbers.find(number);
      if (found == question.numbers.end()) return {};
      question.numbers.erase(found);
    }
    const bool correct = expression->value == question.target;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override {
    return AnswerTokens(prompt.answer);
  }

 protected:
  Prompt RandomPrompt(std::mt19937_64& random) const override {
    for (;;) {
      std::string listed, expression;
      int64_t value = 0;
      for (int i = 0; i < numbers_count_ && value >= 0 && value <= kMaxTarget; ++i) {
        const int64_t number = 1 + Below(random, kMaxNumber);
        const char operation = i == 0 ? '+' : "+-*"[Below(random, 3)];
        listed += std::to_string(number) + " ";
        if (i == 0) {
          expression = std::to_string(number);
        } else if (operation == '*' && i > 1) {
          expression = "(" + expression + ")*" + std::to_string(number);
        } else {
          expression += operation + std::to_string(number);
        }
        value = operation == '+' ? value + number : operation == '-' ? value - number : value * number;
      }
      if (value > 0 && value <= kMaxTarget) return MakePrompt(listed + "-> " + std::to_string(value) + ":", expression);
    }
  }

 private:
  struct Question {
    std::multiset<int64_t> numbers;
    int64_t target = 0;
  };
  // Of a prompt's text, as RandomPrompt writes it.
  static Question ParseQuestion(const std::string& text) {
    Question question;
    const size_t arrow = text.find("->");
    for (size_t at = 0; at < arrow; at = text.find(' ', at) + 1) question.numbers.insert(std::stoll(text.substr(at)));
    question.target = std::stoll(text.substr(arrow + 2));
    return question;
  }

  const int numbers_count_;
};

}  // namespace

std::unique_ptr<Task> MakeCountdownTask(int numbers_count) { return std::make_unique<CountdownTask>(numbers_count); }

}  // namespace replay
