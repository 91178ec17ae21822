#include "schema/json_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace replay {
namespace {

// The message of the ConfigError that `act` throws, or "" if it throws none.
std::string ErrorOf(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string ParseError(const std::string& text) {
  return ErrorOf([&] { JsonConfig::Parse(text); });
}

TEST(JsonConfig, ReadsEachKindAndItsFallback) {
  JsonConfig config = JsonConfig::Parse(R"({
    // Comments are allowed: it is a file that people write.
    "text": "a", "flag": true, "integer": -3, "number": 2.5, "whole": 2, "decimal": 0.29, "decimal_text": "0.290",
    "size": "64MiB", "size_number": 4096, "time": "200ms", "object": {"inner": 1}, "list": [{"inner": 1}, {"inner": 2}]
  })");
  EXPECT_EQ("a", config.Text("text", "b"));
  EXPECT_EQ("b", config.Text("absent_text", "b"));
  EXPECT_TRUE(config.Flag("flag", false));
  EXPECT_TRUE(config.Flag("absent_flag", true));
  EXPECT_EQ(-3, config.Integer("integer", 0));
  EXPECT_EQ(7, config.Integer("absent_integer", 7));
  EXPECT_EQ(2.5, config.Number("number", 0, -10, 10));
  EXPECT_EQ(2.0, config.Number("whole", 0, -10, 10));
  EXPECT_EQ("0.29", config.Decimal("decimal", "0"));
  EXPECT_EQ("0.290", config.Decimal("decimal_text", "0"));
  EXPECT_EQ("0", config.Decimal("absent_decimal", "0"));
  EXPECT_EQ(64u << 20, config.SizeBytes("size", 0));
  EXPECT_EQ(4096u, config.SizeBytes("size_number", 0));
  EXPECT_EQ(5u, config.SizeBytes("absent_size", 5));
  EXPECT_EQ(200, config.DurationMs("time", 0));
  EXPECT_EQ(1, config.Object("object").Integer("inner", 0));
  EXPECT_EQ(9, config.Object("absent_object").Integer("inner", 9));
  std::vector<JsonConfig> list = config.Objects("list");
  ASSERT_EQ(2u, list.size());
  EXPECT_EQ(2, list[1].Integer("inner", 0));
  EXPECT_TRUE(config.Objects("absent_list").empty());
  EXPECT_TRUE(config.Has("text"));
  EXPECT_FALSE(config.Has("nothing"));
  EXPECT_EQ("", ErrorOf([&] { config.RefuseUnknown(); }));
}

TEST(JsonConfig, AnUnknownKeyIsRefusedWithTheNearestKnownOne) {
  const auto refuse = [](const std::string& text) {
    return ErrorOf([&] {
      JsonConfig config = JsonConfig::Parse(text);
      JsonConfig limits = config.Object("limits");
      limits.SizeBytes("memory_bytes", 0);
      limits.Integer("connections", 0);
      limits.RefuseUnknown();
      config.RefuseUnknown();
    });
  };
  EXPECT_EQ("", refuse(R"({"limits": {"memory_bytes": 1}})"));
  EXPECT_EQ("unknown key limits.memory_byte: did you mean \"memory_bytes\"?", refuse(R"({"limits": {"memory_byte": 1}})"));
  EXPECT_EQ("unknown key limits.conections: did you mean \"connections\"?", refuse(R"({"limits": {"conections": 1}})"));
  EXPECT_EQ("unknown key limits.something_else", refuse(R"({"limits": {"something_else": 1}})"));
  EXPECT_EQ("unknown key limit: did you mean \"limits\"?", refuse(R"({"limit": {}})"));
  EXPECT_EQ("unknown key Limits: did you mean \"limits\"?", refuse(R"({"Limits": {}})"));
}

TEST(JsonConfig, AKeyThatStandsTwiceIsRefusedWhereverItIs) {
  EXPECT_EQ("key \"a\" stands twice in one object", ParseError(R"({"a": 1, "a": 1})"));
  EXPECT_EQ("key \"a\" stands twice in one object", ParseError(R"({"a": 1, "b": {"x": [{"y": 1}]}, "a": 2})"));
  EXPECT_EQ("key \"y\" stands twice in one object", ParseError(R"({"list": [{"y": 1}, {"y": 1, "z": {"y": 2}, "y": 3}]})"));
  EXPECT_EQ("key \"a\" stands twice in one object", ParseError(R"({"a": 1, "\u0061": 2})"));  // the same key, written otherwise
  EXPECT_EQ("", ParseError(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]})"));
}

