#include "generator/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/json_config.h"
#include "tests/support/temporary_folder.h"

namespace replay {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  try {
    ParseGeneratorConfig(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GeneratorConfig, HasTheDocumentedDefaults) {
  const GeneratorConfig config = ParseGeneratorConfig("{}");
  EXPECT_EQ(config.group_size, 8u);
  EXPECT_EQ(config.rows, 32);
  EXPECT_EQ(config.max_answer_tokens, 5);  // the task's
  EXPECT_FALSE(config.skip_equal_rewards);
  EXPECT_EQ(ParseGeneratorConfig(R"({"group_size": 64})").rows, 64);
}

TEST(GeneratorConfig, ReadsEveryKey) {
  const GeneratorConfig config = ParseGeneratorConfig(
      R"({"address": "unix:/a", "buffer": "b", "run_id": "r", "seed": 3, "threads": 2, "task": {"kind": "countdown", "numbers": 3}, "group_size": 4,
          "rows": 12, "temperature": 0.8, "top_p": 0.9, "max_answer_tokens": 7, "equal_rewards": "skip", "groups_in_flight": 5, "max_groups": 6})");
  EXPECT_EQ(config.address, "unix:/a");
  EXPECT_EQ(config.rows, 12);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_EQ(config.max_answer_tokens, 7);
  EXPECT_TRUE(config.skip_equal_rewards);
  EXPECT_EQ(config.max_groups, 6u);
}

TEST(GeneratorConfig, NamesTheKeyTheValueAndTheRule) {
  EXPECT_THAT(ErrorOf(R"({"rows": 4})"), HasSubstr("rows is 4: must be at least group_size, 8"));
  EXPECT_THAT(ErrorOf(R"({"group_size": 0})"), HasSubstr("group_size is 0: must be from 1 to 4096"));
  EXPECT_THAT(ErrorOf(R"({"equal_rewards": "drop"})"), HasSubstr("equal_rewards is \"drop\": must be \"keep\" or \"skip\""));
  EXPECT_THAT(ErrorOf(R"({"temprature": 1})"), HasSubstr("unknown key temprature: did you mean \"temperature\"?"));
  EXPECT_THAT(ErrorOf(R"({"top_p": "high"})"), HasSubstr("top_p is \"high\""));
}

TEST(GeneratorConfig, OfTheDemoIsValid) {
  EXPECT_EQ(ErrorOf(test::ReadFile(std::string(REPLAY_GOLDEN_FOLDER) + "/../../deploy/config/demo/generator.json")), "");
}

}  // namespace
}  // namespace replay
