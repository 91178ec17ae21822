#include "server/filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/limits.h"

namespace replay::server {
namespace {

using testing::HasSubstr;

Filter Parsed(const std::string& text) {
  Filter filter;
  EXPECT_EQ("", Filter::Parse(text, &filter)) << text;
  return filter;
}

std::string ErrorOf(const std::string& text) {
  Filter filter;
  return Filter::Parse(text, &filter);
}

FilterValues Values() {
  return {.outcome = Outcome::kCorrect,
          .zero_spread = false,
          .reward = 0.5,
          .priority = 2,
          .draws = 3,
          .tokens = 100,
          .source = "gsm8k"};
}

TEST(Filter, HoldsIfAllItsTermsHold) {
  for (const char* holds : {"correct = yes", "correct != no", "reward >= 0.5", "reward<=.5", "reward < 1e0", "priority = 2",
                            "draws > 2", "draws != 4", "tokens < 101", "source = gsm8k", "source != math", "zero_spread = no",
                            "  correct=yes ,reward>0,  draws<4  "})
    EXPECT_TRUE(Parsed(holds).Holds(Values())) << holds;
  for (const char* fails : {"correct = no", "correct != yes", "correct = unknown", "reward > 0.5", "reward < 0.5",
                            "priority != 2", "draws <= 2", "tokens = 99", "source = gsm", "source = gsm8k2", "source != gsm8k",
                            "zero_spread = yes", "correct = yes, reward > 0.5"})
    EXPECT_FALSE(Parsed(fails).Holds(Values())) << fails;
}

TEST(Filter, ComparesTheSuccessOfAPromptExactlyAndNeverWhileNothingIsScored) {
  FilterValues values = Values();
  for (const char* fails : {"success = 0", "success != 0.5", "success >= 0", "attempts > 0"})
    EXPECT_FALSE(Parsed(fails).Holds(values)) << fails;
  EXPECT_TRUE(Parsed("attempts = 0").Holds(values));
  values.attempts = 10;
  values.successes = 3;
  for (const char* holds : {"success = 0.3", "success >= 0.3, success <= 0.3", "attempts = 10", "success != 0.31"})
    EXPECT_TRUE(Parsed(holds).Holds(values)) << holds;
  for (const char* fails : {"success > 0.3", "success < .3", "attempts < 10", "attempts >= 11"})
    EXPECT_FALSE(Parsed(fails).Holds(values)) << fails;
  EXPECT_TRUE(Parsed("success > 0.5").LooksAtPrompts() && Parsed("draws < 3, attempts < 4").LooksAtPrompts());
  EXPECT_FALSE(Parsed("correct = yes").LooksAtPrompts());
}

TEST(Filter, ComparesTagsByTheirKindAndNeverHoldsWithoutOne) {
  const auto tag_of = [](std::string_view name) -> FrameTag {
    if (name == "level") return {FrameTag::Kind::kNumber, 3, ""};
    if (name == "hard") return {FrameTag::Kind::kFlag, 1, ""};
    if (name == "topic") return {FrameTag::Kind::kText, 0, "number theory"};
    return {};
  };
  for (const char* holds : {"tag.level = 3", "tag.level >= 2.5", "tag.level != three", "tag.hard = yes", "tag.hard != no",
                            "tag.topic = number theory", "tag.topic != 3", "tag.level > 2, tag.hard = yes, draws = 77"})
    EXPECT_TRUE(Parsed(holds).HoldsForTags(tag_of)) << holds;
  for (const char* fails :
       {"tag.level = 4", "tag.level < 3", "tag.level = three", "tag.hard = no", "tag.hard > 0", "tag.topic = number",
        "tag.topic > 1", "tag.other = 1", "tag.other != 1", "tag.hard = yes, tag.level > 3"})
    EXPECT_FALSE(Parsed(fails).HoldsForTags(tag_of)) << fails;
  EXPECT_TRUE(Parsed("tag.level = 4").Holds(Values())) << "tags are not looked at there";
}

TEST(Filter, ComparesWhetherThereIsAColumn) {
  const auto has = [](std::string_view name) { return name == "ref.logprobs"; };
  for (const char* holds : {"column.ref.logprobs = yes", "column.ref.logprobs != no", "column.other = no, tokens > 1"})
    EXPECT_TRUE(Parsed(holds).HoldsForColumns(has)) << holds;
  for (const char* fails : {"column.ref.logprobs = no", "column.other = yes", "column.ref.logprobs = yes, column.other = yes"})
    EXPECT_FALSE(Parsed(fails).HoldsForColumns(has)) << fails;
  EXPECT_TRUE(Parsed("column.other = yes").Holds(Values())) << "columns are not looked at there";
  EXPECT_THAT(ErrorOf("column.x = 1"), HasSubstr("column.x is compared by = or != with yes or no"));
  EXPECT_THAT(ErrorOf("column.x > no"), HasSubstr("column.x is compared by = or != with yes or no"));
  EXPECT_THAT(ErrorOf("column.a b = yes"), HasSubstr("only A-Z a-z 0-9 _ . - are allowed"));
  EXPECT_THAT(ErrorOf("column. = yes"), HasSubstr("it must have 1 to 64"));
}

TEST(Filter, SaysWhatItLooksAt) {
  const Filter filter = Parsed("draws < 4, tag.level = 3");
  EXPECT_TRUE(filter.LooksAt(FilterTerm::Field::kDraws));
  EXPECT_TRUE(filter.LooksAt(FilterTerm::Field::kTag));
  EXPECT_FALSE(filter.LooksAt(FilterTerm::Field::kReward));
}

TEST(Filter, RefusesWhatIsNotATermWithTheTermAndTheRule) {
  EXPECT_EQ("is empty: it needs at least one term", ErrorOf(""));
  EXPECT_EQ("has an empty term", ErrorOf("correct = yes,"));
  EXPECT_EQ("has an empty term", ErrorOf(" , draws < 2"));
  EXPECT_EQ("\"correct\" has no operator: one of = != < <= > >=", ErrorOf("correct"));
  EXPECT_EQ("\"draws ! 3\" has no operator: one of = != < <= > >=", ErrorOf("draws ! 3"));
  EXPECT_THAT(ErrorOf("colour = red"), HasSubstr("\"colour = red\" does not begin with a field: one of correct, reward"));
  EXPECT_THAT(ErrorOf("tag. = 1"), HasSubstr("does not begin with a field"));
  EXPECT_EQ("\"draws <\" has no value", ErrorOf("draws <"));
  EXPECT_EQ("\"correct = maybe\": correct is compared by = or != with yes, no or unknown", ErrorOf("correct = maybe"));
  EXPECT_EQ("\"correct < yes\": correct is compared by = or != with yes, no or unknown", ErrorOf("correct < yes"));
  EXPECT_EQ("\"zero_spread = 1\": zero_spread is compared by = or != with yes or no", ErrorOf("zero_spread = 1"));
  EXPECT_EQ("\"source > a\": source is compared by = or !=", ErrorOf("source > a"));
  for (const char* value : {"high", "nan", "inf", "1x", "0.5 0.6"})
    EXPECT_THAT(ErrorOf("reward > " + std::string(value)), HasSubstr("compares with a value that is no finite number"));
  EXPECT_THAT(ErrorOf("tag.level > high"), HasSubstr("compares with a value that is no number"));
  EXPECT_EQ("has 513 bytes: at most 512 are allowed", ErrorOf("source = " + std::string(kMaxFilterBytes - 8, 'x')));
}

}  // namespace
}  // namespace replay::server
