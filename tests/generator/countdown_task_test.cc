#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <sstream>

#include "generator/expression.h"
#include "tests/generator/make_task.h"

namespace replay {
namespace {

using testing::Answer;
using testing::Bytes;
using testing::Make;

struct Question {
  std::multiset<int64_t> numbers;
  int64_t target = 0;
};
Question ParseQuestion(const std::string& text) {
  Question question;
  std::istringstream words(text);
  for (std::string word; words >> word && word != "->";) question.numbers.insert(std::stoll(word));
  words >> question.target;
  return question;
}

TEST(Countdown, AsksForATargetThatCanBeReached) {
  for (const int numbers : {2, 3, 4, 5, 6}) {
    SCOPED_TRACE(numbers);
    const auto task = Make(R"({"kind": "countdown", "numbers": )" + std::to_string(numbers) + "}");
    std::mt19937_64 random(31);
    for (int i = 0; i < 2000; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      ASSERT_THAT(prompt.id, ::testing::ContainsRegex("^([0-9]{1,2} )+-> [0-9]{1,3}:$"));
      const Question question = ParseQuestion(prompt.id);
      ASSERT_EQ(static_cast<size_t>(numbers), question.numbers.size());
      ASSERT_TRUE(*question.numbers.begin() >= 1 && *question.numbers.rbegin() <= 25) << prompt.id;
      ASSERT_TRUE(question.target >= 1 && question.target <= 999) << prompt.id;
      const std::optional<Expression> made_from = ParseExpression(prompt.answer);
      ASSERT_TRUE(made_from && made_from->value == question.target) << prompt.id << prompt.answer;
      ASSERT_EQ(question.numbers, std::multiset<int64_t>(made_from->numbers.begin(), made_from->numbers.end())) << prompt.id;
    }
  }
}

// A prompt as the task would make it.
Prompt CountdownPrompt(const std::string& text) { return {.id = text, .token_ids = Bytes(text), .answer = ""}; }

TEST(Countdown, TakesEachNumberAtMostOnce) {
  const auto task = Make(R"({"kind": "countdown"})");
  const Prompt prompt = CountdownPrompt("3 7 25 4 -> 71:");
  const auto correct = [&](std::string_view answer) { return task->ScoreAnswer(prompt, Answer(answer)).correct; };
  EXPECT_TRUE(correct("25*3-4"));  // the 7 is left over
  EXPECT_TRUE(correct("(25*3)-4"));
  EXPECT_TRUE(correct("3*25-4"));
  EXPECT_FALSE(correct("25*(7-4)-4"));  // 4 twice
  EXPECT_FALSE(correct("71"));
  EXPECT_FALSE(correct("70+1"));
  EXPECT_FALSE(correct("25+25+25-4"));
  EXPECT_FALSE(correct("25*3-5"));
  EXPECT_FALSE(correct("25*3-4+0"));
  EXPECT_FALSE(correct("25*3-04"));
  EXPECT_FALSE(correct("25*3-4 "));
  EXPECT_FALSE(correct("25*3-4=71"));
  EXPECT_FALSE(correct("-4+25*3"));
  EXPECT_FALSE(correct("25*3"));
  EXPECT_FALSE(correct(""));

  // A number that stands twice may be used twice, and no more often.
  const Prompt doubled = CountdownPrompt("5 5 2 -> 10:");
  EXPECT_TRUE(task->ScoreAnswer(doubled, Answer("5+5")).correct);
  EXPECT_TRUE(task->ScoreAnswer(doubled, Answer("5*2")).correct);
  EXPECT_FALSE(task->ScoreAnswer(doubled, Answer("5+5+5-5")).correct);
  EXPECT_TRUE(task->ScoreAnswer(CountdownPrompt("5 2 -> 5:"), Answer("5")).correct);
}

TEST(Countdown, DividesExactly) {
  const auto task = Make(R"({"kind": "countdown"})");
  const auto correct = [&](const std::string& prompt, std::string_view answer) {
    return task->ScoreAnswer(CountdownPrompt(prompt), Answer(answer)).correct;
  };
  EXPECT_TRUE(correct("8 3 8 3 -> 24:", "8/(3-8/3)"));
  EXPECT_TRUE(correct("6 4 2 -> 3:", "6*2/4"));
  EXPECT_TRUE(correct("6 4 2 -> 3:", "6/(4/2)"));
  EXPECT_FALSE(correct("7 2 -> 3:", "7/2"));
  EXPECT_FALSE(correct("7 2 -> 4:", "7/2"));
  EXPECT_FALSE(correct("7 2 2 -> 7:", "7/(2-2)"));
}

TEST(Countdown, ScoresAsTheRulesSayOnRandomAnswers) {
  for (const int numbers : {2, 3, 6}) {
    const uint64_t seed = 40 + static_cast<uint64_t>(numbers);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto task = Make(R"({"kind": "countdown", "numbers": )" + std::to_string(numbers) + "}");
    std::mt19937_64 random(seed);
    int correct = 0, wrong_value = 0, wrong_numbers = 0;
    for (int i = 0; i < 30'000; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      const Question question = ParseQuestion(prompt.id);
      // Some of the numbers in any order, now and then one of them twice or another one; worked out on the way, from the left.
      std::vector<int64_t> order(question.numbers.begin(), question.numbers.end());
      std::shuffle(order.begin(), order.end(), random);
      order.resize(1 + random() % order.size());
      if (random() % 4 == 0) order.push_back(random() % 2 == 0 ? order[0] : static_cast<int64_t>(random() % 30));
      std::string text = std::to_string(order[0]);
      double value = static_cast<double>(order[0]);
      for (size_t at = 1; at < order.size(); ++at) {
        const char operation = "+-*/"[random() % 4];
        if (at > 1) text = "(" + text + ")";
        text += operation + std::to_string(order[at]);
        const auto number = static_cast<double>(order[at]);
        value = operation == '+'   ? value + number
                : operation == '-' ? value - number
                : operation == '*' ? value * number
                                   : value / number;
      }
      std::multiset<int64_t> used(order.begin(), order.end());
      const bool numbers_right = std::includes(question.numbers.begin(), question.numbers.end(), used.begin(), used.end());
      const bool value_right = std::abs(value - static_cast<double>(question.target)) < 1e-9;  // NaN and infinity are wrong
      ASSERT_EQ(numbers_right && value_right, task->ScoreAnswer(prompt, Answer(text)).correct) << prompt.id << " " << text;
      correct += numbers_right && value_right ? 1 : 0;
      wrong_value += numbers_right && !value_right ? 1 : 0;
      wrong_numbers += !numbers_right && value_right ? 1 : 0;
    }
    EXPECT_GT(correct, 20);
    EXPECT_GT(wrong_value, 1000);
    EXPECT_GT(wrong_numbers, numbers == 6 ? 0 : 5);
  }
}

}  // namespace
}  // namespace replay
