#pragma once
// Columns: the column frames of a buffer's items, by slot and name. Items without one cost nothing here.
//
//   slot ──► its column frames, each with the number of its name         a name has a number while a live item has such a column
//
// Put, Remove, Find, Has: O(columns of the item + names of the buffer). Belongs to its buffer's thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schema/message.h"
#include "server/archive.h"

namespace replay::server {

// A column frame of a request or reply, and the core frame it belongs to.
struct ColumnOf {
  uint32_t frame = 0;
  Frame column;
  void Persist(Archive& archive) { archive(frame, column); }
};

class Columns {
 public:
  // Each in place of the one of its name. The frames have passed ReadColumn, and WhyRefused said "" of their names.
  void Put(uint32_t slot, Frame column);
  void Remove(uint32_t slot) {
    if (!by_slot_.empty()) RemoveAll(slot);
  }

  // Null: the item has no such column.
  const Frame* Find(uint32_t slot, std::string_view name) const;
  bool Has(uint32_t slot, std::string_view name) const { return Find(slot, name) != nullptr; }
  // What those of the item count towards capacity_bytes once `columns` have been put to it.
  uint64_t HeldBytesWith(uint32_t slot, std::span<const Frame> columns) const;
  // Appends those of `names` that the item has.
  void Collect(uint32_t slot, uint32_t frame, std::span<const std::string> names, std::vector<ColumnOf>* to) const;
  // "" or why these do not fit in: the buffer would have too many different names.
  std::string WhyRefused(std::span<const Frame> columns) const;
  std::string WhyRefused(std::span<const ColumnOf> columns) const;

  // Lets go of the bytes of the item's that are there and whose number is at most `written`. How many bytes; `left`: whether others are there.
  uint64_t Spill(uint32_t slot, uint64_t written, bool* left);

  uint64_t count() const { return count_; }
  uint64_t bytes() const { return held_bytes_ - count_ * Frame::kOverheadBytes; }  // of the frames
  uint64_t spilled_bytes() const { return spilled_bytes_; }                        // of these
  // What counts towards the buffer's capacity_bytes.
  uint64_t held_bytes() const { return held_bytes_; }
  std::vector<std::pair<std::string, uint64_t>> CountsByName() const;  // in the order of the names
  uint64_t memory_bytes() const;                                       // beside the frames
  void Persist(Archive& archive);
  // Dies with a message if counts and contents disagree. O(columns).
  void CheckInvariants() const;

 private:
  struct Entry {
    Frame column;
    uint32_t name = 0;
    void Persist(Archive& archive) { archive(column, name); }
  };
  struct Name {
    std::string text;
    uint64_t columns = 0;  // 0: free for another
    void Persist(Archive& archive) { archive(text, columns); }
  };
  static constexpr uint32_t kNoName = UINT32_MAX;
  uint32_t Look(std::string_view name) const;
  std::string WhyTooMany(std::vector<std::string_view> names) const;
  void RemoveAll(uint32_t slot);

  std::unordered_map<uint32_t, std::vector<Entry>> by_slot_;
  std::vector<Name> names_;
  uint64_t count_ = 0;
  uint64_t held_bytes_ = 0, spilled_bytes_ = 0;
};

}  // namespace replay::server
