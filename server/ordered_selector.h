#pragma once
// The selectors lifo and fifo, see selectors.h.
//
// A whole buffer stands in its table in the order of insertion: a batch that may draw all of it walks that, and nothing is kept
// here. The first batch that must pass over some makes lists of the items by cohort and number, O(items) once, kept from then on;
// views, and buffers with a lease, have them from the start (an older item may join). Such a batch is merged from the lists of the
// cohorts that it may draw, so that what is withheld is never met, be it all but the last of a million.
//
// A draw O(1) in the walk; from lists O(cohorts) a batch and O(log cohorts) a draw. OnInsert O(1) of the newest, else O(log n).

#include <cstdint>
#include <map>
#include <vector>

#include "server/selectors.h"

namespace replay::server {

class Ordered final : public Selector {
 public:
  Ordered(const ItemTable* items, bool newest_first, bool of_view)
      : items_(items), newest_first_(newest_first), of_view_(of_view), keeps_lists_(of_view) {}

  void OnInsert(uint32_t slot) override;
  void OnRemove(uint32_t slot) override;
  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override;
  void Persist(Archive& archive) override;
  uint64_t memory_bytes() const override;
  void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const override;

 private:
  using List = std::map<uint64_t, uint32_t>;  // slots by number
  // The next to draw of a list.
  struct Head {
    List::const_iterator at;
    const List* list;
  };
  void Merge(uint32_t count, const Drawable& drawable, std::vector<uint32_t>* slots);

  const ItemTable* const items_;
  const bool newest_first_;
  bool of_view_, keeps_lists_;
  std::vector<List> lists_;  // by cohort
  uint64_t size_ = 0;        // of all lists
  std::vector<Head> heads_;  // of the batch at hand, kept for its memory
};

}  // namespace replay::server
