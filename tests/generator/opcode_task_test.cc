#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <set>

#include "tests/generator/make_task.h"

namespace replay {
namespace {

using testing::Make;
using testing::Tokens;

constexpr std::string_view kNames[] = {"copy", "reverse", "rotate", "add", "reverse_add", "complement"};

// The six by their definition on text.
std::string Transformed(size_t transformation, std::string digits) {
  if (transformation == 1 || transformation == 4) digits = std::string(digits.rbegin(), digits.rend());
  if (transformation == 2) digits = digits.substr(1) + digits[0];
  for (char& digit : digits) {
    if (transformation == 3 || transformation == 4) digit = digit == '9' ? '0' : static_cast<char>(digit + 1);
    if (transformation == 5) digit = static_cast<char>('9' - (digit - '0'));
  }
  return digits;
}

// Prompts of each pair whose digits tell all six transformations apart, "Aa" … "Ff".
std::map<std::string, std::vector<Prompt>> TellingPrompts(const Task& task, size_t of_each) {
  std::map<std::string, std::vector<Prompt>> prompts;
  std::mt19937_64 random(9);
  for (size_t missing = 36 * of_each; missing > 0;) {
    const Prompt prompt = task.NextTrainingPrompt(random);
    std::set<std::string> results;
    for (size_t i = 0; i < 6; ++i) results.insert(Transformed(i, prompt.id.substr(2, 5)));
    auto& of_pair = prompts[prompt.id.substr(0, 2)];
    if (results.size() < 6 || of_pair.size() == of_each) continue;
    of_pair.push_back(prompt);
    --missing;
  }
  return prompts;
}

size_t TransformationOf(const Prompt& prompt, const std::string& answer) {
  size_t transformation = 0;
  while (transformation < 6 && Transformed(transformation, prompt.id.substr(2, 5)) != answer) ++transformation;
  return transformation;
}

TEST(Opcode, PromptsAreTwoOperationsFiveDigitsAndASeparator) {
  const auto task = Make("{}");
  EXPECT_EQ(23, task->vocab_size());
  EXPECT_EQ(-1, task->end_token());
  EXPECT_EQ(8u, task->max_prompt_tokens());
  EXPECT_EQ(5u, task->max_answer_tokens());
  std::mt19937_64 random(2);
  std::set<int32_t> first, second, digits;
  for (int i = 0; i < 2000; ++i) {
    const Prompt prompt = task->NextTrainingPrompt(random);
    ASSERT_EQ(8u, prompt.token_ids.size());
    first.insert(prompt.token_ids[0]);
    second.insert(prompt.token_ids[1]);
    digits.insert(prompt.token_ids.begin() + 2, prompt.token_ids.begin() + 7);
    ASSERT_EQ(22, prompt.token_ids[7]);
    ASSERT_EQ(prompt.id, task->Text(prompt.token_ids));
    ASSERT_EQ(5u, prompt.answer.size());
  }
  EXPECT_THAT(first, ::testing::ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_THAT(second, ::testing::ElementsAre(16, 17, 18, 19, 20, 21));
  EXPECT_THAT(digits, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ("Af31415=", task->Text(Tokens{10, 21, 3, 1, 4, 1, 5, 22}));
  EXPECT_EQ("??", task->Text(Tokens{-1, 23}));
}

TEST(Opcode, HasSixTransformations) {
  // As one works them out by hand; the other tests go by Transformed.
  const std::string results[] = {"90127", "72109", "01279", "01238", "83210", "09872"};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(results[i], Transformed(i, "90127")) << kNames[i];
  const auto task = Make("{}");
  std::map<size_t, int> pairs;
  for (const auto& [pair, prompts] : TellingPrompts(*task, 5)) {
    const size_t transformation = TransformationOf(prompts[0], prompts[0].answer);
    for (const Prompt& prompt : prompts) EXPECT_EQ(transformation, TransformationOf(prompt, prompt.answer)) << prompt.id;
    ++pairs[transformation];
  }
  EXPECT_EQ(6u, pairs.size());  // each is asked for by some pair, and no other
  EXPECT_EQ(0, pairs.count(6));
}

TEST(Opcode, AsksTheSameOfAPairForEver) {
  std::string map;
  for (const auto& [pair, prompts] : TellingPrompts(*Make("{}"), 1))
    map += (pair[1] == 'a' ? "\n" : " ") + std::string(kNames[TransformationOf(prompts[0], prompts[0].answer)]);
  EXPECT_EQ(
      "\nrotate complement add reverse_add reverse reverse"
      "\nreverse rotate complement complement reverse_add rotate"
      "\nrotate reverse_add add copy copy complement"
      "\ncopy add reverse reverse copy copy"
      "\nrotate copy add complement add copy"
      "\nreverse_add reverse_add reverse_add reverse_add rotate copy",
      map);
}

// The probabilities of demonstrations worked out once more: [pair][transformation], and which one is right.
struct Shown {
  size_t right = 0;
  double probability[6] = {};
};
std::vector<Shown> ShownByPair() {
  std::mt19937_64 random(77);
  const auto unit = [&] { return (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0; };
  std::vector<Shown> pairs(36);
  for (Shown& pair : pairs) {
    pair.right = random() % 6;
    double sum = 0;
    for (size_t i = 0; i < 6; ++i) {
      const double a = unit(), b = unit();
      const double logit = 1.2 * std::sqrt(-2 * std::log(a)) * std::cos(2 * std::numbers::pi * b) + (i == pair.right ? 0.8 : 0);
      sum += pair.probability[i] = std::exp(logit);
    }
    for (double& probability : pair.probability) probability /= sum;
  }
  return pairs;
}

TEST(Opcode, DemonstratesEachTransformationAsOftenAsItsPairSays) {
  const auto task = Make("{}");
  const std::vector<Shown> shown = ShownByPair();
  std::mt19937_64 random(12);
  double chi_squared = 0;
  size_t pair = 0;
  for (const auto& [name, prompts] : TellingPrompts(*task, 1)) {
    EXPECT_EQ(shown[pair].right, TransformationOf(prompts[0], prompts[0].answer)) << name;
    const int count = 5000;
    std::vector<int> counts(7);
    for (int i = 0; i < count; ++i) ++counts[TransformationOf(prompts[0], task->Text(task->Demonstration(prompts[0], random)))];
    EXPECT_EQ(0, counts[6]) << name;
    for (size_t i = 0; i < 6; ++i) {
      const double expected = count * shown[pair].probability[i];
      chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    ++pair;
  }
  // 36 * 5 degrees of freedom: mean 180, standard deviation 19.
  EXPECT_GT(chi_squared, 180 - 4 * 19);
  EXPECT_LT(chi_squared, 180 + 4 * 19);
}

TEST(Opcode, DemonstratesWhatIsRightThreeTimesInTenAndMostOftenForAThirdOfThePairs) {
  // Over all tables that could have been drawn the means are 0.27 (standard deviation 0.04) and 0.34 (0.08).
  double right = 0;
  int likeliest = 0;
  for (const Shown& shown : ShownByPair()) {
    right += shown.probability[shown.right] / 36;
    likeliest += *std::max_element(shown.probability, shown.probability + 6) == shown.probability[shown.right] ? 1 : 0;
  }
  EXPECT_NEAR(0.294, right, 0.001);
  EXPECT_EQ(11, likeliest);
  const auto task = Make("{}");
  std::mt19937_64 random(13);
  int correct = 0;
  const int count = 40'000;
  for (int i = 0; i < count; ++i) {
    const Prompt prompt = task->NextTrainingPrompt(random);
    correct += task->ScoreAnswer(prompt, task->Demonstration(prompt, random)).correct ? 1 : 0;
  }
  // Digits that are their own transformation, such as 11111, are right by accident now and then.
  EXPECT_NEAR(right, static_cast<double>(correct) / count, 0.01);
}

TEST(Opcode, RewardsOnlyTheFiveRightDigits) {
  const auto task = Make("{}");
  std::mt19937_64 random(14);
  for (int i = 0; i < 500; ++i) {
    const Prompt prompt = task->NextTrainingPrompt(random);
    Tokens right;
    for (const char digit : prompt.answer) right.push_back(digit - '0');
    ASSERT_TRUE(task->ScoreAnswer(prompt, right).correct);
    ASSERT_EQ(1.0f, task->ScoreAnswer(prompt, right).reward);
    for (size_t at = 0; at < 5; ++at) {
      for (const int32_t id : {(right[at] + 1) % 10, 10, 22, 23, -1, right[at] + 256, right[at] - 256, right[at] + '0'}) {
        Tokens wrong = right;
        wrong[at] = id;
        ASSERT_FALSE(task->ScoreAnswer(prompt, wrong).correct) << prompt.id << " " << at << " " << id;
        ASSERT_EQ(0.0f, task->ScoreAnswer(prompt, wrong).reward);
      }
    }
    Tokens shorter(right.begin(), right.end() - 1), longer = right;
    longer.push_back(0);
    for (const Tokens& wrong : {shorter, longer, Tokens{}, Tokens{22}}) ASSERT_FALSE(task->ScoreAnswer(prompt, wrong).correct);
  }
}

}  // namespace
}  // namespace replay
