#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace replay::server {
namespace {

using testing::HasSubstr;

// The error that a configuration text is refused with; "" if it is accepted.
std::string Refusal(const std::string& text) {
  try {
    ParseConfig(text);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Config, HasSafeDefaults) {
  const ServerConfig config = ParseConfig("{}");
  EXPECT_EQ(std::vector<std::string>{"127.0.0.1:7070"}, config.listen);
  EXPECT_EQ("127.0.0.1:7071", config.metrics_listen);
  EXPECT_TRUE(config.verify_checksums);
  EXPECT_FALSE(config.insecure_ok);
  EXPECT_GT(config.memory_limit_bytes, 0u);
  EXPECT_LE(config.in_flight_bytes, config.memory_limit_bytes / 4);
}

TEST(Config, ReadsEveryKeyOfABuffer) {
  const ServerConfig config = ParseConfig(R"({"memory": {"limit": "1GiB"}, "buffers": [{
    "name": "a", "policy": "positive_bias", "delta": 0.29, "capacity_items": 100, "capacity_bytes": "64MiB", "selector": "uniform_distinct",
    "max_draws": 4, "correct_threshold": 0.5, "replay_ratio": 2, "tolerance": 100, "min_size": 10, "max_draws_per_sample": 64,
    "max_insert": 8, "pace_draws": true, "pace_inserts": false, "seed": 7, "priority_exponent": 2, "staleness_decay": 30,
    "max_staleness": 9, "max_age": "5m", "evict_staleness": 12,
    "views": [{"name": "v", "filter": "correct = yes"},
              {"name": "w", "filter": "draws < 2", "selector": "prioritized", "priority_exponent": 0.5, "staleness_decay": 8}]}]})");
  ASSERT_EQ(1u, config.buffers.size());
  const BufferOptions& options = config.buffers[0].second;
  EXPECT_EQ("a", config.buffers[0].first);
  EXPECT_EQ(RetentionKind::kPositiveBias, options.retention);
  EXPECT_EQ(SelectorKind::kUniformDistinct, options.selector);
  EXPECT_EQ(29u, options.positive_capacity()) << "0.29 of 100 is 29, not 28";
  EXPECT_EQ(64u << 20, options.capacity_bytes);
  EXPECT_EQ(4u, options.max_draws);
  EXPECT_EQ(0.5, options.correct_threshold);
  EXPECT_FALSE(options.pace_inserts);
  EXPECT_EQ(7u, options.seed);
  EXPECT_EQ(2, options.priority_exponent);
  EXPECT_EQ(30, options.staleness_decay);
  EXPECT_EQ(9, options.max_staleness);
  EXPECT_EQ(300'000u, options.max_age_ms);
  EXPECT_EQ(12, options.evict_staleness);
  const std::vector<ViewOptions> views = {{.name = "v", .filter = "correct = yes"},
                                          {.name = "w",
                                           .filter = "draws < 2",
                                           .selector = SelectorKind::kPrioritized,
                                           .priority_exponent = 0.5,
                                           .staleness_decay = 8}};
  EXPECT_EQ(views, options.views);
}

