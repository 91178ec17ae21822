#pragma once
// Breakdown counts a buffer's trajectories by where they come from, how long they are and how often they were drawn, so that a
// bias of what is stored, withheld or removed towards one source or towards short answers shows.
//
//   sources : the first 63 different ones by name, then all others together as "(other)"
//   lengths : tokens   1-128  129-256  257-512 … 32769-65536  65537+
//   draws   : that an item had when it was removed   0  1  2  3-4  5-8 … 129-256  257+
//
//   live = inserted - removed        withheld = of live: outside the steps that the last Sample could draw from
//
// No item is ever walked. What is withheld is decided for a cohort as a whole (cohorts.h), so each cohort has a row of how many
// of its items come from which source and have which length; the rows outside are added up when somebody asks.
//
// OnInsert, OnRemove: O(1), about 20 instructions. Show: O(cohorts). 64 bytes a cohort with up to 5 sources, 300 with 64; 5 KB
// a buffer. Belongs to its buffer's thread.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/archive.h"
#include "server/buffer.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/sources.h"

namespace replay::server {

class Breakdown {
 public:
  static constexpr uint32_t kSources = 64, kLengths = 11, kDraws = 11;

  // `cohort`: of the item, or of its group where groups are the unit; the same when it leaves.
  void OnInsert(const Item& item, uint32_t cohort) {
    const uint32_t source = SourceOf(item), length = LengthOf(item.token_count);
    ++inserted_[length];
    ++inserted_[kLengths + source];
    if (cohort >= rows_ || source >= source_room_) [[unlikely]]
      Grow(cohort, source);
    uint32_t* const row = &tallies_[size_t{cohort} * (kLengths + source_room_)];
    ++row[length];
    ++row[kLengths + source];
  }
  void OnRemove(const Item& item, uint32_t cohort, RemoveReason reason) {
    const uint32_t source = SourceOf(item), length = LengthOf(item.token_count);
    Removed& removed = removed_[static_cast<size_t>(reason)];
    ++removed.tallies[length];
    ++removed.tallies[kLengths + source];
    ++removed.draws[DrawsOf(item.draws)];
    uint32_t* const row = &tallies_[size_t{cohort} * (kLengths + source_room_)];
    --row[length];
    --row[kLengths + source];
  }

  // Fills sources, lengths and draws. Sources that nothing came from are left out; of draws there is only what was removed.
  // `window`: that of the last Sample, if there was one.
  void Show(const Sources& sources, const Cohorts& cohorts, const std::optional<StepWindow>& window, BufferStats* stats) const;

  void Persist(Archive& archive) { archive(inserted_, removed_, tallies_, rows_, source_room_); }
  uint64_t memory_bytes() const { return tallies_.capacity() * sizeof(uint32_t); }
  // Dies with a message if a count contradicts another or the items. `cohort_of` a slot. O(items + cohorts).
  void CheckInvariants(const ItemTable& items, const std::function<uint32_t(uint32_t)>& cohort_of, uint64_t accepted,
                       const std::array<uint64_t, kRemoveReasons>& removed, const Histogram& item_draws) const;

 private:
  // Lengths, then sources: of what was inserted, of what was removed, and of each cohort.
  using Tallies = std::array<uint64_t, kLengths + kSources>;
  struct Removed {
    Tallies tallies{};
    std::array<uint64_t, kDraws> draws{};
    void Persist(Archive& archive) { archive(tallies, draws); }
  };

  static uint32_t SourceOf(const Item& item) { return item.source < kSources ? item.source : 0; }
  // 0: 1 to 128, 1: 129 to 256 …; an item has at least 1 token.
  static uint32_t LengthOf(uint32_t tokens) {
    const auto bits = static_cast<uint32_t>(std::bit_width((tokens - 1) >> 7));
    return std::min(bits, kLengths - 1);
  }
  // 0, 1, 2, 3 to 4, 5 to 8 …
  static uint32_t DrawsOf(uint32_t draws) {
    return draws == 0 ? 0 : std::min(static_cast<uint32_t>(std::bit_width(draws - 1)) + 1, kDraws - 1);
  }
  static std::string NameOfLength(uint32_t length);
  static std::string NameOfDraws(uint32_t draws);
  void Grow(uint32_t cohort, uint32_t source);
  Tallies Withheld(const Cohorts& cohorts, const StepWindow& window) const;
  BreakdownRow RowOf(uint32_t tally, const Tallies& withheld) const;

  Tallies inserted_{};
  std::array<Removed, kRemoveReasons> removed_{};
  std::vector<uint32_t> tallies_;  // [rows_][kLengths + source_room_], by cohort; zeros where a cohort has no item
  uint32_t rows_ = 0;
  uint32_t source_room_ = 5;  // a row of 64 bytes
};

}  // namespace replay::server
