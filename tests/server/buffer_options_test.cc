#include "server/buffer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "schema/limits.h"
#include "schema/names.h"

namespace replay::server {
namespace {

std::string Parsed(std::string_view text) {
  Decimal decimal;
  const std::string error = ParseDecimal(text, &decimal);
  return error.empty() ? decimal.ToString() : "error: " + error;
}

BufferOptions Paced() {
  BufferOptions options;
  options.replay_ratio = 2;
  options.max_draws_per_sample = 64;
  options.max_insert = 8;
  return options;
}

std::string Checked(BufferOptions options) { return CheckOptions(&options); }

TEST(Decimal, IsKeptAsWritten) {
  EXPECT_EQ("0", Parsed("0"));
  EXPECT_EQ("0", Parsed("0.000"));
  EXPECT_EQ("0.25", Parsed("0.25"));
  EXPECT_EQ("0.5", Parsed(".50"));
  EXPECT_EQ("0.25", Parsed("2.5e-1"));
  EXPECT_EQ("0.25", Parsed("25E-2"));
  EXPECT_EQ("0.05", Parsed("0.005e+1"));
  EXPECT_EQ("0.123456789012345678", Parsed("0.123456789012345678"));
}

TEST(Decimal, RefusesWhatIsNotInItsRange) {
  EXPECT_EQ("error: \"1\" is not in [0, 1)", Parsed("1"));
  EXPECT_EQ("error: \"0.5e3\" is not in [0, 1)", Parsed("0.5e3"));
  EXPECT_EQ("error: \"1e-19\" has more than 18 digits", Parsed("1e-19"));
  EXPECT_EQ("error: \"0.1234567890123456789\" has more than 18 digits", Parsed("0.1234567890123456789"));
  for (const char* text : {"", ".", "-0.5", "0.5x", "0..5", "e-1", "0.5e", "0.5e-", "0.5e1000", "nan", " 0.5"})
    EXPECT_EQ("error: \"" + std::string(text) + "\" is not a decimal number such as 0.25", Parsed(text));
}

TEST(Decimal, FloorsExactlyAlsoForTheLargestBuffer) {
  Decimal decimal;
  ASSERT_EQ("", ParseDecimal("0.29", &decimal));
  EXPECT_EQ(29u, decimal.FloorOf(100));
  ASSERT_EQ("", ParseDecimal("0.999999999999999999", &decimal));
  EXPECT_EQ(kMaxItemsPerBuffer - 1, decimal.FloorOf(kMaxItemsPerBuffer));
}

TEST(BufferOptions, DefaultsAreValid) { EXPECT_EQ("", Checked({})); }

TEST(BufferOptions, NameTheBrokenRule) {
  BufferOptions options;
  options.capacity_items = 0;
  EXPECT_EQ("capacity_items is 0: it must be 1 to 1073741824", Checked(options));
  options = {};
  options.capacity_items = 10;
  options.retention = RetentionKind::kPositiveBias;
  options.delta = {25, 100};
  options.min_size = 9;
  EXPECT_EQ("min_size is 9: it must not exceed the 8 fresh items of capacity_items 10 with delta 0.25", Checked(options));
  options.min_size = 0;
  EXPECT_EQ("min_size is 0: it must be at least 1", Checked(options));
  options = {};
  options.correct_threshold = std::numeric_limits<double>::infinity();
  EXPECT_EQ("correct_threshold is inf: it must be finite", Checked(options));
  options = {};
  options.replay_ratio = -1;
  EXPECT_EQ("replay_ratio is -1: it must be finite and not negative", Checked(options));
  options = {};
  options.max_draws_per_sample = kMaxSampleCount + 1;
  EXPECT_EQ("max_draws_per_sample is 65537: at most 65536 are allowed", Checked(options));
  options = Paced();
  options.max_insert = 0;
  EXPECT_EQ("max_insert is missing: with replay_ratio the most trajectories of an Insert must be declared", Checked(options));
}

TEST(BufferOptions, RefuseAToleranceThatCouldDeadlockWithTheSum) {
  BufferOptions options = Paced();
  options.tolerance = 20;
  EXPECT_EQ(
      "pacing: max_draws_per_sample + max_insert * replay_ratio = 64 + 8 * 2 = 80 exceeds 2 * tolerance = 40: draws and "
      "inserts "
      "could wait for each other for ever",
      Checked(options));
  options.pace_inserts = false;
  EXPECT_EQ("", Checked(options));
  options.pace_inserts = true;
  options.tolerance = 40;
  EXPECT_EQ("", Checked(options));
}

TEST(BufferOptions, ChooseTheLeastToleranceAndChooseItAnewWhenAltered) {
  BufferOptions options = Paced();
  ASSERT_EQ("", CheckOptions(&options));
  EXPECT_EQ(40, options.tolerance);
  options.max_insert = 18;
  ASSERT_EQ("", CheckOptions(&options));
  EXPECT_EQ(50, options.tolerance);
  BufferOptions given;
  given.tolerance = 45;
  ASSERT_TRUE(CopyOption("tolerance", given, &options));
  EXPECT_NE("", CheckOptions(&options));
}

TEST(BufferOptions, DistinctSelectorsUnderPacingNeedTheirBatchInMinSize) {
  BufferOptions options = Paced();
  options.selector = SelectorKind::kUniformDistinct;
  EXPECT_EQ(
      "pacing: selector uniform_distinct needs as many different items as a Sample draws, so min_size = 1 must be at least "
      "max_draws_per_sample = 64: draws and inserts could wait for each other for ever",
      Checked(options));
  options.min_size = 64;
  EXPECT_EQ("", Checked(options));
}

TEST(BufferOptions, ViewsThatCannotBeAreRefusedByTheirNumber) {
  const auto error_of = [](std::vector<ViewOptions> views) {
    BufferOptions options;
    options.views = std::move(views);
    return Checked(options);
  };
  const ViewOptions good{.name = "v", .filter = "draws < 2"};
  EXPECT_EQ("", error_of({good}));
  EXPECT_THAT(error_of({good, {.name = "a b", .filter = "draws < 2"}}), testing::HasSubstr("views[1].name: "));
  EXPECT_EQ("views[1].name is \"v\", as that of views[0]", error_of({good, good}));
  EXPECT_EQ("views[0].filter is empty: it needs at least one term", error_of({{.name = "v", .filter = ""}}));
  EXPECT_EQ(
      "views[0].filter \"size > 3\" does not begin with a field: one of correct, reward, priority, draws, tokens, source, "
      "zero_spread, success, attempts, tag.NAME, column.NAME",
      error_of({{.name = "v", .filter = "size > 3"}}));
  EXPECT_THAT(error_of({{.name = "v", .filter = "draws < 2", .selector = SelectorKind::kRecency}}),
              testing::HasSubstr("views[0].staleness_decay is missing"));
  std::vector<ViewOptions> many;
  for (int i = 0; i < 17; ++i) many.push_back({.name = "v" + std::to_string(i), .filter = "draws < 2"});
  EXPECT_EQ("views has 17 entries: at most 16 are allowed", error_of(many));
}

TEST(BufferOptions, EveryOptionCanBeCopiedByItsName) {
  BufferOptions source;
  source.capacity_items = 7;
  source.capacity_bytes = 8;
  source.retention = RetentionKind::kPositiveBias;
  source.delta = {1, 10};
  source.selector = SelectorKind::kLifo;
  source.max_draws = 9;
  source.correct_threshold = 0.5;
  source.replay_ratio = 1.5;
  source.tolerance = 10;
  source.min_size = 2;
  source.max_draws_per_sample = 11;
  source.max_insert = 12;
  source.pace_draws = source.pace_inserts = false;
  source.seed = 13;
  source.priority_exponent = 2;
  source.staleness_decay = 3;
  source.max_staleness = 14;
  source.max_age_ms = 15'000;
  source.evict_staleness = 16;
  source.views = {{.name = "v", .filter = "correct = yes"}};
  source.unit = Unit::kGroup;
  source.closed = true;
  source.lease_ms = 17'000;
  source.zero_spread = ZeroSpread::kRefuse;
  source.parts = 18;
  source.prompt_history = 19;
  source.level = AcknowledgementLevel::kMemory;
  EXPECT_EQ(28u, OptionNames().size());
  BufferOptions target;
  for (const std::string_view name : OptionNames()) EXPECT_TRUE(CopyOption(name, source, &target)) << name;
  EXPECT_EQ(source.views, target.views);
  EXPECT_EQ(Unit::kGroup, target.unit);
  EXPECT_TRUE(target.closed);
  EXPECT_EQ(17'000u, target.lease_ms);
  EXPECT_EQ(ZeroSpread::kRefuse, target.zero_spread);
  EXPECT_EQ(18u, target.parts);
  EXPECT_EQ(19u, target.prompt_history);
  EXPECT_EQ(AcknowledgementLevel::kMemory, target.level);
  EXPECT_EQ(7u, target.capacity_items);
  EXPECT_EQ(8u, target.capacity_bytes);
  EXPECT_EQ(RetentionKind::kPositiveBias, target.retention);
  EXPECT_EQ("0.1", target.delta.ToString());
  EXPECT_EQ(SelectorKind::kLifo, target.selector);
  EXPECT_EQ(2, target.priority_exponent);
  EXPECT_EQ(3, target.staleness_decay);
  EXPECT_EQ(14, target.max_staleness);
  EXPECT_EQ(15'000u, target.max_age_ms);
  EXPECT_EQ(16, target.evict_staleness);
  EXPECT_EQ(9u, target.max_draws);
  EXPECT_EQ(0.5, target.correct_threshold);
  EXPECT_EQ(1.5, target.replay_ratio);
  EXPECT_EQ(10, target.tolerance);
  EXPECT_EQ(2u, target.min_size);
  EXPECT_EQ(11u, target.max_draws_per_sample);
  EXPECT_EQ(12u, target.max_insert);
  EXPECT_FALSE(target.pace_draws);
  EXPECT_FALSE(target.pace_inserts);
  EXPECT_EQ(13u, target.seed);
  EXPECT_FALSE(CopyOption("capacity", source, &target));
}

TEST(BufferOptions, PoliciesArePresets) {
  BufferOptions options;
  options.selector = SelectorKind::kFifo;
  EXPECT_TRUE(ApplyPolicy("positive_bias", &options));
  EXPECT_EQ("positive_bias uniform", std::string(ToString(options.retention)) + " " + std::string(ToString(options.selector)));
  EXPECT_TRUE(ApplyPolicy("uniform", &options));
  EXPECT_EQ("fifo uniform", std::string(ToString(options.retention)) + " " + std::string(ToString(options.selector)));
  EXPECT_FALSE(ApplyPolicy("best", &options));
}

// Of every kind that the protocol has: one that is added cannot be forgotten here.
TEST(BufferOptions, NamesOfKindsGoBothWays) {
  const auto go_both_ways = [](const auto& names, auto parse) {
    for (size_t i = 0; i < names.size(); ++i) {
      const auto kind = parse(names[i]);
      ASSERT_TRUE(kind) << names[i];
      EXPECT_EQ(i, static_cast<size_t>(*kind)) << names[i];
      EXPECT_EQ(names[i], ToString(*kind));
    }
    EXPECT_FALSE(parse("random"));
    EXPECT_FALSE(parse(""));
  };
  go_both_ways(kSelectorNames, ParseSelector);
  go_both_ways(kRetentionNames, ParseRetention);
  go_both_ways(kUnitNames, ParseUnit);
  go_both_ways(kZeroSpreadNames, ParseZeroSpread);
  go_both_ways(kLevelNames, ParseLevel);
}

}  // namespace
}  // namespace replay::server
