#include "generator/expression.h"

#include <utility>

namespace replay {
namespace {

std::optional<Fraction> Combine(const Fraction& a, char operation, const Fraction& b) {
  bool too_large = false;
  const auto times = [&](int64_t x, int64_t y) {
    int64_t product = 0;
    too_large |= __builtin_mul_overflow(x, y, &product);
    return product;
  };
  Fraction result;
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
    default:  // '/'
      if (b.over == 0) return std::nullopt;
      result = {times(a.over, b.under), times(a.under, b.over)};
  }
  if (too_large) return std::nullopt;
  return result;
}

// A function for each rule of the grammar; each takes what it reads off the front of the text.
class Parser {
 public:
  explicit Parser(std::string_view text) : left_(text) {}

  std::optional<Expression> Whole() {
    const std::optional<Fraction> value = Sum();
    if (!value || !left_.empty()) return std::nullopt;
    return Expression{*value, std::move(numbers_)};
  }

 private:
  static constexpr int kMaxDepth = 16;
  static constexpr size_t kMaxDigits = 9;

  std::optional<Fraction> Sum() { return Chain('+', '-', &Parser::Product); }
  std::optional<Fraction> Product() { return Chain('*', '/', &Parser::Factor); }

  std::optional<Fraction> Chain(char one, char other, std::optional<Fraction> (Parser::*part)()) {
    std::optional<Fraction> value = (this->*part)();
    while (value && (Next() == one || Next() == other)) {
      const char operation = Take();
      const std::optional<Fraction> right = (this->*part)();
      value = right ? Combine(*value, operation, *right) : std::nullopt;
    }
    return value;
  }

  std::optional<Fraction> Factor() { return Next() == '(' ? Brackets() : Number(); }

  std::optional<Fraction> Brackets() {
    if (depth_ == kMaxDepth) return std::nullopt;
    Take();
    ++depth_;
    const std::optional<Fraction> inside = Sum();
    --depth_;
    if (!inside || Next() != ')') return std::nullopt;
    Take();
    return inside;
  }

  std::optional<Fraction> Number() {
    const bool zero = Next() == '0';
    int64_t number = 0;
    size_t digits = 0;
    for (; Next() >= '0' && Next() <= '9'; ++digits) {
      if (digits == kMaxDigits) return std::nullopt;
      number = number * 10 + (Take() - '0');
    }
    if (digits == 0 || (zero && digits > 1)) return std::nullopt;
    numbers_.push_back(number);
    return Fraction{number, 1};
  }

  char Next() const { return left_.empty() ? '\0' : left_.front(); }  // A '\0' in the text fits no rule either.
  char Take() {
    const char c = left_.front();
    left_.remove_prefix(1);
    return c;
  }

  std::string_view left_;
  int depth_ = 0;
  std::vector<int64_t> numbers_;
};

}  // namespace

bool Fraction::operator==(int64_t whole) const {
  int64_t product = 0;
  return !__builtin_mul_overflow(whole, under, &product) && product == over;
}

std::optional<Expression> ParseExpression(std::string_view text) { return Parser(text).Whole(); }

}  // namespace replay
