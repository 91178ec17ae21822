#pragma once
// A column frame: heavy data of one trajectory under a name (routed experts, images, reference log-probs), beside its core frame.
//
//   header (64 bytes) | name, padded | shape int64[rank] | offsets int64[token_count + 1], only if ragged | data, padded | XXH3-64
//
//   byte  0 magic "RCOL"   4 type u8   5 alignment u8   6 rank u8   7 name bytes u8
//         8 XXH3-64 of the trajectory id   16 XXH3-64 of the name   24 token_count u32   28 zeros
//
//   row     any shape, token_count 0               one image:            u8 [3, 224, 224]
//   token   shape[0] = token_count                 log-probs:            f32 [L], routed experts: u8 [L, layers, 8]
//   ragged  shape[0] = offsets[token_count]        top candidates:       i32 [all of them], those of token i from offsets[i] on
//
// Little-endian, every part padded with zeros to 8 bytes, so that shape, offsets and data can be used where they lie. Equal columns
// have equal bytes. Nothing here throws.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "schema/message.h"

namespace replay {

// What a column frame says; the views point into it, or into what it is to be built of.
struct FrameColumn {
  enum class Type : uint8_t { kBool, kU8, kI8, kU16, kI16, kI32, kI64, kF16, kBf16, kF32, kF64, kCount };
  enum class Alignment : uint8_t { kRow, kToken, kRagged, kCount };
  uint64_t id_hash = 0;
  std::string_view name = {};
  Type type = Type::kU8;
  Alignment alignment = Alignment::kRow;
  uint32_t token_count = 0;  // 0 of a row
  std::span<const int64_t> shape = {};
  std::span<const int64_t> offsets = {};  // of a ragged one
  std::span<const uint8_t> data = {};
};

inline constexpr uint64_t kColumnHeaderBytes = 64;
inline constexpr uint64_t kMinColumnBytes = kColumnHeaderBytes + 8 /* name */ + 8 /* shape or data */ + kChecksumBytes;

uint32_t WidthOf(FrameColumn::Type type);                     // bytes of a value
std::string_view ToString(FrameColumn::Type type);            // "f32"
std::string_view ToString(FrameColumn::Alignment alignment);  // "token"
// Not HashId: the bytes mean the same in every process.
uint64_t ColumnIdHash(std::string_view trajectory_id);

// "" or what is wrong with a name: 1 to 64 of [A-Za-z0-9_.-].
std::string ValidateColumnName(std::string_view name);
// "" or what is wrong with the size of a column frame, before there is one.
std::string CheckColumnSize(uint64_t bytes);
// Sizes first, then builds in place and seals. "" or the rule that is broken, e.g. "data has 12 bytes, shape [4] of f32 has 16".
std::string BuildColumn(const FrameColumn& column, Frame* frame);
// Checks a frame of any bytes (8-aligned) whole, every size before it is used. "" or the error. `checksum_error`, if given, is set
// when it was the checksum that failed.
std::string ReadColumn(std::span<const uint8_t> frame, bool check_checksum, FrameColumn* column,
                       bool* checksum_error = nullptr);
// Of a frame that ReadColumn has passed.
std::string_view ColumnName(std::span<const uint8_t> frame);

// "" or why these are not the columns of the core frame, which ValidateTrajectory has passed and which has `token_count` tokens: its
// id, its length, each name listed in its column_names once, and none of those missing.
std::string CheckColumnsOf(std::span<const uint8_t> core, uint32_t token_count, std::span<const FrameColumn> columns);
// "" or the error: it carries the hash of another id.
std::string CheckColumnId(const FrameColumn& column, std::string_view trajectory_id);

}  // namespace replay
