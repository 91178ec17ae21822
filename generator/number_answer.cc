#include "generator/number_answer.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace replay {
namespace {

constexpr double kTolerance = 1e-9;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlphanumeric(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Inside the last \boxed{}, with the brackets in it paired; one that is never closed reaches to the end.
std::optional<std::string_view> LastBox(std::string_view text) {
  constexpr std::string_view kBox = "\\boxed{";
  const size_t found = text.rfind(kBox);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view inside = text.substr(found + kBox.size());
  int open = 1;
  for (size_t at = 0; at < inside.size(); ++at) {
    open += inside[at] == '{' ? 1 : inside[at] == '}' ? -1 : 0;
    if (open == 0) return inside.substr(0, at);
  }
  return inside;
}

std::string_view AnswerPart(std::string_view text) {
  if (const auto box = LastBox(text)) return *box;
  const size_t mark = text.rfind("####");
  return mark == std::string_view::npos ? text : text.substr(mark + 4);
}

// Reads forward from a place in the text; what is asked for and not there leaves the place as it was.
class Reader {
 public:
  Reader(std::string_view text, size_t at) : text_(text), at_(at) {}
  size_t at() const { return at_; }

  // A number without its sign, as the result has it; "" if none begins here.
  std::string Number() {
    std::string number = LatexFraction();
    if (!number.empty()) return number;
    number = Whole();
    const bool bare_point = number.empty() && (at_ == 0 || !IsAlphanumeric(text_[at_ - 1]));  // ".5", but no "v.5" and "1.2.5"
    if (!number.empty() || bare_point) number += DigitsBehind('.');
    if (!number.empty()) number += DigitsBehind('/');
    return number;
  }

 private:
  std::string Whole() {
    std::string digits = Digits();
    if (digits.empty() || digits.size() > 3) return digits;
    while (Peek(0) == ',' && IsDigit(Peek(1)) && IsDigit(Peek(2)) && IsDigit(Peek(3)) && !IsDigit(Peek(4)))
      digits += Take(4).substr(1);
    return digits;
  }

  std::string LatexFraction() {
    const size_t begin = at_;
    for (const std::string_view name : {"\\frac", "\\dfrac", "\\tfrac"}) {
      if (text_.substr(at_, name.size()) != name) continue;
      at_ += name.size();
      const std::string over = Argument(/*may_be_negative=*/true), under = Argument(/*may_be_negative=*/false);
      if (!over.empty() && !under.empty()) return over + "/" + under;
      at_ = begin;
    }
    return "";
  }

  // {12}, {-12}, or a single digit.
  std::string Argument(bool may_be_negative) {
    if (IsDigit(Peek(0))) return Take(1);
    if (Peek(0) != '{') return "";
    Take(1);
    const std::string sign = may_be_negative && Peek(0) == '-' ? Take(1) : "";
    const std::string digits = Digits();
    if (digits.empty() || Peek(0) != '}') return "";
    Take(1);
    return sign + digits;
  }

  // ".25", with the mark in front, if that is what comes next.
  std::string DigitsBehind(char mark) {
    if (Peek(0) != mark || !IsDigit(Peek(1))) return "";
    Take(1);
    return mark + Digits();
  }

  std::string Digits() {
    size_t count = 0;
    while (IsDigit(Peek(count))) ++count;
    return Take(count);
  }

  char Peek(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  std::string Take(size_t count) {
    at_ += count;
    return std::string(text_.substr(at_ - count, count));
  }

  std::string_view text_;
  size_t at_;
};

// A "-" stands before the number at `at`, or before its "$", and is a sign and no subtraction, range or hyphen.
bool IsNegative(std::string_view text, size_t at) {
  if (at > 0 && text[at - 1] == '$') --at;
  if (at > 0 && text[at - 1] == '\\') --at;
  if (at == 0 || text[at - 1] != '-') return false;
  const char before = at > 1 ? text[at - 2] : ' ';
  return !IsAlphanumeric(before) && before != ')' && before != ']' && before != '}';
}

std::optional<double> DecimalValue(std::string_view text) {
  if (text.empty() || !(IsDigit(text.front()) || text.front() == '.')) return std::nullopt;  // No sign, "inf" or "nan".
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<double> ValueOf(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  const size_t slash = text.find('/');
  const std::optional<double> over = DecimalValue(text.substr(0, slash));
  const std::optional<double> under = slash == std::string_view::npos ? 1.0 : DecimalValue(text.substr(slash + 1));
  if (!over || !under || *under == 0) return std::nullopt;
  return (negative ? -*over : *over) / *under;
}

}  // namespace

std::string FinalNumber(std::string_view text) {
  const std::string_view part = AnswerPart(text);
  std::string last;
  for (size_t at = 0; at < part.size();) {
    Reader reader(part, at);
    std::string number = reader.Number();
    if (number.empty()) {
      ++at;
      continue;
    }
    if (IsNegative(part, at)) number = number.front() == '-' ? number.substr(1) : "-" + number;
    last = std::move(number);
    at = reader.at();
  }
  return last;
}

bool SameNumber(std::string_view a, std::string_view b) {
  const std::optional<double> first = ValueOf(a), second = ValueOf(b);
  return first && second && std::abs(*first - *second) <= kTolerance;
}

}  // namespace replay
