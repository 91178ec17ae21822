#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/column_json.h"
#include "client/cli/json.h"

namespace replay::cli {
namespace {

std::string Text(const std::vector<Column>& columns) {
  std::string text;
  AppendColumns(columns, &text);
  return text;
}

// The columns of a line that has nothing else to tell.
std::vector<Column> Parse(const std::string& columns) {
  const auto trajectory = TrajectoryFromJson("{\"token_ids\":[1,2],\"loss_mask\":[0,1],\"columns\":" + columns + "}");
  EXPECT_TRUE(trajectory) << (trajectory ? "" : trajectory.error().message);
  return trajectory ? trajectory->columns : std::vector<Column>();
}

std::string ErrorOf(std::string_view text) {
  const auto column = ColumnFromJson("x", text);
  return column ? "" : column.error().message;
}

template <typename T>
Column Of(std::vector<T> values) {
  return Column::Of<T>("x", {static_cast<int64_t>(values.size())}, values);
}

Column Bytes(ColumnType type, std::vector<uint8_t> bytes) {
  const int64_t width = type == ColumnType::kBool ? 1 : 2;
  return {.name = "x", .type = type, .shape = {static_cast<int64_t>(bytes.size()) / width}, .offsets = {}, .bytes = bytes};
}

template <typename T>
std::vector<T> Extremes() {
  return {std::numeric_limits<T>::lowest(), T(0), T(7), std::numeric_limits<T>::max()};
}

TEST(CliColumnJson, ReadsBackEveryTypeToTheBit) {
  const std::vector<Column> columns = {
      Bytes(ColumnType::kBool, {1, 0, 1}),
      Of(Extremes<uint8_t>()),
      Of(Extremes<int8_t>()),
      Of(Extremes<uint16_t>()),
      Of(Extremes<int16_t>()),
      Of(Extremes<int32_t>()),
      Of(Extremes<int64_t>()),
      Of(Extremes<float>()),
      Of(Extremes<double>()),
      Of<float>({-0.0f, 0.1f, 1e-45f, std::numeric_limits<float>::infinity(), std::bit_cast<float>(0x7fc00000),
                 std::bit_cast<float>(0xffc00001)}),
      Of<double>({-0.0, 0.1, 5e-324, -std::numeric_limits<double>::infinity(), std::bit_cast<double>(uint64_t{0x7ff8} << 48),
                  std::bit_cast<double>((uint64_t{0xfff8} << 48) + 1)}),
      Bytes(ColumnType::kF16, {0, 0x80, 1, 0x7c}),
      Bytes(ColumnType::kBf16, {0, 0, 0xc1, 0x7f}),
      {.name = "x",
       .type = ColumnType::kI32,
       .alignment = ColumnAlignment::kRagged,
       .shape = {0, 3},
       .offsets = {0, 0, 0},
       .bytes = {}},
      {.name = "x", .type = ColumnType::kU8, .alignment = ColumnAlignment::kRow, .shape = {}, .offsets = {}, .bytes = {9}},
  };
  for (const Column& column : columns) {
    const std::string text = Text({column});
    EXPECT_EQ((std::vector<Column>{column}), Parse(text)) << text;
  }
}

TEST(CliColumnJson, WritesNumbersRowByRowAndBytesOfHalfFloats) {
  const std::vector<float> logprobs = {std::bit_cast<float>(0x7fc00000), -0.1f, -2};
  const std::vector<int32_t> ids = {7, 9, 15};
  EXPECT_EQ(R"({"ref":{"type":"f32","alignment":"token","shape":[3],"values":[null,-0.1,-2.0]},)"
            R"("top":{"type":"i32","alignment":"ragged","shape":[3],"offsets":[0,0,2,3],"values":[7,9,15]},)"
            R"("h":{"type":"bf16","alignment":"row","shape":[2],"base64":"gD8AQA=="}})",
            Text({Column::Of<float>("ref", {3}, logprobs),
                  Column::Of<int32_t>("top", {3}, ids, ColumnAlignment::kRagged, {0, 0, 2, 3}),
                  {.name = "h",
                   .type = ColumnType::kBf16,
                   .alignment = ColumnAlignment::kRow,
                   .shape = {2},
                   .offsets = {},
                   .bytes = {0x80, 0x3f, 0, 0x40}}}));
  EXPECT_EQ("{}", Text({}));
}

TEST(CliColumnJson, OnlyColumnsThatAreThereHaveAKeyInTheLine) {
  Trajectory trajectory;
  trajectory.token_ids = {1, 2};
  trajectory.loss_mask = {0, 1};
  std::string line;
  AppendJson(trajectory, &line);
  EXPECT_EQ(std::string::npos, line.find("columns"));
  trajectory.columns = {Of<int8_t>({1, -1})};
  line.clear();
  AppendJson(trajectory, &line);
  EXPECT_TRUE(line.ends_with(R"("columns":{"x":{"type":"i8","alignment":"token","shape":[2],"values":[1,-1]}}})")) << line;
  EXPECT_EQ(trajectory.columns, TrajectoryFromJson(line)->columns);
}

TEST(CliColumnJson, AlignmentAndShapeMayBeLeftOut) {
  EXPECT_EQ(Of<float>({1, -0.5f}), *ColumnFromJson("x", "{\"type\":\"f32\",\n  \"values\":[1,-0.5]}\n"));
  EXPECT_EQ(Of<int32_t>({1, 2}), *ColumnFromJson("x", R"({"type":"i32","base64":"AQAAAAIAAAA="})"));
}

TEST(CliColumnJson, AWrongColumnIsNamedWithItsValueAndTheRule) {
  for (const auto& [text, error] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"[1]", "the column is a list: it must be an object"},
           {R"({"values":[1]})", "type is missing: a column says what its values are, e.g. \"f32\""},
           {R"({"type":"f31","values":[1]})",
            "type is \"f31\": it must be one of \"bool\", \"u8\", \"i8\", \"u16\", \"i16\", \"i32\", \"i64\", \"f16\", "
            "\"bf16\", "
            "\"f32\", \"f64\""},
           {R"({"type":"f32"})", "values and base64 are missing: a column has one of them"},
           {R"({"type":"f32","values":[1],"base64":""})", "values and base64 are both there: a column has one of them"},
           {R"({"type":"f32","vals":[1]})", "unknown key \"vals\" of a column"},
           {R"({"type":"f32","values":[1,"high"]})", "values[1] is \"high\": it must be a number, or null for NaN"},
           {R"({"type":"f32","values":[1e39]})", "values[0] is 1e39: it must be a number that a 32-bit float can hold"},
           {R"({"type":"f32","values":[[1]]})", "values[0] is a list: it must be a number, or null for NaN"},
           {R"({"type":"u8","values":[1,256]})", "values[1] is 256: it must be an integer from 0 to 255"},
           {R"({"type":"i8","values":[0.5]})", "values[0] is 0.5: it must be an integer from -128 to 127"},
           {R"({"type":"bool","values":[1]})", "values[0] is 1: it must be true or false"},
           {R"({"type":"f16","values":[1]})", "values cannot be of type \"f16\": it must come as base64, its bytes"},
           {R"({"type":"u8","base64":"A"})", "base64 is \"A\": it must be base64 (RFC 4648, padded)"},
           {R"({"type":"u8","alignment":"rows","values":[1]})",
            "alignment is \"rows\": it must be one of \"row\", \"token\", \"ragged\""},
           {R"({"type":"u8","shape":[-1],"values":[1]})",
            "shape[0] is -1: it must be an integer from 0 to 9223372036854775807"},
           {R"({"type":"u8","shape":2,"values":[1]})", "shape is 2: it must be a list of integers"},
           {R"({"type":"u8","type":"u8"})", "key \"type\" stands twice"}})
    EXPECT_EQ(error, ErrorOf(text)) << text;
  EXPECT_TRUE(ErrorOf("{").starts_with("not JSON: ")) << ErrorOf("{");
  const auto of_line = TrajectoryFromJson(R"({"token_ids":[1],"loss_mask":[1],"columns":{"ref":{"type":"u8","values":[-1]}}})");
  ASSERT_FALSE(of_line);
  EXPECT_EQ("columns.ref.values[0] is -1: it must be an integer from 0 to 255", of_line.error().message);
  EXPECT_EQ("columns is an empty list: it must be an object of columns by name",
            TrajectoryFromJson(R"({"token_ids":[1],"loss_mask":[1],"columns":[]})").error().message);
}

}  // namespace
}  // namespace replay::cli
