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
// uniform and uniform_distinct keep all items of current epochs in one dense array, each item its position. Items that may not
// be drawn stand in it too: a pick that meets one moves it behind the end of this batch's pool, so that no batch meets it twice
// and what remains is uniform over the n. Cost of a draw: O(1), two or three cache misses that overlap; beside items that may not
// be drawn O(1 + array/n), and never more than one visit to each of them a batch. lifo and fifo: O(1) a draw and a visit to each
// skipped item. The others keep items by cohort, so that none is met in vain: O(cohorts) a batch (unused_first: times the
// different numbers of draws among the items), then a draw O(log cohorts), prioritized and recency O(log n).
//
// OnInsert and OnRemove: O(1), prioritized and recency O(log n); 4 bytes an item, theirs 20 to 40. Belongs to its buffer's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "server/buffer_options.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/random.h"

namespace replay::server {

// Which items a Sample may draw.
struct Drawable {
  const Cohorts* cohorts;
  StepWindow window;
  uint64_t in_window;  // live items in it: Cohorts::CountDrawable
  uint64_t count;      // of these, with weight: Selector::CountDrawable
  bool MayDraw(const Item& item) const { return cohorts->MayDraw(item.cohort, window); }
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
  // How many of the `in_window` items in the window it would draw: all, unless some have no weight.
  virtual uint64_t CountDrawable(const Cohorts& cohorts, const StepWindow& window, uint64_t in_window) const;
  // Replaces `picks` by `count` picks. drawable.count >= 1, and >= count if IsDistinct.
  virtual void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) = 0;
  // The picks of the last Draw were handed out.
  virtual void Commit(const Picks& picks);
  virtual uint64_t memory_bytes() const = 0;
  // Dies with a message if it does not hold exactly the items of current epochs. O(items).
  virtual void CheckInvariants(const Cohorts& cohorts) const = 0;
};

// `items` outlives the selector. Existing items are not in it yet.
std::unique_ptr<Selector> MakeSelector(const BufferOptions& options, ItemTable* items);

}  // namespace replay::server
