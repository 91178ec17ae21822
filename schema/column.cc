#include "schema/column.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "schema/trajectory.capnp.h"

namespace replay {
namespace {

using std::to_string;
using Type = FrameColumn::Type;
using Alignment = FrameColumn::Alignment;

static_assert(std::endian::native == std::endian::little, "headers and values are used as the bytes they are on the wire");

struct Header {
  static constexpr uint32_t kMagic = 0x4c4f4352;  // "RCOL"
  uint32_t magic = kMagic;
  uint8_t type = 0;
  uint8_t alignment = 0;
  uint8_t rank = 0;
  uint8_t name_bytes = 0;
  uint64_t id_hash = 0;
  uint64_t name_hash = 0;
  uint32_t token_count = 0;
  uint32_t zeros[9] = {};
};
static_assert(sizeof(Header) == kColumnHeaderBytes);

constexpr std::array<std::string_view, static_cast<size_t>(Type::kCount)> kTypeNames = {
    "bool", "u8", "i8", "u16", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"};
constexpr std::array<uint8_t, static_cast<size_t>(Type::kCount)> kWidths = {1, 1, 1, 2, 2, 4, 8, 2, 2, 4, 8};
constexpr std::array<std::string_view, static_cast<size_t>(Alignment::kCount)> kAlignmentNames = {"row", "token", "ragged"};

constexpr uint64_t Padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

uint64_t HashOf(std::string_view text) { return Checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()}); }

std::string Text(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "[" : ", ") + to_string(number);
  return numbers.empty() ? "[]" : text + "]";
}

// The bytes that the values of a shape take, or more than a frame can have. `shape` has no negative entry.
uint64_t BytesOf(std::span<const int64_t> shape, Type type) {
  uint64_t bytes = WidthOf(type);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t size : shape) {
    if (static_cast<uint64_t>(size) > kMaxFrameBytes / bytes) return kMaxFrameBytes + 1;
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

std::string CheckRank(uint64_t rank, Alignment alignment) {
  if (rank > kMaxColumnRank) return "rank is " + to_string(rank) + ": at most " + to_string(kMaxColumnRank) + " is allowed";
  if (rank == 0 && alignment != Alignment::kRow) return "rank is 0: only a row may be a single value";
  return "";
}

std::string CheckTokenCount(uint32_t token_count, Alignment alignment) {
  if (alignment == Alignment::kRow)
    return token_count == 0 ? "" : "token_count is " + to_string(token_count) + ": a row has none";
  if (token_count == 0 || token_count > kMaxTokens)
    return "token_count is " + to_string(token_count) + ": it must be from 1 to " + to_string(kMaxTokens);
  return "";
}

std::string CheckShape(const FrameColumn& column) {
  for (const int64_t size : column.shape)
    if (size < 0) return "shape is " + Text(column.shape) + ": it must not be negative";
  if (column.alignment == Alignment::kToken && column.shape[0] != column.token_count)
    return "shape is " + Text(column.shape) + ": it must begin with the " + to_string(column.token_count) + " tokens";
  return "";
}

// What holds between shape, offsets and data; rank, token_count and shape have been checked by themselves.
std::string CheckContents(const FrameColumn& column) {
  if (column.alignment == Alignment::kRagged) {
    const auto offsets = column.offsets;
    if (offsets[0] != 0) return "offsets[0] is " + to_string(offsets[0]) + ": it must be 0";
    const auto falls = std::adjacent_find(offsets.begin(), offsets.end(), std::greater<>());
    if (falls != offsets.end())
      return "offsets[" + to_string(falls - offsets.begin() + 1) + "] is " + to_string(falls[1]) + " after " +
             to_string(falls[0]) + ": they must not fall";
    if (offsets.back() != column.shape[0])
      return "offsets end with " + to_string(offsets.back()) + ", shape is " + Text(column.shape) + ": it must begin with that";
  }
  if (column.type == Type::kBool) {
    const auto other = std::find_if(column.data.begin(), column.data.end(), [](uint8_t byte) { return byte > 1; });
    if (other != column.data.end())
      return "data[" + to_string(other - column.data.begin()) + "] is " + to_string(*other) + ": a bool is 0 or 1";
  }
  return "";
}

// The size of a frame with these parts, in bytes.
uint64_t FrameBytes(uint64_t name_bytes, uint64_t rank, uint64_t offsets, uint64_t data_bytes) {
  return kColumnHeaderBytes + Padded(name_bytes) + 8 * (rank + offsets) + Padded(data_bytes) + kChecksumBytes;
}

uint64_t OffsetsOf(Alignment alignment, uint32_t token_count) {
  return alignment == Alignment::kRagged ? uint64_t{token_count} + 1 : 0;
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::string CheckHeader(const Header& header) {
  if (header.magic != Header::kMagic) return "magic is not \"RCOL\": this is not a column frame";
  if (header.type >= kTypeNames.size()) return "type is " + to_string(header.type) + ", which is not known";
  if (header.alignment >= kAlignmentNames.size()) return "alignment is " + to_string(header.alignment) + ", which is not known";
  const auto alignment = static_cast<Alignment>(header.alignment);
  if (std::string error = CheckRank(header.rank, alignment); !error.empty()) return error;
  if (header.name_bytes == 0 || header.name_bytes > kMaxColumnNameBytes)
    return "name has " + to_string(header.name_bytes) + " bytes: it must have 1 to " + to_string(kMaxColumnNameBytes);
  for (const uint32_t zero : header.zeros)
    if (zero != 0) return "the header has " + to_string(zero) + " where it must have 0";
  return CheckTokenCount(header.token_count, alignment);
}

}  // namespace

uint32_t WidthOf(Type type) { return kWidths[static_cast<size_t>(type)]; }
std::string_view ToString(Type type) { return type < Type::kCount ? kTypeNames[static_cast<size_t>(type)] : "unknown"; }
std::string_view ToString(Alignment alignment) {
  return alignment < Alignment::kCount ? kAlignmentNames[static_cast<size_t>(alignment)] : "unknown";
}
uint64_t ColumnIdHash(std::string_view trajectory_id) { return HashOf(trajectory_id); }

std::string ValidateColumnName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  };
  if (name.empty() || name.size() > kMaxColumnNameBytes)
    return "a column's name has " + to_string(name.size()) + " bytes: it must have 1 to " + to_string(kMaxColumnNameBytes);
  if (!std::all_of(name.begin(), name.end(), allowed))
    return "a column's name is \"" + std::string(name) + "\": only A-Z a-z 0-9 _ . - are allowed";
  return "";
}

