#include "generator/task.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <numbers>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace replay {
namespace {

constexpr uint64_t kHeldOutOneIn = 16;

uint64_t HashOf(std::string_view text) {  // FNV-1a, then mixed so that the low bits are good too
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93;
  return hash ^ (hash >> 32);
}
bool IsHeldOut(std::string_view content) { return HashOf(content) % kHeldOutOneIn == 0; }

int64_t Below(std::mt19937_64& random, int64_t bound) {
  return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
}

// --- opcode --------------------------------------------------------------------------------------------------------------------

constexpr int kDigits = 5, kOperations = 6, kTransformations = 6;
using Digits = std::array<int, kDigits>;

Digits Transform(int transformation, const Digits& digits) {
  Digits result = digits;
  switch (transformation) {
    case 1:  // reversed
      std::reverse(result.begin(), result.end());
      break;
    case 2:  // rotated to the left
      std::rotate(result.begin(), result.begin() + 1, result.end());
      break;
    case 3:  // each one higher
      for (int& digit : result) digit = (digit + 1) % 10;
      break;
    case 4:  // both
      std::reverse(result.begin(), result.end());
      for (int& digit : result) digit = (digit + 1) % 10;
      break;
    case 5:  // complements
      for (int& digit : result) digit = 9 - digit;
      break;
    default:  // the same
      break;
  }
  return result;
}

class OpcodeTask final : public Task {
 public:
  // A pair's demonstrations choose transformation i with probability softmax(1.2 * normal_i + 0.8 [i is right]): about four in
  // ten are right, and for many pairs another one is likelier.
  OpcodeTask() {
    std::mt19937_64 random(77);
    const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    for (int pair = 0; pair < kOperations * kOperations; ++pair) {
      right_[pair] = static_cast<int>(random() % kTransformations);
      double sum = 0;
      for (int i = 0; i < kTransformations; ++i) {
        const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
        sum += shown_[pair][i] = std::exp(1.2 * normal + (i == right_[pair] ? 0.8 : 0.0));
      }
      for (double& probability : shown_[pair]) probability /= sum;
    }
  }

  int32_t vocab_size() const override { return kSeparator + 1; }
  int32_t end_token() const override { return -1; }
  uint32_t max_prompt_tokens() const override { return 2 + kDigits + 1; }
  uint32_t max_answer_tokens() const override { return kDigits; }

  Prompt NextTrainingPrompt(std::mt19937_64& random) const override {
    for (;;) {
      Prompt prompt = RandomPrompt(random);
      if (!IsHeldOut(prompt.id)) return prompt;
    }
  }
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    std::mt19937_64 random(0);
    std::set<std::string> seen;
    std::vector<Prompt> prompts;
    while (prompts.size() < std::min<size_t>(count, 100'000)) {
      Prompt prompt = RandomPrompt(random);
      if (IsHeldOut(prompt.id) && seen.insert(prompt.id).second) prompts.push_back(std::move(prompt));
    }
    return prompts;
  }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const bool correct = Text(answer) == prompt.answer;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64& random) const override {
    const auto& shown = shown_[PairOf(prompt)];
    std::discrete_distribution<int> choose(shown.begin(), shown.end());
    const Digits answer = Transform(choose(random), DigitsOf(prompt));
    return {answer.begin(), answer.end()};
  }
  std::string Text(std::span<const int32_t> token_ids) const override {
    std::string text;
    for (const int32_t id : token_ids) {
      if (id >= 0 && id < 10) {
        text += static_cast<char>('0' + id);
      } else if (id >= 10 && id < kSeparator) {
        text += static_cast<char>((id < 10 + kOperations ? 'A' : 'a') + (id - 10) % kOperations);
      } else {
        text += id == kSeparator ? '=' : '?';
      }
    }
    return text;
  }

 private:
  static constexpr int32_t kSeparator = 10 + 2 * kOperations;

  static int PairOf(const Prompt& prompt) {
    return (prompt.token_ids[0] - 10) * kOperations + prompt.token_ids[1] - 10 - kOperations;
  }
  static Digits DigitsOf(const Prompt& prompt) {
    Digits digits;
    std::copy_n(prompt.token_ids.begin() + 2, kDigits, digits.begin());
    return digits;
  }
  Prompt RandomPrompt(std::mt19937_64& random) const {
    Prompt prompt;
    prompt.token_ids = {static_cast<int32_t>(10 + Below(random, kOperations)),
                        static_cast<int32_t>(10 + kOperations + Below(random, kOperations))};
    for (int i = 0; i < kDigits; ++i) prompt.token_ids.push_back(static_cast<int32_t>(Below(random, 10)));
    const Digits answer = Transform(right_[PairOf(prompt)], DigitsOf(prompt));
    prompt.token_ids.push_back(kSeparator);
    prompt.id = Text(prompt.token_ids);
    prompt.answer = Text(std::vector<int32_t>(answer.begin(), answer.end()));
    return prompt;
  }

