#pragma once
// Selectors decide who is drawn, among the items that may be drawn (Cohorts); n is the number of these.
//
//   uniform           with replacement, the paper's      P = 1/n each slot
//   uniform_distinct  no repeats within a batch          P = 1/n each slot (the marginal; the slots are exchangeable)
//   lifo, fifo        newest or oldest first, distinct   P = 1
//
// P = P(this slot returns this item | the state when Sample began), exactly.
//
// The uniform ones keep all items of current epochs in one dense array, each item its position. Items that are newer than the
// step stand in it too: a pick that meets one moves it behind the end of this batch's pool, so that no batch meets it twice and
// what remains is uniform over the n. Cost of a draw: O(1), two or three cache misses that overlap; beside newer items O(1 +
// array/n), and never more than one visit to each of them a batch. lifo and fifo: O(1) a draw and a visit to each skipped item.
//
// OnInsert and OnRemove: O(1), 4 bytes an item. Belongs to its buffer's thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/buffer_options.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/random.h"

namespace replay::server {

// Which items a Sample may draw.
struct Drawable {
  const Cohorts* cohorts;
  std::optional<int64_t> step;
  uint64_t count;  // of live items for which MayDraw holds
  bool MayDraw(const Item& item) const { return cohorts->MayDraw(item.cohort, step); }
};

class Selector {
 public:
  virtual ~Selector() = default;
  // An item of a current epoch arrives; one leaves, or its epoch becomes an older one.
  virtual void OnInsert(uint32_t slot) = 0;
  virtual void OnRemove(uint32_t slot) = 0;
  // Replaces `slots` by `count` picks. drawable.count >= 1, and >= count if distinct().
  virtual void Draw(uint32_t count, const Drawable& drawable, Random* random, std::vector<uint32_t>* slots) = 0;
  virtual bool distinct() const = 0;
  virtual double Probability(uint64_t drawable_count) const = 0;
  virtual uint64_t memory_bytes() const = 0;
  // Dies with a message if it does not hold exactly the items of current epochs. O(items).
  virtual void CheckInvariants(const Cohorts& cohorts) const = 0;
};

// `items` outlives the selector. Existing items are not in it yet.
std::unique_ptr<Selector> MakeSelector(SelectorKind kind, ItemTable* items);
// Whether a batch of this kind needs as many different items as it has slots.
inline bool IsDistinct(SelectorKind kind) { return kind != SelectorKind::kUniform; }

}  // namespace replay::server
