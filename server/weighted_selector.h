#pragma once
// The selectors prioritized and recency, see selectors.h: with replacement, in proportion to
//
//   weight = priority^exponent · exp(-staleness / decay)        (Schaul et al. 2016, arXiv 1511.05952, for the first factor)
//
// Items of one cohort are equally stale, so each cohort has a sum tree over priority^exponent, and the second factor is applied
// to the sums when a batch is drawn: no weight is ever rewritten because time goes on. A sum is always that of its two parts, so
// no error adds up over changes. An item of priority 0 is never drawn (with exponent 0 its weight is 1).

#include <cstdint>
#include <vector>

#include "server/selectors.h"

namespace replay::server {

class SumTree {
 public:
  // Appends a leaf; its index is size() - 1.
  void Append(uint32_t slot, double weight);
  void Set(uint32_t leaf, double weight);
  // The last leaf takes its place.
  void Remove(uint32_t leaf);
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t slot(uint32_t leaf) const { return slots_[leaf]; }
  double weight(uint32_t leaf) const { return sums_[capacity_ + leaf]; }
  double sum() const { return capacity_ == 0 ? 0 : sums_[1]; }
  // The leaf at which the running sum passes `share` of sum(), in [0, 1); never one of weight 0. sum() > 0.
  uint32_t Find(double share) const;
  // `weight_of` a slot gives the leaves their weights.
  template <typename WeightOf>
  void Persist(Archive& archive, WeightOf weight_of) {
    archive(capacity_, slots_);
    if (!archive.loading()) return;
    if (archive.failed() || slots_.size() > capacity_) return archive.Fail();
    slots_.reserve(capacity_);
    sums_.assign(2 * uint64_t{capacity_}, 0);
    for (uint32_t leaf = 0; leaf < size(); ++leaf) sums_[capacity_ + leaf] = weight_of(slots_[leaf]);
    SumUp();
  }
  uint64_t memory_bytes() const { return sums_.capacity() * sizeof(double) + slots_.capacity() * sizeof(uint32_t); }
  // Dies with a message if a sum is not that of its parts.
  void CheckInvariants() const;

 private:
  void Rebuild(uint32_t capacity);
  void SumUp();  // from the leaves

  // Any number: a node's parts lie anywhere, but the sum at the root is that of all leaves once. A quarter of slack at most.
  uint32_t capacity_ = 0;
  std::vector<double> sums_;     // [2 * capacity]: the root at 1, the parts of node i at 2 i and 2 i + 1, leaves last
  std::vector<uint32_t> slots_;  // by leaf
};

class Weighted final : public Selector {
 public:
  // decay in gradient steps; 0: staleness does not matter.
  Weighted(const ItemTable* items, double exponent, double decay) : items_(items), exponent_(exponent), decay_(decay) {}

  void OnInsert(uint32_t slot) override;
  void OnRemove(uint32_t slot) override;
  void OnPriority(uint32_t slot) override;
  uint64_t CountDrawable(const Cohorts& cohorts, const StepWindow& window, uint64_t in_window) const override;
  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override;
  void Persist(Archive& archive) override;
  uint64_t memory_bytes() const override;
  void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const override;

 private:
  struct Part {
    SumTree tree;
    uint32_t weightless = 0;  // leaves of weight 0
  };
  double WeightOf(uint32_t slot) const;

  const ItemTable* const items_;
  Positions positions_;  // in its cohort
  const double exponent_, decay_;
  std::vector<Part> parts_;  // by cohort
  uint64_t weightless_ = 0;

  struct Share {
    uint32_t cohort;
    double factor;  // of its weights
    double end;     // running sum of the parts' weights
  };
  std::vector<Share> shares_;  // of the batch at hand, kept for its memory
};

}  // namespace replay::server
