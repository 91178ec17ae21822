#pragma once
// What reading a trajectory and reading a column share: a Value as a string, a number, a list, or the Violation that says why not.
// `field` is what the sentence calls the value: "tags.level".

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client/cli/json_text.h"
#include "client/cli/json_value.h"

namespace replay::cli {

// Leaves a deep check with its sentence; never leaves the files of json.h and column_json.h.
struct Violation {
  std::string what;
};

[[noreturn]] inline void Fail(const std::string& field, const Value& value, std::string_view rule) {
  throw Violation{field + " is " + Describe(value) + ": it must be " + std::string(rule)};
}

inline std::vector<uint8_t> ReadBytes(const std::string& field, const Value& value) {
  const auto* text = std::get_if<std::string>(&value.is);
  auto bytes = text ? DecodeBase64(*text) : std::nullopt;
  if (!bytes) Fail(field, value, "base64 (RFC 4648, padded)");
  return std::move(*bytes);
}

inline std::string ReadText(const std::string& field, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value.is)) return *text;
  if (const auto* object = std::get_if<Value::Object>(&value.is);
      object && object->size() == 1 && (*object)[0].first == "base64") {
    const std::vector<uint8_t> bytes = ReadBytes(field + ".base64", (*object)[0].second);
    return {bytes.begin(), bytes.end()};
  }
  Fail(field, value, "a string");
}

template <typename Integer>
Integer ReadInteger(const std::string& field, const Value& value, Integer least = std::numeric_limits<Integer>::min(),
                    Integer most = std::numeric_limits<Integer>::max()) {
  if (const auto* number = std::get_if<uint64_t>(&value.is)) {
    if (std::cmp_less_equal(*number, most) && std::cmp_greater_equal(*number, least)) return static_cast<Integer>(*number);
  } else if (const auto* negative = std::get_if<int64_t>(&value.is)) {
    if (std::cmp_greater_equal(*negative, least) && std::cmp_less_equal(*negative, most))
      return static_cast<Integer>(*negative);
  }
  Fail(field, value, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

template <typename Real = float>
Real ReadFloat(const std::string& field, const Value& value, bool null_is_nan = false) {
  Real number = 0;
  BitsOf<Real> bits = 0;
  if (const auto* real = std::get_if<Value::Real>(&value.is)) {
    if (ParseReal(real->text, &number)) return number;
    Fail(field, value, "a number that a " + std::to_string(8 * sizeof(Real)) + "-bit float can hold");
  }
  if (const auto* integer = std::get_if<uint64_t>(&value.is)) return static_cast<Real>(*integer);
  if (const auto* negative = std::get_if<int64_t>(&value.is)) return static_cast<Real>(*negative);
  if (null_is_nan && std::holds_alternative<std::nullptr_t>(value.is)) return std::bit_cast<Real>(kCanonicalNan<Real>);
  if (const auto* text = std::get_if<std::string>(&value.is)) {
    if (*text == "Infinity") return std::numeric_limits<Real>::infinity();
    if (*text == "-Infinity") return -std::numeric_limits<Real>::infinity();
    if (ParseBits(*text, &bits)) return std::bit_cast<Real>(bits);
  }
  Fail(field, value, null_is_nan ? "a number, or null for NaN" : "a number");
}

inline const Value::List& ReadList(const std::string& field, const Value& value, std::string_view rule) {
  if (const auto* list = std::get_if<Value::List>(&value.is)) return *list;
  Fail(field, value, rule);
}

// read_entry(field, value), where field is only made for the entry that is wrong: lists are long.
template <typename Entry, typename ReadEntry>
std::vector<Entry> ReadEntries(const std::string& field, const Value& value, std::string_view rule, ReadEntry read_entry) {
  const Value::List& list = ReadList(field, value, rule);
  std::vector<Entry> entries;
  entries.reserve(list.size());
  for (const Value& entry : list) {
    try {
      entries.push_back(read_entry(std::string(), entry));
    } catch (const Violation& violation) {
      throw Violation{field + "[" + std::to_string(entries.size()) + "]" + violation.what};
    }
  }
  return entries;
}

template <size_t kCount>
size_t ReadName(const std::string& field, const Value& value, const std::array<std::string_view, kCount>& names) {
  const auto* text = std::get_if<std::string>(&value.is);
  const auto found = text ? std::find(names.begin(), names.end(), *text) : names.end();
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  std::string rule = "one of";
  for (std::string_view name : names) rule += (rule.size() > 6 ? ", \"" : " \"") + std::string(name) + "\"";
  Fail(field, value, rule);
}

}  // namespace replay::cli