std::string CheckColumnSize(uint64_t bytes) {
  if (bytes >= kMinColumnBytes && bytes <= kMaxFrameBytes && bytes % 8 == 0) return "";
  return "is " + to_string(bytes) + ": it must be a multiple of 8 from " + to_string(kMinColumnBytes) + " to " +
         to_string(kMaxFrameBytes);
}

std::string BuildColumn(const FrameColumn& column, Frame* frame) {
  if (std::string error = ValidateColumnName(column.name); !error.empty()) return error;
  if (column.type >= Type::kCount || column.alignment >= Alignment::kCount) return "type or alignment is not a known value";
  for (std::string error :
       {CheckRank(column.shape.size(), column.alignment), CheckTokenCount(column.token_count, column.alignment)})
    if (!error.empty()) return error;
  if (std::string error = CheckShape(column); !error.empty()) return error;
  if (const uint64_t offsets = OffsetsOf(column.alignment, column.token_count); column.offsets.size() != offsets)
    return "offsets has " + to_string(column.offsets.size()) + " entries: a " + std::string(ToString(column.alignment)) +
           " column of " + to_string(column.token_count) + " tokens has " + to_string(offsets);
  const uint64_t data_bytes = BytesOf(column.shape, column.type);
  const uint64_t bytes = FrameBytes(column.name.size(), column.shape.size(), column.offsets.size(), data_bytes);
  if (bytes > kMaxFrameBytes)
    return "the column takes more than " + to_string(kMaxFrameBytes) + " bytes with shape " + Text(column.shape);
  if (column.data.size() != data_bytes)
    return "data has " + to_string(column.data.size()) + " bytes, shape " + Text(column.shape) + " of " +
           std::string(ToString(column.type)) + " has " + to_string(data_bytes);
  if (std::string error = CheckContents(column); !error.empty()) return error;

  *frame = Frame::Allocate(bytes);
  std::memset(frame->mutable_data(), 0, bytes);
  Header header;
  header.type = static_cast<uint8_t>(column.type);
  header.alignment = static_cast<uint8_t>(column.alignment);
  header.rank = static_cast<uint8_t>(column.shape.size());
  header.name_bytes = static_cast<uint8_t>(column.name.size());
  header.id_hash = column.id_hash;
  header.name_hash = HashOf(column.name);
  header.token_count = column.token_count;
  uint8_t* at = frame->mutable_data();
  const auto put = [&at](const void* data, uint64_t size) {
    if (size > 0) std::memcpy(at, data, size);
    at += Padded(size);
  };
  put(&header, sizeof header);
  put(column.name.data(), column.name.size());
  put(column.shape.data(), column.shape.size_bytes());
  put(column.offsets.data(), column.offsets.size_bytes());
  put(column.data.data(), column.data.size());
  SealFrame({frame->mutable_data(), bytes});
  return "";
}

