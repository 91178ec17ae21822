#pragma once
// What the files that build replies and rows share; included by .cc files only.

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "schema/protocol.capnp.h"
#include "server/codec.h"

namespace replay::server {

// Words of the fixed parts of a reply, with room: root pointer and Reply struct, and the largest fixed result.
inline constexpr uint32_t kReplyWords = 64;

inline uint32_t TextWords(std::string_view text) { return static_cast<uint32_t>(text.size() / 8 + 1); }

inline void Send(ControlBuilder& builder, uint64_t payload_bytes, OutputQueue& output) {
  output.AddBytes(builder.Finish(payload_bytes));
}

// Text::Reader wants a NUL behind the last byte, which a string_view need not have: copied in place instead.
template <typename Init>
void SetText(std::string_view text, Init&& init) {
  capnp::Text::Builder builder = init(static_cast<uint32_t>(text.size()));
  std::memcpy(builder.begin(), text.data(), text.size());
}

// The sizes of the column frames that follow the core frames, a word each and one for the list; their bytes in all.
template <typename Init>
uint64_t FillColumns(std::span<const ColumnOf> columns, Init&& init) {
  auto sizes = init(static_cast<uint32_t>(columns.size()));
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < columns.size(); ++i) {
    sizes[i].setFrame(columns[i].frame);
    sizes[i].setBytes(static_cast<uint32_t>(columns[i].column.size()));
    bytes += columns[i].column.size();
  }
  return bytes;
}

}  // namespace replay::server