// Each by itself, with what it needs beside it. One that is added must be added here.
TEST(Config, ReadsEveryOptionThatABufferHas) {
  struct Row {
    std::string_view name;
    std::string keys;
    bool (*holds)(const BufferOptions& options);
  };
  const std::string paced = R"("replay_ratio": 2, "max_draws_per_sample": 64, "max_insert": 8)";
  const std::vector<Row> rows = {
      {"capacity_items", R"("capacity_items": 7)", [](auto& o) { return o.capacity_items == 7; }},
      {"capacity_bytes", R"("capacity_bytes": "1MiB")", [](auto& o) { return o.capacity_bytes == 1 << 20; }},
      {"retention", R"("retention": "best")", [](auto& o) { return o.retention == RetentionKind::kBest; }},
      {"delta", R"("retention": "best", "delta": 0.25)", [](auto& o) { return o.delta.ToString() == "0.25"; }},
      {"selector", R"("selector": "lifo")", [](auto& o) { return o.selector == SelectorKind::kLifo; }},
      {"priority_exponent", R"("priority_exponent": 0.5)", [](auto& o) { return o.priority_exponent == 0.5; }},
      {"staleness_decay", R"("staleness_decay": 3)", [](auto& o) { return o.staleness_decay == 3; }},
      {"max_staleness", R"("max_staleness": 0)", [](auto& o) { return o.max_staleness == 0; }},
      {"max_draws", R"("max_draws": 4)", [](auto& o) { return o.max_draws == 4; }},
      {"max_age", R"("max_age": "5m")", [](auto& o) { return o.max_age_ms == 300'000; }},
      {"evict_staleness", R"("evict_staleness": 0)", [](auto& o) { return o.evict_staleness == 0; }},
      {"correct_threshold", R"("correct_threshold": 0)", [](auto& o) { return o.correct_threshold == 0; }},
      {"views", R"("views": [{"name": "v", "filter": "draws < 2"}])", [](auto& o) { return o.views.size() == 1; }},
      {"replay_ratio", paced, [](auto& o) { return o.replay_ratio == 2; }},
      {"tolerance", paced + R"(, "tolerance": 99)", [](auto& o) { return o.tolerance == 99; }},
      {"min_size", R"("min_size": 5)", [](auto& o) { return o.min_size == 5; }},
      {"max_draws_per_sample", R"("max_draws_per_sample": 6)", [](auto& o) { return o.max_draws_per_sample == 6; }},
      {"max_insert", R"("max_insert": 6)", [](auto& o) { return o.max_insert == 6; }},
      {"pace_draws", R"("pace_draws": false)", [](auto& o) { return !o.pace_draws; }},
      {"pace_inserts", R"("pace_inserts": false)", [](auto& o) { return !o.pace_inserts; }},
      {"seed", R"("seed": 0)", [](auto& o) { return o.seed == 0; }},
      {"unit", R"("unit": "group")", [](auto& o) { return o.unit == Unit::kGroup; }},
      {"closed", R"("closed": true)", [](auto& o) { return o.closed; }},
      {"lease", R"("selector": "fifo", "max_draws": 1, "lease": "2s")", [](auto& o) { return o.lease_ms == 2'000; }},
      {"zero_spread", R"("zero_spread": "refuse")", [](auto& o) { return o.zero_spread == ZeroSpread::kRefuse; }},
      {"parts", R"("parts": 4)", [](auto& o) { return o.parts == 4; }},
      {"prompt_history", R"("prompt_history": 9)", [](auto& o) { return o.prompt_history == 9; }},
      {"level", R"("level": "process")", [](auto& o) { return o.level == AcknowledgementLevel::kProcess; }}};
  std::vector<std::string_view> names;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    names.push_back(row.name);
    EXPECT_FALSE(row.holds({})) << "it must be another value than the default";
    const std::string text = R"({"buffers": [{"name": "a", )" + row.keys + "}]}";
    ASSERT_EQ("", Refusal(text));
    EXPECT_TRUE(row.holds(ParseConfig(text).buffers.at(0).second));
  }
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(OptionNames()));
}

TEST(Config, RefusesAViewThatCannotBeWithItsNumberAndTheRule) {
  const auto refusal = [](const std::string& view) {
    return Refusal(R"({"buffers": [{"name": "a", "views": [)" + view + "]}]}");
  };
  EXPECT_THAT(refusal(R"({"name": "v", "filter": "colour = red"})"),
              HasSubstr("views[0].filter \"colour = red\" does not begin"));
  EXPECT_THAT(refusal(R"({"name": "v", "filter": "draws < 2", "selector": "best"})"), HasSubstr("selector"));
  EXPECT_THAT(refusal(R"({"name": "v", "filter": "draws < 2", "colour": 1})"),
              HasSubstr("unknown key buffers[0].views[0].colour"));
}

TEST(Config, RefusesWhatItDoesNotKnowWithTheNearestName) {
  EXPECT_EQ("unknown key server.lissten: did you mean \"listen\"?", Refusal(R"({"server": {"lissten": []}})"));
  EXPECT_THAT(Refusal(R"({"bufers": []})"), HasSubstr("did you mean \"buffers\"?"));
  EXPECT_THAT(Refusal(R"({"buffers": [{"name": "a", "capacity_item": 3}]})"), HasSubstr("buffers[0].capacity_item"));
}

TEST(Config, BoundsWaitsFromBelow) {
  EXPECT_EQ(90'000, ParseConfig(R"({"limits": {"max_wait": "90s"}})").max_wait_ms);
  EXPECT_EQ("limits.max_wait is 10ms: must be at least 1000ms", Refusal(R"({"limits": {"max_wait": "10ms"}})"));
  EXPECT_EQ("server.handshake_timeout is 0ms: must be at least 100ms", Refusal(R"({"server": {"handshake_timeout": "0s"}})"));
  EXPECT_EQ("", Refusal(R"({"server": {"drain_timeout": "0s"}})"));
}

TEST(Config, RefusesADuplicateKey) {
  EXPECT_THAT(Refusal(R"({"log": {"level": "info", "level": "debug"}})"), HasSubstr("\"level\" stands twice"));
}

TEST(Config, RefusesToListenBeyondLoopbackUnlessToldTo) {
  EXPECT_THAT(Refusal(R"({"server": {"listen": ["0.0.0.0:7070"]}})"), HasSubstr("insecure_ok"));
  EXPECT_THAT(Refusal(R"({"server": {"metrics_listen": "10.0.0.1:7071"}})"), HasSubstr("insecure_ok"));
  EXPECT_EQ("", Refusal(R"({"server": {"listen": ["0.0.0.0:7070"], "insecure_ok": true}})"));
  EXPECT_EQ("", Refusal(R"({"server": {"listen": ["unix:/tmp/replayd.sock", "[::1]:7070"]}})"));
}

TEST(Config, RefusesBuffersThatDoNotFitIntoMemory) {
  EXPECT_THAT(Refusal(R"({"memory": {"limit": "100MiB"}, "limits": {"in_flight_bytes": "20MiB"},
                          "buffers": [{"name": "a", "capacity_bytes": "50MiB"}, {"name": "b", "capacity_bytes": "40MiB"}]})"),
              HasSubstr("add up to 94371840"));
}

TEST(Config, RefusesBuffersOfOneNameOrABadName) {
  EXPECT_THAT(Refusal(R"({"buffers": [{"name": "a"}, {"name": "a"}]})"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(Refusal(R"({"buffers": [{"name": "a b"}]})"), HasSubstr("A-Z a-z 0-9 _ . -"));
  EXPECT_THAT(Refusal(R"({"buffers": [{}]})"), HasSubstr("buffers[0].name is absent"));
}

TEST(Config, RefusesPacingThatCouldWaitForEver) {
  EXPECT_THAT(
      Refusal(
          R"({"buffers": [{"name": "a", "replay_ratio": 2, "tolerance": 20, "max_draws_per_sample": 64, "max_insert": 8}]})"),
      HasSubstr("64 + 8 * 2 = 80"));
}

TEST(Config, NamesPathAndRuleOfAValueOfTheWrongKind) {
  EXPECT_THAT(Refusal(R"({"server": {"io_threads": 0}})"), HasSubstr("server.io_threads is 0: must be from 1 to 256"));
  EXPECT_THAT(Refusal(R"({"server": {"send_timeout": 30}})"), HasSubstr("must be a time such as"));
  EXPECT_THAT(Refusal(R"({"memory": {"limit": "lots"}})"), HasSubstr("memory.limit is \"lots\""));
  EXPECT_THAT(Refusal(R"({"log": {"level": "loud"}})"), HasSubstr("log.level"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{"), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace replay::server
