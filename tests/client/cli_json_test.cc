#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/json.h"
#include "client/cli/json_text.h"

namespace replay::cli {
namespace {

std::string Line(const Trajectory& trajectory) {
  std::string line;
  AppendJson(trajectory, &line);
  return line;
}

// The message, or "" when the line is a trajectory.
std::string ErrorOf(std::string_view line) {
  const auto trajectory = TrajectoryFromJson(line);
  return trajectory ? "" : trajectory.error().message;
}

// The error of a line that is right but for `member`.
std::string ErrorWith(const std::string& member) { return ErrorOf("{\"token_ids\":[1,2],\"loss_mask\":[0,1]," + member + "}"); }

Trajectory Parse(std::string_view line) {
  auto trajectory = TrajectoryFromJson(line);
  EXPECT_TRUE(trajectory) << (trajectory ? "" : trajectory.error().message) << "\n" << line.substr(0, 200);
  return trajectory ? *trajectory : Trajectory();
}

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

std::vector<uint32_t> Bits(const std::vector<float>& floats) {
  std::vector<uint32_t> bits;
  for (float value : floats) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

Trajectory Full() {
  Trajectory t;
  t.trajectory_id = "step12-\"7\"\\\n\t\x01 \xe2\x82\xac";
  t.run_id = "run";
  t.epoch = std::numeric_limits<uint64_t>::max();
  t.group_id = "g7";
  t.group_size = 4;
  t.index_in_group = 2;
  t.rollout_id = std::string("a\0b", 3);
  t.part_index = 1;
  t.part_count = 3;
  t.token_ids = {0, 1, 128000, std::numeric_limits<int32_t>::max()};
  t.prompt_length = 2;
  t.segments = {
      {0, 1, Role::kSystem, false}, {1, 2, Role::kUser, false}, {2, 3, Role::kAssistant, true}, {3, 4, Role::kTool, false}};
  t.loss_mask = {0, 0, 1, 1};
  t.behaviour_logprobs = {FromBits(0x7fc00000), FromBits(0xffc00001), -0.1f, -std::numeric_limits<float>::infinity()};
  t.version_segments = {{2, 3, std::numeric_limits<int64_t>::min()}, {3, 4, 12}};
  t.reward = -0.0f;
  t.named_rewards = {{"format", 1.0f}, {"answer", 1.0f / 3}};
  t.correct = Correctness::kYes;
  t.advantage = std::vector<float>{0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), FromBits(0x7fc00000)};
  t.status = FinishStatus::kFailedTimeout;
  t.source = "gsm8k";
  t.dataset_index = -1;
  t.temperature = 0.7f;
  t.created_at_unix_ns = 1'700'000'000'123'456'789;
  t.tags = {{"text", std::string("1")},
            {"integer", int64_t{-5}},
            {"real", 2.0},
            {"flag", false},
            {"nan", std::bit_cast<double>(uint64_t{0x7ff8000000000001})},
            {"tiny", 5e-324}};
  t.opaque = {0, 255, 16, 32};
  return t;
}

void ExpectSame(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.trajectory_id, b.trajectory_id);
  EXPECT_EQ(a.run_id, b.run_id);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.group_id, b.group_id);
  EXPECT_EQ(a.group_size, b.group_size);
  EXPECT_EQ(a.index_in_group, b.index_in_group);
  EXPECT_EQ(a.rollout_id, b.rollout_id);
  EXPECT_EQ(a.part_index, b.part_index);
  EXPECT_EQ(a.part_count, b.part_count);
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_EQ(a.prompt_length, b.prompt_length);
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.loss_mask, b.loss_mask);
  EXPECT_EQ(Bits(a.behaviour_logprobs), Bits(b.behaviour_logprobs));
  EXPECT_EQ(a.version_segments, b.version_segments);
  EXPECT_EQ(Bits({a.reward, a.temperature}), Bits({b.reward, b.temperature}));
  EXPECT_EQ(a.named_rewards, b.named_rewards);
  EXPECT_EQ(a.correct, b.correct);
  ASSERT_EQ(a.advantage.index(), b.advantage.index());
  const auto advantage_bits = [](const Trajectory& t) {
    const auto* per_token = std::get_if<std::vector<float>>(&t.advantage);
    const auto* scalar = std::get_if<float>(&t.advantage);
    return Bits(per_token ? *per_token : std::vector<float>{scalar ? *scalar : 0.0f});
  };
  EXPECT_EQ(advantage_bits(a), advantage_bits(b));
  EXPECT_EQ(a.status, b.status);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.dataset_index, b.dataset_index);
  EXPECT_EQ(a.created_at_unix_ns, b.created_at_unix_ns);
  EXPECT_EQ(a.opaque, b.opaque);
  ASSERT_EQ(a.tags.size(), b.tags.size());
  for (size_t i = 0; i < a.tags.size(); ++i) {
    EXPECT_EQ(a.tags[i].first, b.tags[i].first);
    ASSERT_EQ(a.tags[i].second.index(), b.tags[i].second.index()) << a.tags[i].first;
    if (const auto* real = std::get_if<double>(&a.tags[i].second)) {
      EXPECT_EQ(std::bit_cast<uint64_t>(*real), std::bit_cast<uint64_t>(std::get<double>(b.tags[i].second)));
    } else {
      EXPECT_EQ(a.tags[i].second, b.tags[i].second);
    }
  }
}

