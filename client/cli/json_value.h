#pragma once
// One line of JSON as a value, read strictly: a key that stands twice is refused, and numbers with a fraction keep their text.
// Through a double, a decimal could round twice on its way to a float.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client/cli/json_text.h"

namespace replay::cli {

struct Value {
  struct Real {
    std::string text;
  };
  using List = std::vector<Value>;
  using Object = std::vector<std::pair<std::string, Value>>;                                  // as it was written
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, Real, std::string, List, Object> is;  // int64_t: below zero only
};

// What an error shows of a value.
inline std::string Describe(const Value& value) {
  struct Visitor {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(uint64_t number) const { return std::to_string(number); }
    std::string operator()(const Value::Real& real) const { return real.text.substr(0, 40); }
    std::string operator()(const Value::List& list) const { return list.empty() ? "an empty list" : "a list"; }
    std::string operator()(const Value::Object&) const { return "an object"; }
    std::string operator()(const std::string& text) const {
      std::string quoted;
      AppendQuoted(text.size() > 40 ? text.substr(0, 40) + "..." : text, &quoted);
      return quoted;
    }
  };
  return std::visit(Visitor{}, value.is);
}

// Builds a Value from the events of nlohmann's parser, whose own tree would drop repeated keys and the text of numbers.
class ValueBuilder {
 public:
  Value root;
  std::string error;

  bool null() { return Add(Value{nullptr}); }
  bool boolean(bool flag) { return Add(Value{flag}); }
  bool number_integer(int64_t number) {  // "-0" comes this way, too.
    return number < 0 ? Add(Value{number}) : Add(Value{static_cast<uint64_t>(number)});
  }
  bool number_unsigned(uint64_t number) { return Add(Value{number}); }
  bool number_float(double, const std::string& text) { return Add(Value{Value::Real{text}}); }
  bool string(std::string& text) { return Add(Value{std::move(text)}); }
  bool binary(std::vector<uint8_t>&) { return false; }  // Not in JSON.
  bool start_object(size_t) { return Open(Value{Value::Object{}}); }
  bool start_array(size_t) { return Open(Value{Value::List{}}); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    auto& members = std::get<Value::Object>(open_.back()->is);
    for (const auto& [other, value] : members)
      if (other == name) return Refuse("key " + Describe(Value{name}) + " stands twice");
    if (members.size() == kMaxMembers) return Refuse("an object has more than " + std::to_string(kMaxMembers) + " keys");
    members.emplace_back(std::move(name), Value{nullptr});
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& exception) {
    // "[json.exception.parse_error.101] parse error at line 1, column 7: syntax error ...": a line has no lines.
    std::string what = exception.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    constexpr std::string_view kAt = "parse error at line 1, ";
    if (what.starts_with(kAt)) what.erase(0, kAt.size());
    return Refuse("not JSON: " + what);
  }

 private:
  static constexpr size_t kMaxDepth = 8;  // A trajectory needs 4. Values are destroyed recursively.
  // A trajectory has 28 keys, up to 64 tags and up to 64 columns. They are searched one by one.
  static constexpr size_t kMaxMembers = 256;

  bool Refuse(std::string what) {
    error = std::move(what);
    return false;
  }
  Value* Place(Value value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (auto* list = std::get_if<Value::List>(&open_.back()->is)) return &list->emplace_back(std::move(value));
    Value& member = std::get<Value::Object>(open_.back()->is).back().second;
    member = std::move(value);
    return &member;
  }
  bool Add(Value value) {
    Place(std::move(value));
    return true;
  }
  // The pointers stay valid: a list or an object grows only while nothing inside it is open.
  bool Open(Value value) {
    if (open_.size() == kMaxDepth)
      return Refuse("lists and objects are nested more than " + std::to_string(kMaxDepth) + " deep");
    open_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::vector<Value*> open_;
};

// "" or the error.
inline std::string ParseValue(std::string_view line, Value* value) {
  ValueBuilder builder;
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &builder)) return builder.error;
  *value = std::move(builder.root);
  return "";
}

}  // namespace replay::cli
