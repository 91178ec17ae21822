#include "generator/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "generator/prompts.h"
#include "tests/generator/make_task.h"

namespace replay {
namespace {

using testing::kEnd;
using testing::Make;
using testing::Tokens;

std::string ErrorOf(const std::string& json) {
  try {
    Make(json);
    return "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

// One of each kind and size.
const std::vector<std::string>& Kinds() {
  static const std::vector<std::string> kinds = {
      R"({"kind": "opcode"})",
      R"({"kind": "arithmetic", "difficulty": 1})",
      R"({"kind": "arithmetic", "difficulty": 2})",
      R"({"kind": "arithmetic", "difficulty": 3})",
      R"({"kind": "arithmetic", "difficulty": 4})",
      R"({"kind": "countdown", "numbers": 2})",
      R"({"kind": "countdown", "numbers": 4})",
      R"({"kind": "countdown", "numbers": 6})",
      R"({"kind": "file", "path": ")" REPLAY_TEST_DATA R"(/questions.jsonl", "max_prompt_tokens": 200})",
  };
  return kinds;
}
bool IsOpcode(const std::string& kind) { return kind.find("opcode") != std::string::npos; }

std::vector<Tokens> TrainingPrompts(const Task& task, uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<Tokens> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(task.NextTrainingPrompt(random).token_ids);
  return prompts;
}

std::string Ids(const std::vector<Prompt>& prompts) {
  std::string ids;
  for (const Prompt& prompt : prompts) ids += (ids.empty() ? "" : " | ") + prompt.id;
  return ids;
}

TEST(Task, HoldsPromptsOutOfTraining) {
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    const auto task = Make(kind);
    std::set<Tokens> held_out;
    for (const Prompt& prompt : task->HeldOutPrompts(5000)) held_out.insert(prompt.token_ids);
    EXPECT_FALSE(held_out.empty());
    std::set<Tokens> training;
    for (const Tokens& prompt : TrainingPrompts(*task, 1, 50'000)) {
      training.insert(prompt);
      ASSERT_FALSE(held_out.contains(prompt)) << task->Text(prompt);
    }
    EXPECT_GT(training.size(), 3 * std::min<size_t>(held_out.size(), 50));
  }
}

TEST(Task, HoldsTheSamePromptsOutForEver) {
  const std::string first[] = {
      "Da42702= | Be66161= | Cc77599=",
      "8+3= | 0+2= | 4+9=",
      "22+91= | 4-17= | 62-70=",
      "954-892= | 17*8= | 34*1=",
      "8*4-24= | 50*8-792= | 80*1-778=",
      "24 16 -> 384: | 11 24 -> 264: | 22 24 -> 528:",
      "15 25 9 25 -> 335: | 16 5 15 20 -> 26: | 15 8 10 14 -> 144:",
      "1 15 14 25 9 5 -> 253: | 25 9 8 7 5 7 -> 158: | 19 5 4 15 9 8 -> 382:",
      "h3771770716433131152 | h3203864119438946432 | h8706991357542505792",
  };
  ASSERT_EQ(std::size(first), Kinds().size());
  for (size_t i = 0; i < Kinds().size(); ++i) EXPECT_EQ(first[i], Ids(Make(Kinds()[i])->HeldOutPrompts(3))) << Kinds()[i];
}

TEST(Task, GivesFewerHeldOutPromptsAsTheFirstOfMore) {
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    const auto task = Make(kind);
    const std::vector<Prompt> more = task->HeldOutPrompts(20), again = Make(kind)->HeldOutPrompts(20);
    EXPECT_EQ(Ids(more), Ids(again));
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{10}}) {
      std::vector<Prompt> start = more;
      start.resize(std::min(count, more.size()));
      EXPECT_EQ(Ids(start), Ids(task->HeldOutPrompts(count)));
    }
    std::set<Tokens> distinct;
    for (const Prompt& prompt : more) {
      distinct.insert(prompt.token_ids);
      EXPECT_LE(prompt.token_ids.size(), task->max_prompt_tokens());
      EXPECT_LE(prompt.id.size(), 128u);  // It travels as a trajectory's source.
    }
    EXPECT_EQ(more.size(), distinct.size());
  }
}

TEST(Task, EndsWhenMoreHeldOutPromptsAreAskedForThanThereAre) {
  // Of 100 prompts, and of 20,000: exactly those that the hash says.
  const auto digits = Make(R"({"kind": "arithmetic", "difficulty": 1})");
  const auto small = Make(R"({"kind": "arithmetic", "difficulty": 2})");
  size_t of_digits = 0, of_small = 0;
  for (int a = 0; a < 100; ++a) {
    for (int b = 0; b < 100; ++b) {
      const std::string plus = std::to_string(a) + "+" + std::to_string(b) + "=";
      const std::string minus = std::to_string(a) + "-" + std::to_string(b) + "=";
      of_digits += a < 10 && b < 10 && IsHeldOut(plus) ? 1 : 0;
      of_small += (IsHeldOut(plus) ? 1 : 0) + (IsHeldOut(minus) ? 1 : 0);
    }
  }
  const size_t endless = std::numeric_limits<size_t>::max();
  EXPECT_EQ(of_digits, digits->HeldOutPrompts(endless).size());
  EXPECT_EQ(of_small, small->HeldOutPrompts(endless).size());
  EXPECT_GT(of_digits, 0u);
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    const std::vector<Prompt> all = Make(kind)->HeldOutPrompts(endless);
    EXPECT_GT(all.size(), 0u);
    EXPECT_LT(all.size(), 30'000u);
  }
}

TEST(Task, GivesTheSameTrainingPromptsForTheSameSeed) {
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    const auto task = Make(kind);
    EXPECT_EQ(TrainingPrompts(*task, 7, 100), TrainingPrompts(*Make(kind), 7, 100));
    EXPECT_NE(TrainingPrompts(*task, 7, 100), TrainingPrompts(*task, 8, 100));
  }
}