std::string ReadColumn(std::span<const uint8_t> frame, bool check_checksum, FrameColumn* column, bool* checksum_error) {
  if (std::string error = CheckColumnSize(frame.size()); !error.empty()) return "the size of the frame " + error;
  Header header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (std::string error = CheckHeader(header); !error.empty()) return error;
  *column = {};
  column->type = static_cast<Type>(header.type);
  column->alignment = static_cast<Alignment>(header.alignment);
  column->id_hash = header.id_hash;
  column->token_count = header.token_count;
  const uint64_t offsets = OffsetsOf(column->alignment, header.token_count);
  if (const uint64_t least = FrameBytes(header.name_bytes, header.rank, offsets, 0); frame.size() < least)
    return "the frame has " + to_string(frame.size()) + " bytes: name, shape and offsets alone take " + to_string(least);

  const uint8_t* at = frame.data() + kColumnHeaderBytes;
  const auto numbers = [&at](uint64_t count) {
    const auto* begin = reinterpret_cast<const int64_t*>(at);
    at += 8 * count;
    return std::span(begin, count);
  };
  column->name = ColumnName(frame);
  if (!IsZero({at + header.name_bytes, Padded(header.name_bytes) - header.name_bytes}))
    return "the name is not padded with zeros";
  at += Padded(header.name_bytes);
  column->shape = numbers(header.rank);
  column->offsets = numbers(offsets);
  if (std::string error = CheckShape(*column); !error.empty()) return error;
  const uint64_t data_bytes = BytesOf(column->shape, column->type);
  if (const uint64_t bytes = FrameBytes(header.name_bytes, header.rank, offsets, data_bytes); frame.size() != bytes)
    return "the frame has " + to_string(frame.size()) + " bytes, with shape " + Text(column->shape) + " of " +
           std::string(ToString(column->type)) + " it has " + to_string(bytes);
  column->data = {at, data_bytes};
  // Before what is read of the contents, so that damage is told as damage.
  if (check_checksum && !FrameChecksumMatches(frame)) {
    if (checksum_error) *checksum_error = true;
    return "the checksum does not match the bytes of the column";
  }
  if (std::string error = ValidateColumnName(column->name); !error.empty()) return error;
  if (header.name_hash != HashOf(column->name))
    return "the hash of the name is not that of \"" + std::string(column->name) + "\"";
  if (!IsZero({at + data_bytes, Padded(data_bytes) - data_bytes})) return "the data is not padded with zeros";
  return CheckContents(*column);
}

std::string_view ColumnName(std::span<const uint8_t> frame) {
  return {reinterpret_cast<const char*>(frame.data()) + kColumnHeaderBytes, frame[offsetof(Header, name_bytes)]};
}

std::string CheckColumnsOf(std::span<const uint8_t> core, uint32_t token_count, std::span<const FrameColumn> columns) {
  FrameReader reader(core, /*passes=*/1);
  const auto trajectory = reader.Root<schema::Trajectory>();
  const auto id = trajectory.getTrajectoryId();
  std::vector<std::string_view> listed;
  for (const auto name : trajectory.getColumnNames()) listed.emplace_back(name.begin(), name.size());
  std::vector<std::string_view> names;
  for (const FrameColumn& column : columns) {
    if (std::string error = CheckColumnId(column, {id.begin(), id.size()}); !error.empty()) return error;
    if (column.alignment != Alignment::kRow && column.token_count != token_count)
      return "column \"" + std::string(column.name) + "\" has " + to_string(column.token_count) + " tokens, token_ids has " +
             to_string(token_count) + ": they must agree";
    names.push_back(column.name);
  }
  std::sort(listed.begin(), listed.end());
  std::sort(names.begin(), names.end());
  for (const auto* each : {&names, &listed})
    if (const auto twice = std::adjacent_find(each->begin(), each->end()); twice != each->end())
      return "column \"" + std::string(*twice) + "\" stands twice";
  for (const std::string_view name : names)
    if (!std::binary_search(listed.begin(), listed.end(), name))
      return "column \"" + std::string(name) + "\" is not listed in column_names";
  for (const std::string_view name : listed)
    if (!std::binary_search(names.begin(), names.end(), name))
      return "column_names lists \"" + std::string(name) +
             "\", which was not sent: those of columns that come later are not listed";
  return "";
}

std::string CheckColumnId(const FrameColumn& column, std::string_view trajectory_id) {
  if (column.id_hash == ColumnIdHash(trajectory_id)) return "";
  return "column \"" + std::string(column.name) + "\" is of another trajectory: it has the hash of another id";
}

}  // namespace replay
