#include "generator/number_answer.h"

#include <gtest/gtest.h>

#include <random>

namespace replay {
namespace {

TEST(NumberAnswer, IsFoundWhereItStands) {
  const struct {
    std::string_view text, number;
  } cases[] = {
      // Behind the mark, in a box, or the last one.
      {"She makes 9 * 2 = $<<9*2=18>>18 a day.\n#### 18", "18"},
      {"#### 18", "18"},
      {"####18", "18"},
      {"#### 5 #### 6", "6"},
      {"#### 5\nThat is 5 of 9", "9"},
      {"1 \\boxed{2} 3", "2"},
      {"\\boxed{2} #### 3", "2"},
      {"\\boxed{1} or \\boxed{2}.", "2"},
      {"first 3, then 4.", "4"},
      {"18", "18"},
      // Its sign.
      {"#### -7", "-7"},
      {"37-58=-21", "-21"},
      {"10-15", "15"},
      {"GPT-4", "4"},
      {"(3)-4", "4"},
      {"x = -$5", "-5"},
      {"$-5", "-5"},
      {"-\\$5", "-5"},
      {"-0.5", "-0.5"},
      {"- 5", "5"},
      {"+5", "5"},
      {"-", ""},
      // Decimals and commas.
      {"18.", "18"},
      {"$1,234.50.", "1234.50"},
      {"1,234,567", "1234567"},
      {"#### 8,750", "8750"},
      {"1, 2,3", "3"},
      {"1,2345", "2345"},
      {"1234,567", "567"},
      {"1,234,56", "56"},
      {".5", ".5"},
      {"-$.50", "-.50"},
      {"v.5", "5"},
      {"0.25", "0.25"},
      {"3.14.15", "15"},
      {"007", "007"},
      // What stands around it.
      {"70%", "70"},
      {"70\\%", "70"},
      {"$15", "15"},
      {"15 dollars", "15"},
      {"12cm", "12"},
      // Fractions.
      {"1/2", "1/2"},
      {"-3/4 of it", "-3/4"},
      {"1 / 2", "2"},
      {"1/", "1"},
      {"/2", "2"},
      {"1/2/3", "3"},
      {"1/0", "1/0"},
      {"\\boxed{\\frac{1}{2}}", "1/2"},
      {"\\boxed{\\frac{1}{2}", "1/2"},
      {"\\boxed{-\\frac{12}{35}}", "-12/35"},
      {"\\dfrac{2}{6}", "2/6"},
      {"\\frac{-1}{2}", "-1/2"},
      {"-\\frac{-1}{2}", "1/2"},
      {"\\frac{1}{-2}", "-2"},
      {"\\tfrac12", "1/2"},
      {"\\frac{1}2", "1/2"},
      {"\\frac{10}", "10"},
      {"\\frac{x}{2}", "2"},
      {"\\frac{}{}", ""},
      {"\\frac", ""},
      {"\\frac{1", "1"},
      {"\\boxed{\\text{about } 12{}}", "12"},
      {"\\boxed{5} {", "5"},
      // None.
      {"", ""},
      {"I do not know", ""},
      {"12 ####", ""},
      {"12 \\boxed{}", ""},
      {"12 \\boxed{", ""},
      {"12 \\boxed{none}", ""},
      {"\\boxed", ""},
      {"$,.%/-", ""},
  };
  for (const auto& [text, number] : cases) EXPECT_EQ(number, FinalNumber(text)) << "in \"" << text << "\"";
}

TEST(NumberAnswer, IsTheSameHoweverItIsWritten) {
  const struct {
    std::string_view a, b;
    bool same;
  } cases[] = {
      {"18", "18", true},
      {"18", "18.0", true},
      {"18", "018", true},
      {"18", "19", false},
      {"18", "-18", false},
      {"-18", "-18.00", true},
      {"0", "-0", true},
      {"1/2", "0.5", true},
      {"2/6", "1/3", true},
      {"-1/2", "-0.5", true},
      {"1.5/3", "0.5", true},
      {".5", "0.5", true},
      {"1/3", "0.3333333333", true},
      {"1/3", "0.333", false},
      {"0.3", "0.30000000001", true},
      {"0.3", "0.3000001", false},
      {"1234567890", "1234567891", false},  // Tolerance does not grow with the numbers.
      {"1000000", "1000000.1", false},
      // No numbers.
      {"", "", false},
      {"18", "", false},
      {"", "18", false},
      {"abc", "abc", false},
      {"-", "-", false},
      {".", ".", false},
      {"1/0", "1/0", false},
      {"1/", "1/", false},
      {"/2", "/2", false},
      {"1/2/3", "1/2/3", false},
      {"1/-2", "1/-2", false},
      {"--1", "--1", false},
      {"+1", "1", false},
      {"1.2.3", "1.2.3", false},
      {"1e3", "1000", false},
      {"0x10", "16", false},
      {"nan", "nan", false},
      {"inf", "inf", false},
      {" 1", "1", false},
      {"1 ", "1", false},
      {"1,000", "1000", false},
  };
  for (const auto& [a, b, same] : cases) {
    EXPECT_EQ(same, SameNumber(a, b)) << a << " and " << b;
    EXPECT_EQ(same, SameNumber(b, a)) << b << " and " << a;
  }
  const std::string huge(5000, '9');
  EXPECT_FALSE(SameNumber(huge, huge));  // Beyond any double.
}

TEST(NumberAnswer, OfAnyTextIsANumberOrNothing) {
  const std::string_view parts[] = {"\\boxed{", "}",
                                    "{",        "####",
                                    "\\frac",   "\\dfrac",
                                    "1",        "23",
                                    "456",      ",",
                                    ".",        "-",
                                    "/",        "$",
                                    "%",        " ",
                                    "\\",       "x",
                                    "\n",       std::string_view("\0", 1),
                                    "\xff",     "\\",
                                    "00",       "#",
                                    "0",        "\xe2\x88\x92",
                                    "789",      ",000"};
  std::mt19937_64 random(5);
  int numbers = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (uint64_t length = random() % 12; length > 0; --length) text += parts[random() % std::size(parts)];
    const std::string number = FinalNumber(text);
    EXPECT_EQ(std::string::npos, number.find_first_not_of("0123456789./-")) << text;
    // A fraction by zero is the one form that has no value.
    EXPECT_TRUE(number.empty() || number.find('/') != std::string::npos || SameNumber(number, number)) << text;
    EXPECT_EQ(number, FinalNumber(number)) << text;
    numbers += number.empty() ? 0 : 1;
  }
  EXPECT_GT(numbers, 50'000);
}

}  // namespace
}  // namespace replay