TEST(JsonConfig, WhatIsNoJsonObjectIsRefused) {
  for (const char* text : {"", "{", "{\"a\": }", "{\"a\": 1,}", "{a: 1}", "{'a': 1}", "{\"a\": 01}", "{\"a\": NaN}",
                           "{\"a\": 1} x", "{\"a\": \"\xff\"}", "{\"a\": 1e999}", "nul", "{\"a\": \"\n\"}"}) {
    EXPECT_TRUE(ParseError(text).starts_with("not valid JSON: ")) << text << ": " << ParseError(text);
  }
  for (const char* text : {"[]", "1", "\"a\"", "null", "true"}) {
    EXPECT_EQ("the configuration is not a JSON object", ParseError(text)) << text;
  }
}

TEST(JsonConfig, TheWrongTypeOrRangeIsNamedWithPathValueAndRule) {
  const auto with = [](const std::string& value, const std::function<void(JsonConfig&)>& read) {
    JsonConfig config = JsonConfig::Parse("{\"server\": {\"v\": " + value + "}}").Object("server");
    return ErrorOf([&] { read(config); });
  };
  const auto text = [](JsonConfig& c) { c.Text("v", ""); };
  const auto flag = [](JsonConfig& c) { c.Flag("v", false); };
  const auto integer = [](JsonConfig& c) { c.Integer("v", 0, 1, 64); };
  const auto any_integer = [](JsonConfig& c) { c.Integer("v", 0); };
  const auto number = [](JsonConfig& c) { c.Number("v", 0, 0, 1.5); };
  const auto decimal = [](JsonConfig& c) { c.Decimal("v", ""); };
  const auto size = [](JsonConfig& c) { c.SizeBytes("v", 0); };
  const auto time = [](JsonConfig& c) { c.DurationMs("v", 0); };
  const auto object = [](JsonConfig& c) { c.Object("v"); };
  const auto list = [](JsonConfig& c) { c.Objects("v"); };

  EXPECT_EQ("server.v is 7: must be a string", with("7", text));
  EXPECT_EQ("server.v is null: must be a string", with("null", text));
  EXPECT_EQ("server.v is \"true\": must be true or false", with("\"true\"", flag));
  EXPECT_EQ("server.v is 1: must be true or false", with("1", flag));
  EXPECT_EQ("server.v is 0: must be from 1 to 64", with("0", integer));
  EXPECT_EQ("server.v is 65: must be from 1 to 64", with("65", integer));
  EXPECT_EQ("", with("64", integer));
  EXPECT_EQ("server.v is 1.0: must be a whole number", with("1.0", integer));
  EXPECT_EQ("server.v is \"1\": must be a whole number", with("\"1\"", integer));
  EXPECT_EQ("server.v is true: must be a whole number", with("true", integer));
  EXPECT_EQ("", with("9223372036854775807", any_integer));
  EXPECT_EQ("server.v is 9223372036854775808: must be a whole number", with("9223372036854775808", any_integer));
  EXPECT_EQ("", with("-9223372036854775808", any_integer));
  EXPECT_EQ("server.v is 1.6: must be from 0.0 to 1.5", with("1.6", number));
  EXPECT_EQ("server.v is -1: must be from 0.0 to 1.5", with("-1", number));
  EXPECT_EQ("server.v is \"1\": must be a number", with("\"1\"", number));
  EXPECT_EQ("server.v is [1]: must be a number", with("[1]", decimal));
  EXPECT_EQ("server.v is -1: must be a size such as 4096 or \"64MiB\"", with("-1", size));
  EXPECT_EQ("server.v is 1.5: must be a size such as 4096 or \"64MiB\"", with("1.5", size));
  EXPECT_EQ("server.v is 30: must be a time such as \"30s\" or \"200ms\"", with("30", time));
  EXPECT_EQ("server.v is []: must be an object", with("[]", object));
  EXPECT_EQ("server.v is {}: must be a list", with("{}", list));
  EXPECT_EQ("server.v[1] is 3: must be an object", with("[{}, 3]", list));
}

