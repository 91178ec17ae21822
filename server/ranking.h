#pragma once
// Ranking: the items that retention `best` keeps beyond the fresh ones, by reward and, among equal ones, by age: the worst is the
// one of the lowest reward, the oldest of those. A heap of four branches that knows where each item stands. Insert and Erase
// O(log n), worst O(1); 4 bytes an item in it and 4 an item of the buffer. Belongs to its buffer's thread.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/item_table.h"
#include "server/selectors.h"

namespace replay::server {

class Ranking {
 public:
  explicit Ranking(const ItemTable* items) : items_(items) {}

  void Insert(uint32_t slot) {
    positions_.Add(slot, size());
    heap_.push_back(slot);
    Rise(size() - 1);
  }
  // Before its reward changes. Nothing if it is not in the ranking, as when retention has just become `best`.
  void Erase(uint32_t slot) {
    const uint32_t position = positions_[slot];
    if (position == kNoPosition) return;
    positions_.Remove(slot);
    const uint32_t last = heap_.back();
    heap_.pop_back();
    if (last == slot) return;
    Put(position, last);
    Rise(position);
    Sink(position);
  }
  void Clear() {
    for (const uint32_t slot : heap_) positions_.Remove(slot);
    heap_.clear();
  }
  uint32_t worst() const { return heap_.front(); }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }
  void Persist(Archive& archive) {
    archive(heap_);
    for (uint32_t at = 0; archive.loading() && at < size(); ++at) positions_.Add(heap_[at], at);
  }
  uint64_t memory_bytes() const { return heap_.capacity() * sizeof(uint32_t) + positions_.memory_bytes(); }
  // Whether each item is where it is thought to be, below one that is worse. O(size).
  bool IsInOrder() const {
    for (uint32_t at = 0; at < size(); ++at)
      if (positions_[heap_[at]] != at || (at > 0 && IsWorse(heap_[at], heap_[(at - 1) / kBranches]))) return false;
    return true;
  }

 private:
  static constexpr uint32_t kBranches = 4;

  bool IsWorse(uint32_t a, uint32_t b) const {
    const Item &first = (*items_)[a], &second = (*items_)[b];
    return first.reward != second.reward ? first.reward < second.reward : first.number < second.number;
  }
  void Put(uint32_t position, uint32_t slot) {
    heap_[position] = slot;
    positions_.Move(slot, position);
  }
  void Rise(uint32_t position) {
    const uint32_t slot = heap_[position];
    for (uint32_t above; position > 0; position = above) {
      above = (position - 1) / kBranches;
      if (!IsWorse(slot, heap_[above])) break;
      Put(position, heap_[above]);
    }
    Put(position, slot);
  }
  void Sink(uint32_t position) {
    const uint32_t slot = heap_[position];
    for (;;) {
      const uint64_t first = uint64_t{position} * kBranches + 1;
      if (first >= heap_.size()) break;
      auto least = static_cast<uint32_t>(first);
      const uint64_t end = std::min<uint64_t>(first + kBranches, heap_.size());
      for (uint32_t at = least + 1; at < end; ++at)
        if (IsWorse(heap_[at], heap_[least])) least = at;
      if (!IsWorse(heap_[least], slot)) break;
      Put(position, heap_[least]);
      position = least;
    }
    Put(position, slot);
  }

  const ItemTable* const items_;
  std::vector<uint32_t> heap_;
  Positions positions_;
};

}  // namespace replay::server
