#pragma once
// The selectors that look at what was drawn before: epoch and unused_first, see selectors.h.
//
// Draw only chooses; Commit (of epoch) and OnDrawn (of unused_first) note what was handed out. A batch runs through one or more stages, each over a set of items that is
// drawn from without replacement until it is exhausted: for epoch what the pass has not seen, then everything; for unused_first
// what was drawn least often, which by then has been drawn once more, with what was already drawn so often.

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/selectors.h"

namespace replay::server {

// Lists of slots one behind the other, drawn from without replacement and without a change to them.
class Pool {
 public:
  void Clear();
  void Add(std::span<const uint32_t> slots);
  uint64_t size() const { return size_; }
  // Appends `count` <= size() different slots, in random order. O(log lists) each.
  void Choose(uint64_t count, Random* random, std::vector<uint32_t>* slots);

 private:
  uint32_t At(uint64_t position) const;

  std::vector<std::span<const uint32_t>> lists_;
  std::vector<uint64_t> ends_;  // of each list, in the pool
  uint64_t size_ = 0;
  std::unordered_map<uint64_t, uint64_t> displaced_;  // a Fisher-Yates shuffle, as far as it has moved anything
};

class Epoch final : public Selector {
 public:
  explicit Epoch(const ItemTable* items) : items_(items) {}

  void OnInsert(uint32_t slot) override;
  void OnRemove(uint32_t slot) override;
  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override;
  void Commit(const Picks& picks) override;
  void Persist(Archive& archive) override;
  uint64_t memory_bytes() const override;
  void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const override;

 private:
  struct List {
    std::vector<uint32_t> slots;  // unseen in this pass, then seen
    uint32_t unseen = 0;
    void Persist(Archive& archive) { archive(slots, unseen); }
  };
  void MarkSeen(uint32_t slot);
  void Swap(List* list, uint32_t a, uint32_t b);

  const ItemTable* const items_;
  Positions positions_;      // in its cohort
  std::vector<List> lists_;  // by cohort
  Pool pool_;
  uint64_t last_stage_ = 0;   // Of the last Draw: picks from here on are of its last pass …
  bool begins_pass_ = false;  // … which began within the batch.
};

class UnusedFirst final : public Selector {
 public:
  explicit UnusedFirst(const ItemTable* items) : items_(items) {}

  void OnInsert(uint32_t slot) override;
  void OnRemove(uint32_t slot) override;
  void OnDrawn(std::span<const uint32_t> slots) override;
  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override;
  void Persist(Archive& archive) override;
  uint64_t memory_bytes() const override;
  void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const override;

 private:
  using Level = std::map<uint32_t, std::vector<uint32_t>>;  // slots by cohort
  void Put(uint32_t slot, uint32_t level);
  void Take(uint32_t slot);

  const ItemTable* const items_;
  Positions positions_;                      // in its cohort
  std::map<uint32_t, Level> levels_;         // by number of draws; none is empty
  SegmentedArray<uint32_t, 4096> level_of_;  // by slot
  Pool pool_;
};

}  // namespace replay::server