TEST(CliJson, ReadsBackEveryFieldToTheBit) {
  const Trajectory full = Full();
  ExpectSame(full, Parse(Line(full)));
  EXPECT_EQ(Line(full), Line(Parse(Line(full))));
}

TEST(CliJson, WritesOneLineWithEveryKey) {
  Trajectory t;
  t.trajectory_id = "a";
  t.token_ids = {1, 2, 3};
  t.loss_mask = {0, 1, 1};
  t.behaviour_logprobs = {FromBits(0x7fc00000), -0.1f, -2};
  t.segments = {{1, 3, Role::kAssistant, true}};
  t.version_segments = {{1, 3, 12}};
  t.advantage = 0.5f;
  EXPECT_EQ(R"({"trajectory_id":"a","run_id":"","epoch":0,"group_id":"","group_size":0,"index_in_group":0,"rollout_id":"",)"
            R"("part_index":0,"part_count":0,"token_ids":[1,2,3],"prompt_length":0,"segments":[[1,3,"assistant",true]],)"
            R"("loss_mask":[0,1,1],"behaviour_logprobs":[null,-0.1,-2.0],"version_segments":[[1,3,12]],"reward":0.0,)"
            R"("named_rewards":{},"correct":"unknown","advantage":0.5,"status":"completed","source":"","dataset_index":-1,)"
            R"("temperature":1.0,"priority":1.0,"created_at_unix_ns":0,"tags":{},"opaque_base64":""})",
            Line(t));
}

TEST(CliJson, LeavesWhatIsNotGivenAtItsDefault) {
  Trajectory expected;
  expected.token_ids = {5};
  expected.loss_mask = {1};
  ExpectSame(expected, Parse(R"( { "token_ids" : [5], "loss_mask" : [1] } )"));
}

