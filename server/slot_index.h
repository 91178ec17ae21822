#pragma once
// Finds slots by a 64-bit hash of their key; the key itself stays with its owner, who compares.
//
//   hash = part (8 bits) | … | mark (32 bits)      cell = mark, slot       home of a cell = mark & (cells of the part - 1)
//
// Open addressing, linear probing, deletion by shifting back (no tombstones). Each of the 256 parts doubles by itself when 4/5
// full, from the marks alone, so growth at 10^7 entries stops the thread for about 0.1 ms and not for a second. 10 to 20 bytes
// an entry; memory follows the high-water mark. Find, Insert, Erase: O(1): 2 to 13 cells are looked at, and a key only where all
// 32 bits of the mark agree.
//
// Belongs to its owner's thread.

#include <cstdint>
#include <memory>
#include <random>

#include "schema/message.h"

namespace replay::server {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

class SlotIndex {
 public:
  // Keyed by secrets of this process: keys are chosen by clients, who must not be able to make them meet. Two multiplications
  // of 64 by 64 bits, each folded (as in wyhash, github.com/wangyi-fudan/wyhash).
  static uint64_t Hash(const Key128& key) {
    return Fold(Fold(key.low ^ kSecrets.words[0], key.high ^ kSecrets.words[1]) ^ kSecrets.words[2], kSecrets.words[3]);
  }

  // The slot for which same(slot) holds, or kNoSlot.
  template <typename Same>
  uint32_t Find(uint64_t hash, Same same) const {
    const Part& part = parts_[hash >> 56];
    if (part.used == 0) return kNoSlot;
    const uint32_t mark = static_cast<uint32_t>(hash);
    for (uint32_t at = mark & part.mask;; at = (at + 1) & part.mask) {
      const Cell cell = part.cells[at];
      if (cell.slot == kNoSlot) return kNoSlot;
      if (cell.mark == mark && same(cell.slot)) return cell.slot;
    }
  }

  void Prefetch(uint64_t hash) const {
    const Part& part = parts_[hash >> 56];
    if (part.used) __builtin_prefetch(&part.cells[static_cast<uint32_t>(hash) & part.mask]);
  }

  // `slot` is not in the index.
  void Insert(uint64_t hash, uint32_t slot) {
    Part& part = parts_[hash >> 56];
    if ((part.used + 1) * uint64_t{5} > part.size() * 4) Grow(&part);
    Place(&part, {static_cast<uint32_t>(hash), slot});
    ++part.used;
    ++size_;
  }

  // `slot` is in the index under `hash`.
  void Erase(uint64_t hash, uint32_t slot) {
    Part& part = parts_[hash >> 56];
    uint32_t hole = static_cast<uint32_t>(hash) & part.mask;
    while (part.cells[hole].slot != slot) hole = (hole + 1) & part.mask;
    // A later cell moves back into the hole unless its home lies after the hole.
    for (uint32_t at = (hole + 1) & part.mask; part.cells[at].slot != kNoSlot; at = (at + 1) & part.mask) {
      const uint32_t distance_from_home = (at - part.cells[at].mark) & part.mask;
      const uint32_t distance_from_hole = (at - hole) & part.mask;
      if (distance_from_home < distance_from_hole) continue;
      part.cells[hole] = part.cells[at];
      hole = at;
    }
    part.cells[hole].slot = kNoSlot;
    --part.used;
    --size_;
  }

  uint64_t size() const { return size_; }
  uint64_t memory_bytes() const {
    uint64_t bytes = sizeof parts_;
    for (const Part& part : parts_) bytes += part.size() * sizeof(Cell);
    return bytes;
  }

 private:
  struct Secrets {
    Secrets() {
      std::random_device random;
      for (uint64_t& word : words) word = (uint64_t{random()} << 32 | random()) | 1;
    }
    uint64_t words[4];
  };
  static inline const Secrets kSecrets;
  __extension__ typedef unsigned __int128 Uint128;
  static uint64_t Fold(uint64_t a, uint64_t b) {
    const Uint128 product = Uint128{a} * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  struct Cell {
    uint32_t mark = 0;
    uint32_t slot = kNoSlot;  // kNoSlot: empty
  };
  struct Part {
    std::unique_ptr<Cell[]> cells;
    uint32_t mask = 0;
    uint32_t used = 0;
    uint64_t size() const { return cells ? uint64_t{mask} + 1 : 0; }
  };

  static void Place(Part* part, Cell cell) {
    uint32_t at = cell.mark & part->mask;
    while (part->cells[at].slot != kNoSlot) at = (at + 1) & part->mask;
    part->cells[at] = cell;
  }
  static void Grow(Part* part) {
    const uint64_t old_size = part->size();
    const std::unique_ptr<Cell[]> old_cells = std::move(part->cells);
    const uint64_t new_size = old_size ? 2 * old_size : 4;
    part->cells = std::make_unique<Cell[]>(new_size);
    part->mask = static_cast<uint32_t>(new_size - 1);
    for (uint64_t i = 0; i < old_size; ++i)
      if (old_cells[i].slot != kNoSlot) Place(part, old_cells[i]);
  }

  Part parts_[256];
  uint64_t size_ = 0;
};

}  // namespace replay::server
