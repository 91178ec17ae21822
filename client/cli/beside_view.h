#pragma once
// What stands beside a trajectory, for people and programs: its columns, and what Update wrote.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace replay::cli {

// {"ref_logprobs":{"type":"f32","alignment":"token","shape":[12],"bytes":48}}
inline Json JsonOf(std::span<const ColumnView> columns) {
  Json json = Json::object();
  for (const ColumnView& column : columns)
    json[std::string(column.name())] = {{"type", ToString(column.type())},
                                        {"alignment", ToString(column.alignment())},
                                        {"shape", std::vector<int64_t>(column.shape().begin(), column.shape().end())},
                                        {"bytes", column.bytes().size()}};
  return json;
}

// "f32 [12] by token, 48 B"
inline std::string TextOf(const ColumnView& column) {
  std::string shape;
  for (const int64_t size : column.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return std::string(ToString(column.type())) + " [" + shape + "] by " + std::string(ToString(column.alignment())) + ", " +
         Bytes(uint64_t{column.bytes().size()});
}

// Of those that were asked for: "ref_logprobs f32 [12] by token, 48 B; image -".
inline std::string TextOf(const TrajectoryView& view, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const ColumnView* column = view.column(name);
    text += (text.empty() ? "" : "; ") + name + " " + (column ? TextOf(*column) : "-");
  }
  return text;
}

inline Json JsonOf(const std::vector<std::pair<std::string, TagValue>>& tags) {
  Json json = Json::object();
  for (const auto& [name, value] : tags) std::visit([&, &key = name](const auto& is) { json[key] = is; }, value);
  return json;
}

}  // namespace replay::cli
