#pragma once
// How the client's codec builds a request: sized first, then filled in place.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "client/codec.h"
#include "schema/names.h"
#include "schema/protocol.capnp.h"

namespace replay {

// The largest request without its texts and lists: root pointer, Request 3, Create or AlterBuffer 3, BufferOptions 20.
inline constexpr uint32_t kFixedWords = 48;

inline uint32_t TextWords(std::string_view text) { return static_cast<uint32_t>(text.size() / 8 + 2); }
inline capnp::Text::Reader AsText(const std::string& text) { return {text.c_str(), text.size()}; }

// `fill` writes the verb and its arguments into the request.
template <typename Fill>
Frame BuildRequest(const RequestHead& head, uint32_t variable_words, Fill fill, uint64_t payload_bytes = 0) {
  ControlBuilder builder(kFixedWords + variable_words);
  auto request = builder.Start<schema::Request>(kFixedWords + variable_words);
  request.setId(head.id);
  request.setTimeoutMs(head.timeout_ms);
  fill(request);
  return Frame::CopyOf(builder.Finish(payload_bytes));
}

inline void FillColumnSizes(std::span<const EncodedColumn> columns, capnp::List<schema::ColumnSize>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) {
    to[i].setFrame(columns[i].frame);
    to[i].setBytes(static_cast<uint32_t>(columns[i].column.size()));
  }
}

inline Error Refuse(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

// Position of `text` among `allowed`, or an Error that names field, value and the allowed values.
template <size_t N>
Result<uint16_t> ParseEnum(const char* field, std::string_view text, const std::array<std::string_view, N>& allowed) {
  const auto found = std::find(allowed.begin(), allowed.end(), text);
  if (found != allowed.end()) return static_cast<uint16_t>(found - allowed.begin());
  return Refuse(std::string(field) + " is \"" + std::string(text) + "\": it must be one of " + JoinNames(allowed, ", "));
}

}  // namespace replay
