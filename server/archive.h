#pragma once
// Archive writes values to bytes and reads them back, by one function for both ways:
//
//   void Lease::Persist(Archive& archive) { archive(number, holder, expires_ms, units); }
//
//   number, enum      little-endian, as wide as it is          text, list, map   u64 count, then each
//   optional          u8, then the value if it is there        Frame             u64 number, u32 size; 0, 0: none
//   struct            its Persist, or Persist(archive, value)  bool              u8
//
// There are no names and no types in the bytes: what reads them is of the same format (kArchiveFormat), and whoever keeps them
// adds a checksum. Bytes that end early, or a count that they cannot hold, make a reading archive `failed`: it then gives zeros
// and empty lists, allocates nothing, and its owner throws away what was read. A frame's own bytes are not in it, they stay
// where its number says.
//
// One thread. O(bytes).

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "schema/message.h"
#include "storage/segmented_array.h"

namespace replay::server {

static_assert(std::endian::native == std::endian::little, "numbers are written as they stand in memory");
inline constexpr uint32_t kArchiveFormat = 1;

// Where the frames are whose numbers an archive has.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  // Empty: it is not there, or not of that size.
  virtual Frame Fetch(uint64_t number, uint32_t size) = 0;
};

class Archive {
 public:
  // Appends to `to`, and the numbers of the frames to `numbers`.
  explicit Archive(std::string* to, std::vector<uint64_t>* numbers = nullptr) : to_(to), numbers_(numbers) {}
  // `frames` may be null where none are read.
  Archive(std::string_view from, FrameSource* frames) : from_(from), frames_(frames) {}

  bool loading() const { return to_ == nullptr; }
  // Of reading.
  bool failed() const { return failed_; }
  bool at_end() const { return from_.empty(); }
  void Fail() {
    failed_ = true;
    from_ = {};
  }

  template <typename... T>
  void operator()(T&... values) {
    (Value(values), ...);
  }
  // Of writing.
  template <typename... T>
  void Save(const T&... values) {
    (*this)(const_cast<T&>(values)...);  // which writing leaves as they are
  }
  // The first `count` entries, which are made room for.
  template <typename T, uint32_t kPerChunk, uint64_t kSlabsFromBytes>
  void Entries(SegmentedArray<T, kPerChunk, kSlabsFromBytes>& entries, uint64_t count) {
    if (loading()) {
      if (!CanHold(count)) return;
      entries.Reserve(count);
    }
    for (uint64_t i = 0; i < count && !failed_; ++i) Value(entries[static_cast<uint32_t>(i)]);
  }
  // The length of a list of which the caller reads or writes each.
  uint64_t Count(uint64_t count) {
    Value(count);
    return loading() && !CanHold(count) ? 0 : count;
  }

 private:
  // Whether `count` values of at least a byte each may follow.
  bool CanHold(uint64_t count) {
    if (count > from_.size()) Fail();
    return !failed_;
  }
  void Bytes(void* data, size_t size) {
    if (!loading()) {
      to_->append(static_cast<const char*>(data), size);
      return;
    }
    if (size > from_.size()) Fail();
    if (failed_) {
      std::memset(data, 0, size);
      return;
    }
    std::memcpy(data, from_.data(), size);
    from_.remove_prefix(size);
  }

  template <typename T>
  void Value(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = value;
      Bytes(&byte, 1);
      value = byte != 0;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      Bytes(&value, sizeof value);
    } else if constexpr (requires { value.Persist(*this); }) {
      value.Persist(*this);
    } else {
      Persist(*this, value);
    }
  }
  void Value(std::string& text) {
    const uint64_t size = Count(text.size());
    if (loading()) text.resize(size);
    if (size > 0) Bytes(text.data(), size);
  }
  void Value(Key128& key) { (*this)(key.low, key.high); }
  void Value(Frame& frame);
  template <typename T>
  void Value(std::optional<T>& value) {
    bool has = value.has_value();
    Value(has);
    if (loading()) value = has ? std::optional<T>(T{}) : std::nullopt;
    if (has) Value(*value);
  }
  template <typename T>
  void Value(std::vector<T>& list) {
    List(list);
  }
  template <typename T>
  void Value(std::deque<T>& list) {
    List(list);
  }
  template <typename T>
  void Value(std::list<T>& list) {
    List(list);
  }
  template <typename K, typename V>
  void Value(std::map<K, V>& map) {
    if (!loading()) {
      Count(map.size());
      for (auto& [key, value] : map) Save(key, value);
      return;
    }
    map.clear();
    for (uint64_t left = Count(0); left > 0 && !failed_; --left) {
      K key{};
      Value(key);
      Value(map[key]);
    }
    if (failed_) map.clear();
  }
  template <typename T, size_t kSize>
  void Value(std::array<T, kSize>& values) {
    for (T& value : values) Value(value);
  }
  template <typename T, size_t kSize>
  void Value(T (&values)[kSize]) {
    for (T& value : values) Value(value);
  }
  template <typename A, typename B>
  void Value(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename Container>
  void List(Container& list) {
    const uint64_t count = Count(list.size());
    if (loading()) {
      list.clear();
      list.resize(count);
    }
    for (auto& value : list) {
      if (failed_) break;
      Value(value);
    }
    if (failed_) list.clear();
  }

  std::string* const to_ = nullptr;
  std::vector<uint64_t>* const numbers_ = nullptr;
  std::string_view from_;
  FrameSource* const frames_ = nullptr;
  bool failed_ = false;
};

}  // namespace replay::server