  std::array<int, kOperations * kOperations> right_{};
  std::array<std::array<double, kTransformations>, kOperations * kOperations> shown_{};
};

// --- Tasks in text: a token is a byte --------------------------------------------------------------------------------------------

constexpr int32_t kEndOfText = 256;

class TextTask : public Task {
 public:
  int32_t vocab_size() const override { return kEndOfText + 1; }
  int32_t end_token() const override { return kEndOfText; }
  std::string Text(std::span<const int32_t> token_ids) const override {
    std::string text;
    for (const int32_t id : token_ids)
      if (id >= 0 && id < 256) text += static_cast<char>(id);
    return text;
  }

 protected:
  static std::vector<int32_t> Tokens(std::string_view text) {
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  static std::vector<int32_t> AnswerTokens(std::string_view text) {
    std::vector<int32_t> tokens = Tokens(text);
    tokens.push_back(kEndOfText);
    return tokens;
  }
  static Prompt MakePrompt(const std::string& question, std::string answer) {
    return {.id = question, .token_ids = Tokens(question), .answer = std::move(answer)};
  }
};

// A text task whose prompts are made up: question and answer of a random number.
class RandomTextTask : public TextTask {
 public:
  Prompt NextTrainingPrompt(std::mt19937_64& random) const override {
    for (;;) {
      Prompt prompt = RandomPrompt(random);
      if (!IsHeldOut(prompt.id)) return prompt;
    }
  }
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    std::mt19937_64 random(0);
    std::set<std::string> seen;
    std::vector<Prompt> prompts;
    // Of a small space there may be fewer than asked for.
    for (size_t tries = 0; prompts.size() < count && tries < 100 * kHeldOutOneIn * (count + 10); ++tries) {
      Prompt prompt = RandomPrompt(random);
      if (IsHeldOut(prompt.id) && seen.insert(prompt.id).second) prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

 protected:
  virtual Prompt RandomPrompt(std::mt19937_64& random) const = 0;
};

class ArithmeticTask final : public RandomTextTask {
 public:
  explicit ArithmeticTask(int difficulty) : difficulty_(difficulty) {}
  uint32_t max_prompt_tokens() const override { return 16; }
  uint32_t max_answer_tokens() const override { return 8; }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const bool correct = !answer.empty() && answer.back() == kEndOfText && Text(answer) == prompt.answer;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override { return AnswerTokens(prompt.answer); }

