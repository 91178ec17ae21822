#pragma once
// Column frames for tests, valid unless the test says otherwise.
//
//   Frame frame = MakeColumn({.id = "t", .name = "ref_logprobs", .length = 16});      f32, one value a token

#include <cstdint>
#include <string>
#include <vector>

#include "schema/column.h"
#include "server/check.h"

namespace replay::test {

struct ColumnOptions {
  std::string id = "t";
  std::string name = "c";
  FrameColumn::Type type = FrameColumn::Type::kF32;
  FrameColumn::Alignment alignment = FrameColumn::Alignment::kToken;
  uint32_t length = 16;               // tokens, or the rows of a row column
  std::vector<int64_t> more = {};     // further dimensions
  std::vector<int64_t> offsets = {};  // of a ragged one
  uint8_t fill = 1;                   // every byte of the data
};

inline Frame MakeColumn(const ColumnOptions& options = {}) {
  const bool ragged = options.alignment == FrameColumn::Alignment::kRagged;
  std::vector<int64_t> shape = {ragged ? options.offsets.back() : int64_t{options.length}};
  shape.insert(shape.end(), options.more.begin(), options.more.end());
  uint64_t bytes = WidthOf(options.type);
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  const std::vector<uint8_t> data(bytes, options.fill);
  const FrameColumn column{.id_hash = ColumnIdHash(options.id),
                           .name = options.name,
                           .type = options.type,
                           .alignment = options.alignment,
                           .token_count = options.alignment == FrameColumn::Alignment::kRow ? 0 : options.length,
                           .shape = shape,
                           .offsets = options.offsets,
                           .data = data};
  Frame frame;
  const std::string error = BuildColumn(column, &frame);
  CHECK(error.empty()) << error;
  return frame;
}

}  // namespace replay::test
