#include "generator/expression.h"

#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <random>
#include <string>

namespace replay {
namespace {

std::string Describe(std::string_view text) {
  const std::optional<Expression> expression = ParseExpression(text);
  if (!expression) return "none";
  std::string described = std::to_string(expression->value.over) + "/" + std::to_string(expression->value.under) + " of";
  for (const int64_t number : expression->numbers) described += " " + std::to_string(number);
  return described;
}

// Another way to the same value: split at the last operator outside all brackets. Nothing under the same rules, but without
// limits on depth and size: for short texts.
struct Ratio {
  int64_t over = 0, under = 1;
};
std::optional<Ratio> Evaluate(std::string_view text) {
  for (const std::string_view operators : {"+-", "*/"}) {
    int depth = 0;
    for (size_t at = text.size(); at-- > 0;) {
      depth += text[at] == ')' ? 1 : text[at] == '(' ? -1 : 0;
      if (depth != 0 || operators.find(text[at]) == std::string_view::npos) continue;
      const auto a = Evaluate(text.substr(0, at)), b = Evaluate(text.substr(at + 1));
      if (!a || !b) return std::nullopt;
      if (text[at] == '+') return Ratio{a->over * b->under + b->over * a->under, a->under * b->under};
      if (text[at] == '-') return Ratio{a->over * b->under - b->over * a->under, a->under * b->under};
      if (text[at] == '*') return Ratio{a->over * b->over, a->under * b->under};
      if (b->over == 0) return std::nullopt;
      return Ratio{a->over * b->under, a->under * b->over};
    }
  }
  if (text.size() > 2 && text.front() == '(' && text.back() == ')') return Evaluate(text.substr(1, text.size() - 2));
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  Ratio number;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    number.over = number.over * 10 + (c - '0');
  }
  return number;
}

TEST(Expression, IsWorkedOutExactly) {
  EXPECT_EQ("7/1 of 7", Describe("7"));
  EXPECT_EQ("0/1 of 0", Describe("0"));
  EXPECT_EQ("71/1 of 25 3 4", Describe("25*3-4"));
  EXPECT_EQ("11/1 of 3 4 2", Describe("3+4*2"));
  EXPECT_EQ("14/1 of 3 4 2", Describe("(3+4)*2"));
  EXPECT_EQ("-2/1 of 3 4 1", Describe("3-4-1"));
  EXPECT_EQ("8/6 of 8 2 3", Describe("8/2/3"));
  EXPECT_EQ("12/2 of 3 4 2", Describe("3*4/2"));
  EXPECT_EQ("3/-4 of 3 1 5", Describe("3/(1-5)"));
  EXPECT_EQ("999999999/1 of 999999999", Describe("999999999"));
  EXPECT_EQ("5/1 of 5", Describe("((5))"));
}

TEST(Expression, IsEqualToAWholeNumberOnlyIfThereIsNoRemainder) {
  const auto equals = [](std::string_view text, int64_t whole) { return ParseExpression(text)->value == whole; };
  EXPECT_TRUE(equals("1/3*3", 1));
  EXPECT_TRUE(equals("6/4+2/4", 2));
  EXPECT_TRUE(equals("8/(3-8/3)", 24));
  EXPECT_TRUE(equals("4/(1-5)", -1));
  EXPECT_FALSE(equals("7/2", 3));
  EXPECT_FALSE(equals("7/2", 4));
  EXPECT_FALSE(equals("4/(1-5)", 1));
  EXPECT_FALSE(equals("1/4", std::numeric_limits<int64_t>::max()));  // The product would not fit.
  EXPECT_FALSE(equals("0/4", int64_t{1} << 62));                     // It would be 0 in 64 bits.
}

TEST(Expression, IsNothingButTheGrammar) {
  for (const std::string_view text : {"",     " ",       "-3",  "+3",      "3-",   "3--4",       "3+-4",
                                      "*",    "3*",      "(3",  "3)",      ")",    "()",         "(3)(4)",
                                      "3(4)", "(3)4",    "3 4", "3 + 4",   "3+4 ", " 3+4",       "3+4=7",
                                      "3.5",  "3,4",     "x",   "3x",      "007",  "00",         "01+2",
                                      "3**4", "3//4",    "3^4", "1e3",     "0x1",  "²",          "3+4\n",
                                      "1/0",  "1/(2-2)", "0/0", "(1/0)*0", "1/0+", "1234567890", "12345678901234567890123"}) {
    EXPECT_EQ("none", Describe(text)) << "\"" << text << "\"";
  }
  EXPECT_EQ("none", Describe(std::string_view("3\0", 2)));
  EXPECT_EQ("none", Describe(std::string_view("\0", 1)));
}

TEST(Expression, StopsAtWhatDoesNotFit) {
  EXPECT_EQ("999999998000000001/1 of 999999999 999999999", Describe("999999999*999999999"));
  EXPECT_EQ("none", Describe("999999999*999999999*999999999"));
  EXPECT_EQ("none", Describe("1/999999999/999999999/999999999"));
  EXPECT_EQ("none", Describe("1/999999999/999999999+999999999"));
  std::string sum = "999999999*999999999*9";  // 9.0e18, of 9.2e18
  EXPECT_NE("none", Describe(sum));
  EXPECT_EQ("none", Describe(sum + "+" + sum));
  EXPECT_EQ("none", Describe("0-" + sum + "-" + sum));

  const auto nested = [](size_t depth) { return std::string(depth, '(') + "1" + std::string(depth, ')'); };
  EXPECT_EQ("1/1 of 1", Describe(nested(16)));
  EXPECT_EQ("none", Describe(nested(17)));
  EXPECT_EQ("none", Describe(nested(1'000'000)));
  EXPECT_EQ("none", Describe(std::string(1'000'000, '(')));
  std::string aside = nested(16);  // Depth is that of open brackets, not their number.
  for (int i = 0; i < 100; ++i) aside += "+" + nested(16);
  EXPECT_EQ("101/1", Describe(aside).substr(0, 5));
}

TEST(Expression, AgreesWithAnotherWayOnRandomText) {
  std::mt19937_64 random(11);
  int valid = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    std::string text;
    // Mostly in an order that may be right, so that enough of them are.
    for (uint64_t length = 1 + random() % 9; text.size() < length;)
      text += random() % 8 == 0      ? "0123456789+-*/()"[random() % 16]
              : text.size() % 2 == 0 ? "0123456789("[random() % 11]
                                     : "+-*/)"[random() % 5];
    const std::optional<Expression> ours = ParseExpression(text);
    const std::optional<Ratio> other = Evaluate(text);
    ASSERT_EQ(other.has_value(), ours.has_value()) << text;
    if (!ours) continue;
    ++valid;
    ASSERT_NE(0, ours->value.under) << text;
    ASSERT_EQ(other->over * ours->value.under, other->under * ours->value.over) << text;
    std::string numbers;
    for (const char c : text) numbers += std::isdigit(static_cast<unsigned char>(c)) != 0 ? c : ' ';
    std::string read;
    for (const int64_t number : ours->numbers) read += std::to_string(number) + " ";
    std::string expected;
    for (size_t at = 0; at < numbers.size(); ++at)
      if (numbers[at] != ' ')
        expected += numbers[at] + std::string(at + 1 == numbers.size() || numbers[at + 1] == ' ' ? " " : "");
    ASSERT_EQ(expected, read) << text;
  }
  EXPECT_GT(valid, 100'000);
}

}  // namespace
}  // namespace replay