 protected:
  // 1: 3+4   2: 37-58   3: 37*5, 371+58   4: 37*5-411
  Prompt RandomPrompt(std::mt19937_64& random) const override {
    const auto number = [&](int digits) { return Below(random, static_cast<int64_t>(std::pow(10, digits))); };
    int64_t a = number(std::min(difficulty_, 3)), result = 0;
    std::string question;
    if (difficulty_ >= 3 && Below(random, 2) == 0) {
      const int64_t factor = number(1);
      a = number(2);
      result = a * factor;
      question = std::to_string(a) + "*" + std::to_string(factor);
    } else {
      const int64_t b = number(std::min(difficulty_, 3));
      const bool minus = difficulty_ >= 2 && Below(random, 2) == 0;
      result = minus ? a - b : a + b;
      question = std::to_string(a) + (minus ? "-" : "+") + std::to_string(b);
    }
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

// An expression of +, -, *, / and brackets over whole numbers, exactly. Nothing if it is not one.
class Expression {
 public:
  struct Fraction {
    int64_t over = 0, under = 1;
  };
  explicit Expression(std::string_view text) : text_(text) {
    value_ = Sum();
    if (at_ != text_.size()) value_.reset();
  }
  const std::optional<Fraction>& value() const { return value_; }
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  static std::optional<Fraction> Combine(const Fraction& a, char operation, const Fraction& b) {
    Fraction result;
    bool too_large = false;
    const auto times = [&](int64_t x, int64_t y) {
      int64_t product = 0;
      too_large |= __builtin_mul_overflow(x, y, &product);
      return product;
    };
    switch (operation) {
      case '+':
        too_large |= __builtin_add_overflow(times(a.over, b.under), times(b.over, a.under), &result.over);
        result.under = times(a.under, b.under);
        break;
      case '-':
        too_large |= __builtin_sub_overflow(times(a.over, b.under), times(b.over, a.under), &result.over);
        result.under = times(a.under, b.under);
        break;
      case '*':
        result = {times(a.over, b.over), times(a.under, b.under)};
        break;
      default:
        if (b.over == 0) return std::nullopt;
        result = {times(a.over, b.under), times(a.under, b.over)};
    }
    if (too_large) return std::nullopt;
    return result;
  }
  std::optional<Fraction> Chain(std::string_view operations, std::optional<Fraction> (Expression::*part)()) {
    std::optional<Fraction> left = (this->*part)();
    while (left && at_ < text_.size() && operations.find(text_[at_]) != std::string_view::npos) {
      const char operation = text_[at_++];
      const std::optional<Fraction> right = (this->*part)();
      left = right ? Combine(*left, operation, *right) : std::nullopt;
    }
    return left;
  }
  std::optional<Fraction> Sum() { return Chain("+-", &Expression::Product); }
  std::optional<Fraction> Product() { return Chain("*/", &Expression::Factor); }
  std::optional<Fraction> Factor() {
    if (at_ >= text_.size()) return std::nullopt;
    if (text_[at_] == '(' && depth_ < 16) {
      ++at_;
      ++depth_;
      const std::optional<Fraction> inside = Sum();
      --depth_;
      if (!inside || at_ >= text_.size() || text_[at_++] != ')') return std::nullopt;
      return inside;
    }
    int64_t number = 0;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 9) number = number * 10 + (text_[at_++] - '0');
    if (at_ == begin) return std::nullopt;
    numbers_.push_back(number);
    return Fraction{number, 1};
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<int64_t> numbers_;
  std::optional<Fraction> value_;
};

class CountdownTask final : public RandomTextTask {
 public:
  explicit CountdownTask(int numbers) : count_(numbers) {}
  uint32_t max_prompt_tokens() const override { return static_cast<uint32_t>(3 * count_ + 12); }
  uint32_t max_answer_tokens() const override { return static_cast<uint32_t>(5 * count_ + 4); }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    if (answer.empty() || answer.back() != kEndOfText) return {};
    const std::string text = Text(answer);
    const Expression expression(text);
    if (!expression.value()) return {};
    std::multiset<int64_t> left = NumbersOf(prompt);
    for (const int64_t number : expression.numbers()) {
      const auto found = left.find(number);
      if (found == left.end()) return {};
      left.erase(found);
    }
    const int64_t target = std::stoll(prompt.id.substr(prompt.id.find('>') + 2));
    int64_t wanted = 0;
    const bool correct = !__builtin_mul_overflow(target, expression.value()->under, &wanted) && wanted == expression.value()->over;
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override { return AnswerTokens(prompt.answer); }

 protected:
  // The numbers are drawn, and an expression over them whose value is a target of 1 to 999.
  Prompt RandomPrompt(std::mt19937_64& random) const override {
    for (;;) {
      std::string listed, expression;
      int64_t value = 0;
      bool good = true;
      for (int i = 0; i < count_; ++i) {
        const int64_t number = 1 + Below(random, 25);
        listed += std::to_string(number) + " ";
        if (i == 0) {
          expression = std::to_string(number);
          value = number;
          continue;
        }
        const char operation = "+-*"[Below(random, 3)];
        if (operation == '*' && i > 1) expression = "(" + expression + ")";
        expression += operation + std::to_string(number);
        value = operation == '+' ? value + number : operation == '-' ? value - number : value * number;
        good &= value > 0 && value < 1000;
      }
      if (good) return MakePrompt(listed + "-> " + std::to_string(value) + ":", expression);
    }
  }

 private:
  static std::multiset<int64_t> NumbersOf(const Prompt& prompt) {
    std::multiset<int64_t> numbers;
    for (size_t at = 0; prompt.id[at] != '-'; at = prompt.id.find(' ', at) + 1) numbers.insert(std::stoll(prompt.id.substr(at)));
    return numbers;
  }
  const int count_;
};

// --- A file of questions -----------------------------------------------------------------------------------------------------------

class FileTask final : public TextTask {
 public:
  FileTask(const std::string& path, uint32_t max_prompt_tokens, uint32_t max_answer_tokens)
      : max_prompt_tokens_(max_prompt_tokens), max_answer_tokens_(max_answer_tokens) {
    std::ifstream file(path);
    if (!file) throw ConfigError("task.path is \"" + path + "\", which cannot be opened");
    std::string line;
    for (uint64_t number = 1; std::getline(file, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto fail = [&](const std::string& what) { throw ConfigError(path + ": line " + std::to_string(number) + " " + what); };
      const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
      if (!parsed.is_object()) fail("is not a JSON object");
      const auto text = [&](const char* key, const char* other) -> std::string {
        for (const char* name : {key, other})
          if (parsed.contains(name) && parsed[name].is_string()) return parsed[name].get<std::string>();
        fail("has no text \"" + std::string(key) + "\"");
        return "";
      };
      Prompt prompt = MakePrompt("Question: " + text("question", "prompt") + "\nAnswer:", FinalNumber(text("answer", "solution")));
      if (prompt.answer.empty()) fail("has an answer without a number");
      if (prompt.token_ids.size() > max_prompt_tokens) {
        ++too_long_;
        continue;
      }
      if (!seen_.insert(prompt.id).second) continue;
      (IsHeldOut(prompt.id) ? held_out_ : training_).push_back(std::move(prompt));
    }
    if (training_.empty() || held_out_.empty())
      throw ConfigError(path + " leaves " + std::to_string(training_.size()) + " prompts to train on and " +
                        std::to_string(held_out_.size()) + " held out: one at least of each is needed (" + std::to_string(too_long_) +
                        " are longer than max_prompt_tokens)");
    for (Prompt& prompt : held_out_) prompt.id = "h" + std::to_string(HashOf(prompt.id));
    for (Prompt& prompt : training_) prompt.id = "t" + std::to_string(HashOf(prompt.id));
  }

  uint32_t max_prompt_tokens() const override { return max_prompt_tokens_; }
  uint32_t max_answer_tokens() const override { return max_answer_tokens_; }
  Prompt NextTrainingPrompt(std::mt19937_64& random) const override {
    return training_[static_cast<size_t>(Below(random, static_cast<int64_t>(training_.size())))];
  }
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    return {held_out_.begin(), held_out_.begin() + static_cast<ptrdiff_t>(std::min(count, held_out_.size()))};
  }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const bool correct = SameNumber(FinalNumber(Text(answer)), prompt.answer);
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override {
    return AnswerTokens(" #### " + prompt.answer);
  }

 private:
  const uint32_t max_prompt_tokens_, max_answer_tokens_;
  std::vector<Prompt> training_, held_out_;
  std::set<std::string> seen_;
  uint64_t too_long_ = 0;
};

bool IsNumberChar(char c) { return (c >= '0' && c <= '9') || c == '.' || c == '/' || c == ','; }

std::string Cleaned(std::string text) {
  std::erase_if(text, [](char c) { return c == ',' || c == '$' || c == ' ' || c == '%'; });
  while (!text.empty() && (text.back() == '.' || text.back() == '/')) text.pop_back();
  return text;
}

std::optional<double> ValueOf(const std::string& text) {
  const size_t slash = text.find('/');
  const auto parse = [](const std::string& part) -> std::optional<double> {
    if (part.empty()) return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end);
    return *end == '\0' && std::isfinite(value) ? std::optional(value) : std::nullopt;
  };
  if (slash == std::string::npos) return parse(text);
  const std::optional<double> over = parse(text.substr(0, slash)), under = parse(text.substr(slash + 1));
  return over && under && *under != 0 ? std::optional(*over / *under) : std::nullopt;
}

}  // namespace

std::string FinalNumber(const std::string& text) {
  std::string part = text;
  if (const size_t boxed = text.rfind("\\boxed{"); boxed != std::string::npos) {
    part = text.substr(boxed + 7, text.find('}', boxed) - boxed - 7);
  } else if (const size_t mark = text.rfind("####"); mark != std::string::npos) {
    part = text.substr(mark + 4);
  }
  // The last number in it.
  size_t end = part.size();
  while (end > 0 && !(part[end - 1] >= '0' && part[end - 1] <= '9')) --end;
  size_t begin = end;
  while (begin > 0 && IsNumberChar(part[begin - 1])) --begin;
  while (begin < end && (part[begin] == ',' || part[begin] == '/')) ++begin;
  if (begin == end) return "";
  if (begin > 0 && part[begin - 1] == '-') --begin;
  return Cleaned(part.substr(begin, end - begin));
}

bool SameNumber(const std::string& a, const std::string& b) {
  const std::optional<double> first = ValueOf(a), second = ValueOf(b);
  return first && second && std::abs(*first - *second) <= 1e-9 * std::max(1.0, std::abs(*second));
}

std::unique_ptr<Task> MakeTask(JsonConfig& config) {
  const std::string kind = config.Text("kind", "opcode");
  std::unique_ptr<Task> task;
  if (kind == "opcode") {
    task = std::make_unique<OpcodeTask>();
  } else if (kind == "arithmetic") {
    task = std::make_unique<ArithmeticTask>(static_cast<int>(config.Integer("difficulty", 2, 1, 4)));
  } else if (kind == "countdown") {
    task = std::make_unique<CountdownTask>(static_cast<int>(config.Integer("numbers", 4, 2, 6)));
  } else if (kind == "file") {
    task = std::make_unique<FileTask>(config.Text("path", ""), static_cast<uint32_t>(config.Integer("max_prompt_tokens", 512, 1, 1 << 20)),
                                      static_cast<uint32_t>(config.Integer("max_answer_tokens", 64, 1, 1 << 20)));
  } else {
    config.Fail("kind", "must be \"opcode\", \"arithmetic\", \"countdown\" or \"file\"");
  }
  config.RefuseUnknown();
  return task;
}

}  // namespace replay
