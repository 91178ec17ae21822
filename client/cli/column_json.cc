#include "client/cli/column_json.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "client/cli/json_reader.h"
#include "client/cli/json_text.h"
#include "schema/column.h"

namespace replay::cli {
namespace {

template <typename Enum, Enum kLast>
std::array<std::string_view, static_cast<size_t>(kLast) + 1> NamesUpTo() {
  std::array<std::string_view, static_cast<size_t>(kLast) + 1> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = ToString(static_cast<Enum>(i));
  return names;
}

// Calls `visit` with a value of the C++ type. False: C++ has none of this type.
template <typename Visit>
bool VisitType(ColumnType type, Visit visit) {
  switch (type) {
    case ColumnType::kBool:
      return visit(bool()), true;
    case ColumnType::kU8:
      return visit(uint8_t()), true;
    case ColumnType::kI8:
      return visit(int8_t()), true;
    case ColumnType::kU16:
      return visit(uint16_t()), true;
    case ColumnType::kI16:
      return visit(int16_t()), true;
    case ColumnType::kI32:
      return visit(int32_t()), true;
    case ColumnType::kI64:
      return visit(int64_t()), true;
    case ColumnType::kF32:
      return visit(float()), true;
    case ColumnType::kF64:
      return visit(double()), true;
    case ColumnType::kF16:
    case ColumnType::kBf16:
      return false;
  }
  return false;
}

template <typename T>
void AppendValue(const uint8_t* bytes, std::string* out) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  if constexpr (std::is_floating_point_v<T>)
    AppendFloat(value, /*null_is_nan=*/true, out);
  else
    AppendInteger(int64_t{value}, out);
}
template <>
void AppendValue<bool>(const uint8_t* bytes, std::string* out) {
  out->append(*bytes ? "true" : "false");
}

void AppendColumn(const Column& column, std::string* out) {
  const auto append_integer = [out](int64_t value) { AppendInteger(value, out); };
  out->append("{\"type\":\"").append(ToString(column.type));
  out->append("\",\"alignment\":\"").append(ToString(column.alignment));
  out->append("\",\"shape\":");
  AppendList(column.shape, append_integer, out);
  if (column.alignment == ColumnAlignment::kRagged) {
    out->append(",\"offsets\":");
    AppendList(column.offsets, append_integer, out);
  }
  const auto append_values = [&](auto of_type) {
    using T = decltype(of_type);
    out->append(",\"values\":[");
    for (size_t at = 0; at + sizeof(T) <= column.bytes.size(); at += sizeof(T)) {
      if (at > 0) *out += ',';
      AppendValue<T>(column.bytes.data() + at, out);
    }
    out->append("]}");
  };
  if (!VisitType(column.type, append_values)) out->append(",\"base64\":\"").append(EncodeBase64(column.bytes)).append("\"}");
}

template <typename T>
T ReadValue(const std::string& field, const Value& value) {
  if constexpr (std::is_floating_point_v<T>)
    return ReadFloat<T>(field, value, /*null_is_nan=*/true);
  else
    return ReadInteger<T>(field, value);
}

uint8_t ReadFlag(const std::string& field, const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value.is)) return *flag;
  Fail(field, value, "true or false");
}

std::vector<uint8_t> ReadValues(const std::string& field, const Value& value, ColumnType type) {
  std::vector<uint8_t> bytes;
  const auto read = [&](auto of_type) {
    using T = decltype(of_type);
    if constexpr (std::is_same_v<T, bool>) {
      bytes = ReadEntries<uint8_t>(field, value, "a list of true and false", ReadFlag);
    } else {
      const std::vector<T> values = ReadEntries<T>(field, value, "a list of numbers", ReadValue<T>);
      bytes.resize(values.size() * sizeof(T));
      if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    }
  };
  if (!VisitType(type, read))
    throw Violation{field + " cannot be of type \"" + std::string(ToString(type)) + "\": it must come as base64, its bytes"};
  return bytes;
}

std::vector<int64_t> ReadSizes(const std::string& field, const Value& value) {
  return ReadEntries<int64_t>(field, value, "a list of integers",
                              [](const std::string& at, const Value& entry) { return ReadInteger<int64_t>(at, entry, 0); });
}

// `field`: "columns.ref_logprobs", or empty where a column stands by itself.
Column ReadOne(const std::string& field, const std::string& name, const Value& value) {
  static const auto kTypes = NamesUpTo<ColumnType, ColumnType::kF64>();
  static const auto kAlignments = NamesUpTo<ColumnAlignment, ColumnAlignment::kRagged>();
  const auto* object = std::get_if<Value::Object>(&value.is);
  if (!object) Fail(field.empty() ? "the column" : field, value, "an object");
  const auto at = [&field](const std::string& key) { return field.empty() ? key : field + "." + key; };
  const auto find = [object](std::string_view key) {
    const auto found = std::find_if(object->begin(), object->end(), [key](const auto& member) { return member.first == key; });
    return found == object->end() ? nullptr : &found->second;
  };
  constexpr std::array<std::string_view, 6> kKeys = {"type", "alignment", "shape", "offsets", "values", "base64"};
  for (const auto& [key, member] : *object)
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      throw Violation{"unknown key " + Describe(Value{at(key)}) + " of a column"};

  Column column{.name = name, .shape = {}, .offsets = {}, .bytes = {}};
  const Value* const type = find("type");
  if (!type) throw Violation{at("type") + " is missing: a column says what its values are, e.g. \"f32\""};
  column.type = static_cast<ColumnType>(ReadName(at("type"), *type, kTypes));
  if (const Value* alignment = find("alignment"))
    column.alignment = static_cast<ColumnAlignment>(ReadName(at("alignment"), *alignment, kAlignments));
  const Value *const values = find("values"), *const base64 = find("base64");
  if ((values == nullptr) == (base64 == nullptr))
    throw Violation{at("values") + " and base64 are " + (values ? "both there" : "missing") + ": a column has one of them"};
  column.bytes = values ? ReadValues(at("values"), *values, column.type) : ReadBytes(at("base64"), *base64);
  if (const Value* shape = find("shape"))
    column.shape = ReadSizes(at("shape"), *shape);
  else
    column.shape = {static_cast<int64_t>(column.bytes.size()) / WidthOf(static_cast<FrameColumn::Type>(column.type))};
  if (const Value* offsets = find("offsets")) column.offsets = ReadSizes(at("offsets"), *offsets);
  return column;
}

}  // namespace

void AppendColumns(const std::vector<Column>& columns, std::string* out) {
  const auto append = [out](const Column& column) {
    AppendText(column.name, out);
    *out += ':';
    AppendColumn(column, out);
  };
  AppendList(columns, append, out, "{}");
}

std::vector<Column> ReadColumns(const std::string& field, const Value& value) {
  const auto* object = std::get_if<Value::Object>(&value.is);
  if (!object) Fail(field, value, "an object of columns by name");
  std::vector<Column> columns;
  for (const auto& [name, member] : *object) columns.push_back(ReadOne(field + "." + name, name, member));
  return columns;
}

Result<Column> ColumnFromJson(const std::string& name, std::string_view text) {
  Value value;
  if (std::string error = ParseValue(text, &value); !error.empty())
    return Error{.code = ErrorCode::kInvalidArgument, .message = std::move(error)};
  try {
    return ReadOne("", name, value);
  } catch (const Violation& violation) {
    return Error{.code = ErrorCode::kInvalidArgument, .message = violation.what};
  }
}

}  // namespace replay::cli
