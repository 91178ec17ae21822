#include "generator/task.h"

#include "generator/kinds.h"

namespace replay {

std::unique_ptr<Task> MakeTask(JsonConfig& config) {
  constexpr int64_t kMaxTokens = 1 << 20;
  const std::string kind = config.Text("kind", "opcode");
  if (kind == "opcode") {
    config.RefuseUnknown();
    return MakeOpcodeTask();
  }
  if (kind == "arithmetic") {
    const auto difficulty = static_cast<int>(config.Integer("difficulty", 2, 1, 4));
    config.RefuseUnknown();
    return MakeArithmeticTask(difficulty);
  }
  if (kind == "countdown") {
    const auto numbers_count = static_cast<int>(config.Integer("numbers", 4, 2, 6));
    config.RefuseUnknown();
    return MakeCountdownTask(numbers_count);
  }
  if (kind == "file") {
    FileTaskOptions options;
    options.path = config.Text("path", "");
    options.max_prompt_tokens =
        static_cast<uint32_t>(config.Integer("max_prompt_tokens", options.max_prompt_tokens, 1, kMaxTokens));
    options.max_answer_tokens =
        static_cast<uint32_t>(config.Integer("max_answer_tokens", options.max_answer_tokens, 1, kMaxTokens));
    config.RefuseUnknown();
    if (options.path.empty()) config.Fail("path", "must name a file of JSON Lines");
    try {
      return MakeFileTask(options);
    } catch (const ConfigError& error) {
      throw ConfigError(config.Path("path") + ": " + error.what());
    }
  }
  config.Fail("kind", "must be \"opcode\", \"arithmetic\", \"countdown\" or \"file\"");
}

}  // namespace replay