TEST(Task, DemonstratesWhatFitsAndIsRight) {
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind);
    const auto task = Make(kind);
    std::mt19937_64 random(3);
    size_t longest_prompt = 0;
    for (int i = 0; i < 5000; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      const Tokens shown = task->Demonstration(prompt, random);
      longest_prompt = std::max(longest_prompt, prompt.token_ids.size());
      ASSERT_LE(prompt.token_ids.size(), task->max_prompt_tokens()) << prompt.id;
      ASSERT_LE(shown.size(), task->max_answer_tokens()) << prompt.id;
      for (const Tokens& tokens : {prompt.token_ids, shown})
        for (const int32_t id : tokens) ASSERT_TRUE(id >= 0 && id < task->vocab_size());
      const Score score = task->ScoreAnswer(prompt, shown);
      ASSERT_EQ(score.correct ? 1.0f : 0.0f, score.reward);
      ASSERT_TRUE(score.correct || IsOpcode(kind)) << prompt.id << " " << task->Text(shown);
    }
    EXPECT_GT(longest_prompt, 0u);
  }
}

TEST(Task, SurvivesAnyAnswer) {
  const uint64_t seed = 20'240'601;
  for (const std::string& kind : Kinds()) {
    SCOPED_TRACE(kind + " seed " + std::to_string(seed));
    const auto task = Make(kind);
    std::mt19937_64 random(seed);
    int correct = 0;
    for (int i = 0; i < 20'000; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      // A right answer that is then damaged, or random tokens: huge, negative, just outside, plausible.
      Tokens answer = random() % 2 == 0 ? task->Demonstration(prompt, random) : Tokens(random() % 40);
      const bool damaged = !answer.empty() && random() % 4 != 0;
      if (damaged) {
        for (uint64_t times = 1 + random() % answer.size(); times > 0; --times) {
          const int32_t ids[] = {static_cast<int32_t>(random()),
                                 -1,
                                 std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max(),
                                 task->vocab_size(),
                                 task->end_token(),
                                 static_cast<int32_t>(random() % static_cast<uint64_t>(task->vocab_size())),
                                 '(',
                                 '9',
                                 '/',
                                 '0'};
          answer[random() % answer.size()] = ids[random() % std::size(ids)];
        }
      }
      const Score score = task->ScoreAnswer(prompt, answer);
      ASSERT_EQ(score.correct ? 1.0f : 0.0f, score.reward);
      for (const int32_t id : answer) ASSERT_TRUE((id >= 0 && id < task->vocab_size()) || !score.correct) << id;
      ASSERT_LE(task->Text(answer).size(), answer.size());
      correct += score.correct ? 1 : 0;
    }
    EXPECT_GT(correct, 500);
    const Prompt prompt = task->NextTrainingPrompt(random);
    EXPECT_FALSE(task->ScoreAnswer(prompt, {}).correct);
    EXPECT_FALSE(task->ScoreAnswer(prompt, Tokens(1'000'000, '(')).correct);
    EXPECT_FALSE(task->ScoreAnswer(prompt, Tokens(1'000'000, -5)).correct);
  }
}

