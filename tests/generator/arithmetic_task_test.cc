#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>

#include "generator/expression.h"
#include "tests/generator/make_task.h"

namespace replay {
namespace {

using testing::Answer;
using testing::Bytes;
using testing::Make;

TEST(Arithmetic, AsksByDifficultyAndKnowsTheAnswer) {
  const struct {
    int difficulty;
    std::string_view operations, pattern;
    int64_t least, most;
  } cases[] = {{1, "+", "^[0-9]\\+[0-9]=$", 0, 18},
               {2, "+-", "^[0-9]{1,2}[+-][0-9]{1,2}=$", -99, 198},
               {3, "*+-", "^([0-9]{1,2}\\*[0-9]|[0-9]{1,3}[+-][0-9]{1,3})=$", -999, 1998},
               {4, "*+-", "^([0-9]{1,2}\\*[0-9]|[0-9]{1,3}[+-][0-9]{1,3})-[0-9]{1,3}=$", -1998, 1998}};
  for (const auto& [difficulty, operations, pattern, least, most] : cases) {
    SCOPED_TRACE(difficulty);
    const auto task = Make(R"({"kind": "arithmetic", "difficulty": )" + std::to_string(difficulty) + "}");
    std::mt19937_64 random(21);
    std::set<char> seen;
    for (int i = 0; i < 5000; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      ASSERT_EQ(Bytes(prompt.id), prompt.token_ids);
      ASSERT_EQ(prompt.id, task->Text(prompt.token_ids));
      ASSERT_THAT(prompt.id, ::testing::ContainsRegex(std::string(pattern)));
      for (const char c : prompt.id)
        if (c == '+' || c == '-' || c == '*') seen.insert(c);
      const std::optional<Expression> expression = ParseExpression(prompt.id.substr(0, prompt.id.size() - 1));
      ASSERT_TRUE(expression && expression->value.under == 1) << prompt.id;
      const int64_t value = expression->value.over;
      ASSERT_EQ(std::to_string(value), prompt.answer);
      ASSERT_TRUE(value >= least && value <= most) << prompt.id;
      ASSERT_TRUE(task->ScoreAnswer(prompt, Answer(prompt.answer)).correct);
      for (const std::string& wrong :
           {prompt.answer + " ", " " + prompt.answer, "0" + prompt.answer, "+" + prompt.answer, prompt.answer + ".0",
            std::to_string(value + 1), std::to_string(-value - 1), std::string()})
        ASSERT_FALSE(task->ScoreAnswer(prompt, Answer(wrong)).correct) << prompt.id << wrong;
    }
    EXPECT_EQ(std::set<char>(operations.begin(), operations.end()), seen);
  }
}

}  // namespace
}  // namespace replay
