#include "client/column.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace replay {

static_assert(static_cast<int>(ColumnType::kF64) == static_cast<int>(FrameColumn::Type::kF64));
static_assert(static_cast<int>(ColumnType::kF16) == static_cast<int>(FrameColumn::Type::kF16));
static_assert(static_cast<int>(ColumnAlignment::kRagged) == static_cast<int>(FrameColumn::Alignment::kRagged));

std::string_view ToString(ColumnType type) { return ToString(static_cast<FrameColumn::Type>(type)); }
std::string_view ToString(ColumnAlignment alignment) { return ToString(static_cast<FrameColumn::Alignment>(alignment)); }

Result<Frame> EncodeColumn(const Column& column, std::string_view trajectory_id) {
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "column \"" + column.name + "\": " + what};
  };
  uint64_t token_count = 0;
  if (column.alignment == ColumnAlignment::kToken && !column.shape.empty())
    token_count = static_cast<uint64_t>(std::max<int64_t>(0, column.shape[0]));
  if (column.alignment == ColumnAlignment::kRagged && !column.offsets.empty()) token_count = column.offsets.size() - 1;
  if (token_count > kMaxTokens)
    return refuse("it has " + std::to_string(token_count) + " tokens: at most " + std::to_string(kMaxTokens) + " are allowed");
  Frame frame;
  const std::string error = BuildColumn({.id_hash = ColumnIdHash(trajectory_id),
                                         .name = column.name,
                                         .type = static_cast<FrameColumn::Type>(column.type),
                                         .alignment = static_cast<FrameColumn::Alignment>(column.alignment),
                                         .token_count = static_cast<uint32_t>(token_count),
                                         .shape = column.shape,
                                         .offsets = column.offsets,
                                         .data = column.bytes},
                                        &frame);
  if (!error.empty()) return refuse(error);
  return frame;
}

std::string EncodeColumns(std::span<const Column> columns, std::string_view trajectory_id, uint32_t frame,
                          std::vector<EncodedColumn>* to) {
  for (size_t i = 0; i < columns.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (columns[j].name == columns[i].name) return "column \"" + columns[i].name + "\" stands twice";
    Result<Frame> encoded = EncodeColumn(columns[i], trajectory_id);
    if (!encoded) return encoded.error().message;
    to->push_back({frame, std::move(*encoded)});
  }
  return "";
}

std::string CheckEncoded(const Frame& core, uint32_t token_count, std::span<const EncodedColumn> columns) {
  std::vector<FrameColumn> parsed(columns.size());
  for (size_t i = 0; i < columns.size(); ++i)
    if (std::string error = ReadColumn(columns[i].column.bytes(), false, &parsed[i]); !error.empty()) return error;
  return CheckColumnsOf(core.bytes(), token_count, parsed);
}

Result<std::vector<std::vector<ColumnView>>> DealColumns(std::span<const Frame> columns, std::span<const uint32_t> frame_of,
                                                         size_t frames) {
  if (columns.size() != frame_of.size())
    return Error{ErrorCode::kProtocolViolation,
                 "the reply lists " + std::to_string(frame_of.size()) + " columns and has " + std::to_string(columns.size())};
  std::vector<std::vector<ColumnView>> views(frames);
  for (size_t i = 0; i < columns.size(); ++i) {
    if (frame_of[i] >= frames)
      return Error{ErrorCode::kProtocolViolation, "column " + std::to_string(i) + " refers to frame " +
                                                      std::to_string(frame_of[i]) + " of " + std::to_string(frames)};
    Result<ColumnView> view = ViewColumn(columns[i]);
    if (!view) return view.error();
    views[frame_of[i]].push_back(std::move(*view));
  }
  return views;
}

Result<ColumnView> ViewColumn(Frame frame) {
  auto data = std::make_shared<ColumnView::Data>();
  data->frame = std::move(frame);
  const std::string error = ReadColumn(data->frame.bytes(), /*check_checksum=*/false, &data->parsed);
  if (!error.empty()) return Error{ErrorCode::kCorrupted, "a column is not readable: " + error};
  return ColumnView(std::move(data));
}

std::string_view ColumnView::name() const { return data_->parsed.name; }
ColumnType ColumnView::type() const { return static_cast<ColumnType>(data_->parsed.type); }
ColumnAlignment ColumnView::alignment() const { return static_cast<ColumnAlignment>(data_->parsed.alignment); }
std::span<const int64_t> ColumnView::shape() const { return data_->parsed.shape; }
std::span<const int64_t> ColumnView::offsets() const { return data_->parsed.offsets; }
std::span<const uint8_t> ColumnView::bytes() const { return data_->parsed.data; }

Column ColumnView::ToColumn() const {
  return {.name = std::string(name()),
          .type = type(),
          .alignment = alignment(),
          .shape = {shape().begin(), shape().end()},
          .offsets = {offsets().begin(), offsets().end()},
          .bytes = {bytes().begin(), bytes().end()}};
}

}  // namespace replay