TEST(CliJson, KeepsAnyFloatBits) {
  const uint64_t seed = 20260601;
  std::mt19937_64 random(seed);
  SCOPED_TRACE(seed);
  Trajectory t;
  for (int i = 0; i < 300'000; ++i) t.behaviour_logprobs.push_back(FromBits(static_cast<uint32_t>(random())));
  for (const uint32_t bits : {0u, 0x80000000u, 1u, 0x807fffffu, 0x00800000u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7f800001u,
                              0x7fc00000u, 0xffc00000u, 0x4b800001u, 0x3f800000u})
    t.behaviour_logprobs.push_back(FromBits(bits));
  t.token_ids.resize(t.behaviour_logprobs.size());
  t.loss_mask.resize(t.behaviour_logprobs.size());
  EXPECT_EQ(Bits(t.behaviour_logprobs), Bits(Parse(Line(t)).behaviour_logprobs));
}

TEST(CliJson, RoundsADecimalOnce) {
  // Half way between two floats in binary64, above it in decimal: through a double it would round down to even.
  const Trajectory t = Parse(R"({"token_ids":[1],"loss_mask":[0],"reward":1.00000005960464477539062500001})");
  EXPECT_EQ(0x3f800001u, std::bit_cast<uint32_t>(t.reward));
}

TEST(CliJson, KeepsNamesThatAnObjectCannotHold) {
  Trajectory t = Full();
  t.named_rewards = {{"same", 1.0f}, {"same", 2.0f}, {"\xff", 3.0f}};
  t.tags = {{"b", int64_t{1}}, {"b", std::string("\xfe")}};
  t.source = "\xc3\x28";
  const std::string line = Line(t);
  EXPECT_TRUE(IsUtf8(line));
  EXPECT_NE(std::string::npos, line.find(R"("tags":[["b",1],["b",{"base64":"/g=="}]])")) << line;
  ExpectSame(t, Parse(line));
}

TEST(CliJson, KeepsTheOrderOfNames) {
  const Trajectory t = Parse(R"({"token_ids":[1],"loss_mask":[0],"tags":{"b":1,"a":2.0,"c":"x","d":true}})");
  ASSERT_EQ(4u, t.tags.size());
  EXPECT_EQ("b", t.tags[0].first);
  EXPECT_EQ(TagValue(int64_t{1}), t.tags[0].second);
  EXPECT_EQ(TagValue(2.0), t.tags[1].second);
  EXPECT_EQ(TagValue(std::string("x")), t.tags[2].second);
  EXPECT_EQ(TagValue(true), t.tags[3].second);
}

TEST(CliJson, KeepsAnyBytes) {
  std::mt19937_64 random(7);
  Trajectory t = Full();
  for (size_t length = 0; length < 70; ++length) {
    t.opaque.resize(length);
    for (auto& byte : t.opaque) byte = static_cast<uint8_t>(random());
    EXPECT_EQ(t.opaque, Parse(Line(t)).opaque);
  }
}

TEST(CliJson, UnderstandsTheWaysToSayCorrect) {
  const auto correct = [](const std::string& value) {
    return Parse(R"({"token_ids":[1],"loss_mask":[0],"correct":)" + value + "}").correct;
  };
  EXPECT_EQ(Correctness::kYes, correct("true"));
  EXPECT_EQ(Correctness::kNo, correct("false"));
  EXPECT_EQ(Correctness::kUnknown, correct("null"));
  EXPECT_EQ(Correctness::kYes, correct("\"yes\""));
  EXPECT_EQ(Correctness::kUnknown, correct("\"unknown\""));
}

TEST(CliJson, RefusesUnknownAndRepeatedKeys) {
  EXPECT_EQ("unknown key \"rewrad\"", ErrorWith(R"("rewrad":1)"));
  EXPECT_EQ("key \"reward\" stands twice", ErrorWith(R"("reward":1,"reward":1)"));
  EXPECT_EQ("key \"a\" stands twice", ErrorWith(R"("tags":{"a":1,"a":2})"));
}

TEST(CliJson, NamesFieldValueAndRule) {
  EXPECT_EQ("reward is \"high\": it must be a number", ErrorWith(R"("reward":"high")"));
  EXPECT_EQ("reward is null: it must be a number", ErrorWith(R"("reward":null)"));
  EXPECT_EQ("reward is 1e40: it must be a number that a 32-bit float can hold", ErrorWith(R"("reward":1e40)"));
  EXPECT_EQ("group_size is -1: it must be an integer from 0 to 4294967295", ErrorWith(R"("group_size":-1)"));
  EXPECT_EQ("group_size is 4294967296: it must be an integer from 0 to 4294967295", ErrorWith(R"("group_size":4294967296)"));
  EXPECT_EQ("epoch is 1.0: it must be an integer from 0 to 18446744073709551615", ErrorWith(R"("epoch":1.0)"));
  EXPECT_EQ("trajectory_id is 7: it must be a string", ErrorWith(R"("trajectory_id":7)"));
  EXPECT_EQ("behaviour_logprobs[1] is true: it must be a number, or null for NaN",
            ErrorWith(R"("behaviour_logprobs":[0,true])"));
  EXPECT_EQ("segments[0] is a list: it must be [begin, end, role, trainable]", ErrorWith(R"("segments":[[0,1]])"));
  EXPECT_EQ("segments[1][2] is \"robot\": it must be one of \"system\", \"user\", \"assistant\", \"tool\"",
            ErrorWith(R"("segments":[[0,1,"user",false],[1,2,"robot",true]])"));
  EXPECT_EQ("version_segments is 3: it must be a list of [begin, end, version]", ErrorWith(R"("version_segments":3)"));
  EXPECT_EQ("correct is \"maybe\": it must be one of \"unknown\", \"no\", \"yes\"", ErrorWith(R"("correct":"maybe")"));
  EXPECT_EQ("tags.a is null: it must be a string, an integer, a real, true or false", ErrorWith(R"("tags":{"a":null})"));
  EXPECT_EQ("named_rewards.a is \"x\": it must be a number", ErrorWith(R"("named_rewards":{"a":"x"})"));
  EXPECT_EQ("opaque_base64 is \"AB\": it must be base64 (RFC 4648, padded)", ErrorWith(R"("opaque_base64":"AB")"));
  EXPECT_EQ("opaque_base64 is \"AB==\": it must be base64 (RFC 4648, padded)", ErrorWith(R"("opaque_base64":"AB==")"));
  EXPECT_EQ("token_ids[1] is -1: it must be an integer from 0 to 2147483647", ErrorOf(R"({"token_ids":[1,-1]})"));
  EXPECT_EQ("loss_mask[0] is 2: it must be an integer from 0 to 1", ErrorOf(R"({"token_ids":[1],"loss_mask":[2]})"));
  EXPECT_EQ("the line is a list: it must be an object", ErrorOf("[1]"));
}

TEST(CliJson, RefusesLengthsThatDisagree) {
  EXPECT_EQ("token_ids is missing or empty: a trajectory has at least one token", ErrorOf("{}"));
  EXPECT_EQ("loss_mask has 0 entries, token_ids has 1: they must agree", ErrorOf(R"({"token_ids":[1]})"));
  EXPECT_EQ("behaviour_logprobs has 1 entries, token_ids has 2: they must agree", ErrorWith(R"("behaviour_logprobs":[0])"));
  EXPECT_EQ("advantage has 3 entries, token_ids has 2: they must agree", ErrorWith(R"("advantage":[1,2,3])"));
}

TEST(CliJson, RefusesWhatIsNotJson) {
  EXPECT_TRUE(ErrorOf("").starts_with("not JSON: column 1: ")) << ErrorOf("");
  EXPECT_TRUE(ErrorOf(R"({"token_ids":[1,]})").starts_with("not JSON: column 17: ")) << ErrorOf(R"({"token_ids":[1,]})");
  EXPECT_TRUE(ErrorOf(R"({"reward":NaN})").starts_with("not JSON: ")) << ErrorOf(R"({"reward":NaN})");
  EXPECT_TRUE(ErrorOf("{\"source\":\"\xff\"}").starts_with("not JSON: "));
  EXPECT_TRUE(ErrorOf(R"({"token_ids":[1],"loss_mask":[0]} x)").starts_with("not JSON: "));
  EXPECT_EQ("lists and objects are nested more than 8 deep", ErrorOf(std::string(1'000'000, '[')));
}

TEST(CliJson, SurvivesDamagedLines) {
  const std::string line = Line(Full());
  std::mt19937_64 random(11);
  for (size_t length = 0; length < line.size(); ++length) EXPECT_NE("", ErrorOf(line.substr(0, length)));
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = line;
    for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    (void)ErrorOf(damaged);  // A value or an error; the sanitizers watch.
  }
}

TEST(CliJson, TellsUtf8FromOtherBytes) {
  EXPECT_TRUE(IsUtf8("a\xc2\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"));
  for (const char* text :
       {"\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xe2\x82", "\xff"})
    EXPECT_FALSE(IsUtf8(text)) << text;
}

}  // namespace
}  // namespace replay::cli
