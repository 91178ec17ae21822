#pragma once
// What tasks in text share: a token is a byte, and kEndOfText ends an answer.

#include <optional>
#include <string_view>
#include <utility>

#include "generator/task.h"

namespace replay {

class TextTask : public Task {
 public:
  int32_t vocab_size() const override { return kEndOfText + 1; }
  int32_t end_token() const override { return kEndOfText; }
  std::string Text(std::span<const int32_t> token_ids) const override {
    std::string text;
    for (const int32_t id : token_ids)
      if (IsByte(id)) text += static_cast<char>(id);
    return text;
  }

 protected:
  static constexpr int32_t kEndOfText = 256;

  static std::vector<int32_t> Tokens(std::string_view text) {
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  static std::vector<int32_t> AnswerTokens(std::string_view text) {
    std::vector<int32_t> tokens = Tokens(text);
    tokens.push_back(kEndOfText);
    return tokens;
  }
  static Prompt MakePrompt(const std::string& question, std::string answer) {
    return {.id = question, .token_ids = Tokens(question), .answer = std::move(answer)};
  }

  // The text of an answer of bytes and one kEndOfText, which is its last token; else nothing. An answer that was cut off is
  // none: "18" may have been on its way to "180".
  std::optional<std::string> Ended(std::span<const int32_t> answer) const {
    if (answer.empty() || answer.back() != kEndOfText) return std::nullopt;
    std::string text = Text(answer);
    return text.size() == answer.size() - 1 ? std::optional(std::move(text)) : std::nullopt;
  }

 private:
  static bool IsByte(int32_t id) { return id >= 0 && id < 256; }
};

}  // namespace replay
