#pragma once
// Column → column frame → ColumnView, as trajectory.h has it for core frames. Pure functions, any thread.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "replay/client.h"
#include "replay/column.h"
#include "schema/column.h"

namespace replay {

struct ColumnView::Data {
  Frame frame;  // what everything else points into
  FrameColumn parsed;
};

// A column frame of a request, and the index of its core frame or update.
struct EncodedColumn {
  uint32_t frame = 0;
  Frame column;
};

// Builds and seals the frame. Errors (kInvalidArgument) name the column and the rule.
Result<Frame> EncodeColumn(const Column& column, std::string_view trajectory_id);
// Those of one trajectory or update, appended; "" or the error, also for a name that stands twice.
std::string EncodeColumns(std::span<const Column> columns, std::string_view trajectory_id, uint32_t frame,
                          std::vector<EncodedColumn>* to);
// As the server will check them against their core frame. "" or the error.
std::string CheckEncoded(const Frame& core, uint32_t token_count, std::span<const EncodedColumn> columns);
// Of each of `frames` core frames those of `columns` that belong to it; `frame_of` says to which.
Result<std::vector<std::vector<ColumnView>>> DealColumns(std::span<const Frame> columns, std::span<const uint32_t> frame_of,
                                                         size_t frames);
// Its checksum has been compared. Errors: kCorrupted.
Result<ColumnView> ViewColumn(Frame frame);

}  // namespace replay
