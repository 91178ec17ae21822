#pragma once
// ItemTable: the index rows of a buffer's live items, by slot, by id, and in insertion order.
//
//   slot (u32)  ──► Item, one cache line                  reused through a free list
//   id          ──► slot                                  SlotIndex, 128-bit keys, no strings
//   order       :  [ positive, oldest .. newest | fresh, oldest .. newest ]      one doubly linked list through the items
//
// Numbers rise along the whole list: each positive item is older than each fresh one. Who is positive or fresh, and who leaves,
// Retention decides; the table only keeps the order and the boundary.
//
// About 115 bytes an item: 96 for the two rows, the rest for the index. Memory follows the high-water mark. Add, Remove, Find, and
// the moves over the boundary: O(1). Belongs to its buffer's thread.

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "schema/message.h"
#include "schema/validate.h"
#include "server/archive.h"
#include "server/slot_index.h"
#include "storage/segmented_array.h"
#include "storage/store.h"

namespace replay::server {

struct alignas(64) Item {
  uint64_t number = 0;        // Insertion number, from 1; 0: the slot is free.
  int64_t last_use_step = 0;  // Valid once draws > 0.
  uint32_t draws = 0;
  uint32_t cohort = 0;       // In Cohorts: run, epoch, oldest version.
  uint32_t frame_index = 0;  // Scratch of Sample: where this item's frame stands in the batch, if it stands there.
  uint32_t token_count : 24 = 0;
  uint32_t outcome_bits : 2 = 0;
  uint32_t positive : 1 = 0;      // In the positive ring.
  uint32_t counted : 1 = 0;       // Its insert counts in the balance of pacing (was not part of the baseline).
  uint32_t outcome_said : 1 = 0;  // by the producer or an Update, and not decided by the reward
  uint32_t zero_spread : 1 = 0;   // All rewards of its group were the same when it came in.
  uint32_t held : 1 = 0;          // Under a lease: in no selector and no view.
  uint32_t has_tags : 1 = 0;      // In its frame.
  float reward = 0;
  uint16_t source = 0;  // In Sources.
  uint32_t older = kNoSlot;
  uint32_t newer = kNoSlot;  // Of a free slot: the next free one.
  Store::Place place;        // In Store: the frame.

  Outcome outcome() const { return static_cast<Outcome>(outcome_bits); }
  void Persist(Archive& archive);  // all but the frame
};
static_assert(sizeof(Item) == 64, "a draw touches one line; the memory goal is 200 bytes an item with everything around it");
static_assert(kMaxTokens < 1u << 24);

class ItemTable {
 public:
  // Adds an item as the newest, fresh one and returns its slot. `facts.id` must not be live; `outcome` is the decided one.
  uint32_t Add(const TrajectoryFacts& facts, Outcome outcome);
  void Remove(uint32_t slot);

  // The slot of a live item, or kNoSlot.
  uint32_t Find(const Key128& id) const {
    return index_.Find(HashOf(id), [&](uint32_t slot) { return identities_[slot].id == id; });
  }
  void PrefetchId(const Key128& id) const { index_.Prefetch(HashOf(id)); }

  Item& operator[](uint32_t slot) { return items_[slot]; }
  const Item& operator[](uint32_t slot) const { return items_[slot]; }
  void Prefetch(uint32_t slot) const {
    __builtin_prefetch(&items_[slot], 1);
    if (slot < with_late_) __builtin_prefetch(&late_[slot]);
  }

  // For prioritized draws; 1 unless set.
  float priority(uint32_t slot) const { return slot < with_late_ ? late_[slot].priority : 1; }
  void SetPriority(uint32_t slot, float priority) {
    if (priority != 1 || slot < with_late_) LateOf(slot).priority = priority;
  }
  // How often the item was updated.
  uint32_t revision(uint32_t slot) const { return slot < with_late_ ? late_[slot].revision : 0; }
  uint32_t NextRevision(uint32_t slot) { return ++LateOf(slot).revision; }
  // As Update wrote it.
  std::optional<float> advantage(uint32_t slot) const {
    if (slot >= with_late_ || std::isnan(late_[slot].advantage)) return std::nullopt;
    return late_[slot].advantage;
  }
  void SetAdvantage(uint32_t slot, float advantage) { LateOf(slot).advantage = advantage; }

  // The ends of the order and its boundary; kNoSlot when there is none.
  uint32_t oldest() const { return oldest_; }
  uint32_t newest() const { return newest_; }
  uint32_t oldest_fresh() const { return oldest_fresh_; }
  uint64_t live() const { return positive_ + fresh_; }
  uint64_t positive() const { return positive_; }
  uint64_t fresh() const { return fresh_; }
  uint64_t next_number() const { return next_number_; }

  // Moves the boundary by one item: the oldest fresh becomes the newest positive, or the other way round.
  void MakePositive();
  void MakeFresh();

  // The oldest item with a number above `number`, or kNoSlot. O(1) after RememberPage(number, …), else a walk from the nearer
  // end. Export walks the whole buffer in pages, so the last few page ends are remembered and kept right through removals.
  uint32_t FirstAfter(uint64_t number) const;
  void RememberPage(uint64_t last_number, uint32_t last_slot);

  uint64_t memory_bytes() const {
    return items_.memory_bytes() + identities_.memory_bytes() + index_.memory_bytes() + late_.memory_bytes();
  }
  // All but the frames.
  void Persist(Archive& archive);
  // Dies with a message if order, boundary, index or free list contradict each other. O(slots).
  void CheckInvariants() const;

 private:
  struct PageEnd {
    uint64_t number = 0;      // 0: unused
    uint32_t slot = kNoSlot;  // The newest item whose number is at most `number`; kNoSlot: all are above.
  };

  // What no draw needs.
  struct Identity {
    Key128 id;
    Key128 group;
    void Persist(Archive& archive) { archive(id, group); }
  };

  // What most items of most buffers have none of.
  struct Late {
    float priority = 1;
    uint32_t revision = 0;
    float advantage = std::numeric_limits<float>::quiet_NaN();  // NaN: none
    void Persist(Archive& archive) { archive(priority, revision, advantage); }
  };
  Late& LateOf(uint32_t slot);

  // Ids are hashes already, keyed by a secret.
  static uint64_t HashOf(const Key128& id) { return id.low; }

  SegmentedArray<Item, 1024> items_;
  SegmentedArray<Identity, 1024> identities_;
  SegmentedArray<Late, 4096> late_;  // of the first with_late_ slots
  SlotIndex index_;
  uint32_t with_late_ = 0;
  uint32_t slot_count_ = 0;  // Slots handed out so far.
  uint32_t free_ = kNoSlot;
  uint32_t oldest_ = kNoSlot;
  uint32_t newest_ = kNoSlot;
  uint32_t oldest_fresh_ = kNoSlot;
  uint64_t positive_ = 0;
  uint64_t fresh_ = 0;
  uint64_t next_number_ = 1;
  std::array<PageEnd, 8> page_ends_;
  uint64_t next_page_end_ = 0;  // modulo the size; 0: none has been remembered
};

}  // namespace replay::server
