#pragma once
// Selectors decide who is drawn, among the items that may be drawn (Cohorts); n is the number of these.
//
//   uniform           with replacement, the paper's                       P = 1/n
//   uniform_distinct  no repeats within a batch                           P = 1/n (the marginal: the slots are exchangeable)
//   lifo, fifo        newest or oldest first, distinct                    P = 1
//   epoch             none twice before all once: a pass over all items,  P = 1/u in the slots that finish the pass, u = those
//                     then another                                        not yet seen in it; then 1/n
//   unused_first      those drawn least often first, uniform among them   P = 1/m, m = those not drawn more often than the slot's
//   prioritized       with replacement, weight priority^exponent          P = weight / sum of weights
//                     · exp(-staleness / staleness_decay)
//   recency           the same with priority^0
//
// P = P(this slot returns this item | the state when Sample began), exactly. Who comes back from eviction or joins in the middle
// of a pass is in it at once; who could not be drawn in it (newer than the step, too stale) misses it.
//
// A selector has all items of a buffer, or those of a view (view.h), and keeps for itself where it has each.
//
// uniform and uniform_distinct keep all items of current epochs in one dense array. Items that may not
// be drawn stand in it too: a pick that meets one moves it behind the end of this batch's pool, so that no batch meets it twice
// and what remains is uniform over the n. Cost of a draw: O(1), two or three cache misses that overlap; beside items that may not
// be drawn O(1 + array/n), and never more than one visit to each of them a batch. The others keep items by cohort, so that none is
// met in vain: O(cohorts) a batch (unused_first: times the different numbers of draws among the items), then a draw O(log cohorts),
// prioritized and recency O(log n). lifo and fifo of a whole buffer of which all may be drawn: O(1) a draw.
//
// OnInsert and OnRemove: O(1), prioritized and recency O(log n), as lifo and fifo where they keep anything; 8 bytes an item, theirs
// 24 to 64 (lifo and fifo of a whole buffer none, until a batch must pass over some). Belongs to its buffer's thread.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/archive.h"
#include "server/buffer_options.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/random.h"
#include "storage/segmented_array.h"

namespace replay::server {

// Which items a Sample may draw.
struct Drawable {
  const Cohorts* cohorts;
  StepWindow window;
  uint64_t in_window;  // live items in it: Cohorts::CountDrawable
  uint64_t count;      // of these, with weight: Selector::CountDrawable
  bool MayDraw(const Item& item) const { return cohorts->MayDraw(item.cohort, window); }
};

inline constexpr uint32_t kNoPosition = UINT32_MAX;

// Where a selector has each slot. Memory follows the highest slot.
class Positions {
 public:
  uint32_t operator[](uint32_t slot) const { return slot < size_ ? places_[slot] - 1 : kNoPosition; }
  bool Has(uint32_t slot) const { return (*this)[slot] != kNoPosition; }
  void Add(uint32_t slot, uint32_t position) {
    if (slot >= size_) [[unlikely]] {
      size_ = slot + 1;
      places_.Reserve(size_);
    }
    places_[slot] = position + 1;
  }
  void Move(uint32_t slot, uint32_t position) { places_[slot] = position + 1; }  // of a slot that was added
  void Remove(uint32_t slot) { places_[slot] = 0; }
  uint64_t memory_bytes() const { return places_.memory_bytes(); }

 private:
  SegmentedArray<uint32_t, 4096, 1u << 20> places_;  // position + 1; 0: not here
  uint32_t size_ = 0;
};

// A batch: slot by slot of it.
struct Picks {
  std::vector<uint32_t> slots;        // of the ItemTable
  std::vector<double> probabilities;  // of each; empty: all have `probability`
  double probability = 0;
};

class Selector {
 public:
  virtual ~Selector() = default;
  // An item of a current epoch arrives; one leaves, or its epoch becomes an older one.
  virtual void OnInsert(uint32_t slot) = 0;
  virtual void OnRemove(uint32_t slot) = 0;
  // The priority of an item changed.
  virtual void OnPriority(uint32_t slot);
  // Items, distinct, were drawn, by this selector or another.
  virtual void OnDrawn(std::span<const uint32_t> slots);
  // How many of the `in_window` items in the window it would draw: all, unless some have no weight.
  virtual uint64_t CountDrawable(const Cohorts& cohorts, const StepWindow& window, uint64_t in_window) const;
  // Replaces `picks` by `count` picks. drawable.count >= 1, and >= count if IsDistinct.
  virtual void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) = 0;
  // The picks of the last Draw were handed out.
  virtual void Commit(const Picks& picks);
  // Once the items have been read. What Draw leaves for Commit is not kept.
  virtual void Persist(Archive& archive) = 0;
  virtual uint64_t memory_bytes() const = 0;
  // Dies with a message if it does not hold `expected` items, each of a current epoch. O(items).
  virtual void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const = 0;
};

struct SelectorOptions {
  SelectorKind kind = SelectorKind::kUniform;
  double priority_exponent = 1;
  double staleness_decay = 0;
  bool of_view = false;  // It has some of the items of the table, not all of current epochs.
};
// `items` outlives the selector. Existing items are not in it yet.
std::unique_ptr<Selector> MakeSelector(const SelectorOptions& options, const ItemTable* items);

}  // namespace replay::server
