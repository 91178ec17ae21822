#pragma once
// How the client's codec builds a request: sized first, then filled in place.

#include <string>
#include <string_view>
#include <utility>

#include "client/codec.h"
#include "schema/protocol.capnp.h"

namespace replay {

// The largest request without its texts and lists: root pointer, Request 3, Create or AlterBuffer 3, BufferOptions 20.
inline constexpr uint32_t kFixedWords = 48;

inline uint32_t TextWords(std::string_view text) { return static_cast<uint32_t>(text.size() / 8 + 2); }
inline capnp::Text::Reader AsText(const std::string& text) { return {text.c_str(), text.size()}; }

// `fill` writes the verb and its arguments into the request.
template <typename Fill>
Frame BuildRequest(const RequestHead& head, uint32_t variable_words, Fill fill) {
  ControlBuilder builder(kFixedWords + variable_words);
  auto request = builder.Start<schema::Request>(kFixedWords + variable_words);
  request.setId(head.id);
  request.setTimeoutMs(head.timeout_ms);
  fill(request);
  return Frame::CopyOf(builder.Finish(0));
}

inline Error Refuse(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

}  // namespace replay
