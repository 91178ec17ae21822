#pragma once
// Columns: heavy data of a trajectory under a name, beside it: routed experts, images, reference log-probs. They are sent along only
// where a Sample or Get names them, and may be written back later by an Update.
//
//   rollout.columns.push_back(replay::Column::Of<float>("ref_logprobs", {L}, values));             // [L], a value for each token
//   rollout.columns.push_back(replay::Column::Of<uint8_t>("image", {3, 224, 224}, pixels, replay::ColumnAlignment::kRow));
//
//   auto batch = client.Sample("rollouts", {.count = 64, .columns = {"ref_logprobs"}}, 30s);
//   if (const replay::ColumnView* column = batch->trajectory(draw).column("ref_logprobs"))         // null: it has none
//     Train(column->values<float>());

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace replay {

enum class ColumnType : uint8_t { kBool, kU8, kI8, kU16, kI16, kI32, kI64, kF16, kBf16, kF32, kF64 };
enum class ColumnAlignment : uint8_t {
  kRow,     // one for the whole trajectory, of any shape
  kToken,   // shape[0] is the number of tokens
  kRagged,  // token i has the rows from offsets[i] to offsets[i + 1] of the first dimension
};
std::string_view ToString(ColumnType type);            // "f32"
std::string_view ToString(ColumnAlignment alignment);  // "token"

// The type of C++'s own types. Of kF16 and kBf16, and of bool, name the type yourself: their bytes are as they are.
template <typename T>
constexpr ColumnType ColumnTypeOf() {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  if constexpr (std::is_same_v<T, float>) return ColumnType::kF32;
  if constexpr (std::is_same_v<T, double>) return ColumnType::kF64;
  if constexpr (std::is_same_v<T, uint8_t>) return ColumnType::kU8;
  if constexpr (std::is_same_v<T, int8_t>) return ColumnType::kI8;
  if constexpr (std::is_same_v<T, uint16_t>) return ColumnType::kU16;
  if constexpr (std::is_same_v<T, int16_t>) return ColumnType::kI16;
  if constexpr (std::is_same_v<T, int32_t>) return ColumnType::kI32;
  static_assert(!std::is_same_v<T, uint32_t> && !std::is_same_v<T, uint64_t>, "columns have no unsigned type of that width");
  return ColumnType::kI64;
}

struct Column {
  std::string name;  // 1 to 64 of [A-Za-z0-9_.-]
  ColumnType type = ColumnType::kF32;
  ColumnAlignment alignment = ColumnAlignment::kToken;
  std::vector<int64_t> shape;    // at most 8 dimensions
  std::vector<int64_t> offsets;  // [L + 1] of a ragged one
  std::vector<uint8_t> bytes;    // the values, row by row, little-endian; a bool is a byte of 0 or 1
  bool operator==(const Column&) const = default;

  template <typename T>
  static Column Of(std::string name, std::vector<int64_t> shape, std::span<const T> values,
                   ColumnAlignment alignment = ColumnAlignment::kToken, std::vector<int64_t> offsets = {}) {
    Column column{.name = std::move(name),
                  .type = ColumnTypeOf<T>(),
                  .alignment = alignment,
                  .shape = std::move(shape),
                  .offsets = std::move(offsets),
                  .bytes = std::vector<uint8_t>(values.size_bytes())};
    if (!values.empty()) std::memcpy(column.bytes.data(), values.data(), values.size_bytes());
    return column;
  }
};

// A received column: views into the bytes as they came over the wire, 8-aligned. Copying is cheap and keeps them alive. Any thread.
class ColumnView {
 public:
  std::string_view name() const;
  ColumnType type() const;
  ColumnAlignment alignment() const;
  std::span<const int64_t> shape() const;
  std::span<const int64_t> offsets() const;  // [L + 1] of a ragged one
  std::span<const uint8_t> bytes() const;
  // Empty if the column has another type.
  template <typename T>
  std::span<const T> values() const {
    if (type() != ColumnTypeOf<T>()) return {};
    return {reinterpret_cast<const T*>(bytes().data()), bytes().size() / sizeof(T)};
  }
  // Everything, copied out.
  Column ToColumn() const;

  struct Data;  // of the library
  explicit ColumnView(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

}  // namespace replay