TEST(Task, IsWrongWithoutAnEndOrWithAnythingBehindIt) {
  for (const std::string& kind : Kinds()) {
    if (IsOpcode(kind)) continue;
    SCOPED_TRACE(kind);
    const auto task = Make(kind);
    std::mt19937_64 random(4);
    for (int i = 0; i < 100; ++i) {
      const Prompt prompt = task->NextTrainingPrompt(random);
      const Tokens right = task->Demonstration(prompt, random);
      ASSERT_TRUE(task->ScoreAnswer(prompt, right).correct);
      Tokens cut_off(right.begin(), right.end() - 1), twice = right, behind = right, inside = right, alien = right;
      twice.push_back(kEnd);
      behind.push_back('1');
      inside.insert(inside.begin() + 1, kEnd);
      alien.insert(alien.begin() + 1, 100'000);
      for (const Tokens& wrong : {cut_off, twice, behind, inside, alien})
        ASSERT_FALSE(task->ScoreAnswer(prompt, wrong).correct) << prompt.id;
    }
  }
}

TEST(Task, SaysWhatItIs) {
  EXPECT_EQ("opcode: 36 pairs of operations on 5 digits", Make("{}")->Summary());  // the kind when none is named
  EXPECT_EQ("arithmetic: difficulty 2", Make(R"({"kind": "arithmetic"})")->Summary());
  EXPECT_EQ("countdown: 4 numbers", Make(R"({"kind": "countdown"})")->Summary());
}

TEST(Task, RefusesAConfigurationWithTheFieldTheValueAndTheRule) {
  EXPECT_EQ("none", ErrorOf("{}"));
  EXPECT_EQ("task.kind is \"opcodes\": must be \"opcode\", \"arithmetic\", \"countdown\" or \"file\"",
            ErrorOf(R"({"kind": "opcodes"})"));
  EXPECT_EQ("task.kind is 3: must be a string", ErrorOf(R"({"kind": 3})"));
  EXPECT_EQ("unknown key task.dificulty: did you mean \"difficulty\"?", ErrorOf(R"({"kind": "arithmetic", "dificulty": 2})"));
  EXPECT_EQ("unknown key task.difficulty", ErrorOf(R"({"difficulty": 2})"));
  EXPECT_EQ("unknown key task.numbers", ErrorOf(R"({"kind": "arithmetic", "numbers": 4})"));
  EXPECT_EQ("unknown key task.difficulty", ErrorOf(R"({"kind": "countdown", "difficulty": 2})"));
  EXPECT_EQ("task.difficulty is 5: must be from 1 to 4", ErrorOf(R"({"kind": "arithmetic", "difficulty": 5})"));
  EXPECT_EQ("task.difficulty is \"hard\": must be a whole number", ErrorOf(R"({"kind": "arithmetic", "difficulty": "hard"})"));
  EXPECT_EQ("task.difficulty is 2.5: must be a whole number", ErrorOf(R"({"kind": "arithmetic", "difficulty": 2.5})"));
  EXPECT_EQ("task.numbers is 1: must be from 2 to 6", ErrorOf(R"({"kind": "countdown", "numbers": 1})"));
  EXPECT_EQ("task.numbers is null: must be a whole number", ErrorOf(R"({"kind": "countdown", "numbers": null})"));
}

}  // namespace
}  // namespace replay
