#pragma once
// For tests of tasks: a task from its configuration, and answers in bytes.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generator/task.h"

namespace replay::testing {

using Tokens = std::vector<int32_t>;

constexpr int32_t kEnd = 256;  // of the tasks in text

inline std::unique_ptr<Task> Make(const std::string& json) {
  JsonConfig config = JsonConfig::Parse("{\"task\": " + json + "}").Object("task");
  return MakeTask(config);
}

inline Tokens Bytes(std::string_view text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}
inline Tokens Answer(std::string_view text) {
  Tokens tokens = Bytes(text);
  tokens.push_back(kEnd);
  return tokens;
}

}  // namespace replay::testing