TEST(JsonConfig, PathsGoThroughObjectsAndLists) {
  JsonConfig config = JsonConfig::Parse(R"({"buffers": [{}, {"pacing": {"min_size": "x"}}]})");
  std::vector<JsonConfig> buffers = config.Objects("buffers");
  JsonConfig pacing = buffers[1].Object("pacing");
  EXPECT_EQ("buffers[1].pacing.min_size is \"x\": must be a whole number", ErrorOf([&] { pacing.Integer("min_size", 0); }));
  EXPECT_EQ("buffers[1].pacing.name is absent: must be given", ErrorOf([&] { pacing.Fail("name", "must be given"); }));
}

TEST(ParseSize, TakesBinaryAndDecimalUnits) {
  EXPECT_EQ(0u, ParseSize("p", "0"));
  EXPECT_EQ(4096u, ParseSize("p", "4096"));
  EXPECT_EQ(1u, ParseSize("p", "1B"));
  EXPECT_EQ(1024u, ParseSize("p", "1KiB"));
  EXPECT_EQ(1'500'000'000u, ParseSize("p", "1.5GB"));
  EXPECT_EQ(3ull << 39, ParseSize("p", "1.5TiB"));
  EXPECT_EQ(512u, ParseSize("p", "0.5KiB"));
}

TEST(ParseSize, RefusesEverythingElseWithItsRule) {
  for (const char* text : {"", ".", "..", ".MiB", "1.2.3", "MiB", "-1", "+1", " 1", "1 MiB", "1mib", "1M", "1e3", "0x10", "inf",
                           "nan", "9999999999TiB", "1234567890123456789", "1\n"}) {
    EXPECT_EQ("p is \"" + std::string(text) + "\": a size is a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB",
              ErrorOf([&] { ParseSize("p", text); }));
  }
}

TEST(ParseSize, IsExactUpToPetabytes) {
  EXPECT_EQ(9'007'199'254'740'993u, ParseSize("p", "9007199254740993"));  // 2^53 + 1
  EXPECT_EQ(123'456'789'012'345'678u, ParseSize("p", "123456789012345678"));
}

TEST(ParseDuration, TakesWholeNumbersWithAUnit) {
  EXPECT_EQ(0, ParseDurationMs("p", "0ms"));
  EXPECT_EQ(200, ParseDurationMs("p", "200ms"));
  EXPECT_EQ(30'000, ParseDurationMs("p", "30s"));
  EXPECT_EQ(300'000, ParseDurationMs("p", "5m"));
  EXPECT_EQ(3'600'000, ParseDurationMs("p", "1h"));
  EXPECT_EQ(999'999'999ll * 3'600'000, ParseDurationMs("p", "999999999h"));
  for (const char* text : {"", "s", "30", "1.5s", "-1s", "1d", "1 s", "1S", "1000000000h", "1sm"}) {
    EXPECT_EQ("p is \"" + std::string(text) + "\": a time is a whole number with ms, s, m or h",
              ErrorOf([&] { ParseDurationMs("p", text); }));
  }
}

TEST(JsonConfig, AnyBytesGiveAConfigurationOrAConfigError) {
  const std::string real = R"({"server": {"listen": ["unix:/run/r.sock", "127.0.0.1:7070"], "io_threads": 2},
      "limits": {"memory": "64MiB"}, "buffers": [{"name": "rollouts", "capacity_items": 1000, "delta": 0.29, "wait": "30s"}]})";
  const uint64_t seed = 3;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 50'000; ++i) {
    std::string text = real;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), 1 + random() % 30));
      }
      if (text.empty()) text = "{";
    }
    try {
      JsonConfig config = JsonConfig::Parse(text);
      config.Object("server").Integer("io_threads", 1);
      config.Object("limits").SizeBytes("memory", 0);
      for (JsonConfig& buffer : config.Objects("buffers")) {
        buffer.Text("name", "");
        buffer.Decimal("delta", "0");
        buffer.DurationMs("wait", 0);
      }
      config.RefuseUnknown();
    } catch (const ConfigError&) {  // Any other exception fails the test.
    }
  }
}

TEST(JsonConfig, DeepNestingIsAnErrorNotAStackOverflow) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ("nested more than 32 deep", ParseError("{\"a\": " + deep + "}"));
  const auto objects = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "{\"a\":";
    return text + "1" + std::string(static_cast<size_t>(depth), '}');
  };
  EXPECT_EQ("nested more than 32 deep", ParseError(objects(200'000)));
  EXPECT_EQ("", ParseError(objects(32)));
}

}  // namespace
}  // namespace replay
