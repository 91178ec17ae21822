#include "server/weighted_selector.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "server/check.h"

namespace replay::server {

// --- SumTree -------------------------------------------------------------------------------------------------------------

void SumTree::Rebuild(uint32_t capacity) {
  std::vector<double> sums(2 * uint64_t{capacity});
  for (uint32_t leaf = 0; leaf < size(); ++leaf) sums[capacity + leaf] = leaf < capacity_ ? weight(leaf) : 0;
  sums_ = std::move(sums);
  capacity_ = capacity;
  SumUp();
}

void SumTree::SumUp() {
  for (uint32_t node = capacity_; node-- > 1;) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
}

void SumTree::Set(uint32_t leaf, double weight) {
  uint32_t node = capacity_ + leaf;
  sums_[node] = weight;
  while ((node /= 2) > 0) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
}

void SumTree::Append(uint32_t slot, double weight) {
  if (size() == capacity_) {
    slots_.reserve(capacity_ + capacity_ / 4 + 2);
    Rebuild(capacity_ + capacity_ / 4 + 2);
  }
  slots_.push_back(slot);
  Set(size() - 1, weight);
}

void SumTree::Remove(uint32_t leaf) {
  const uint32_t last = size() - 1;
  slots_[leaf] = slots_[last];
  Set(leaf, weight(last));
  Set(last, 0);
  slots_.pop_back();
  if (size() < capacity_ / 2) {
    slots_.shrink_to_fit();
    Rebuild(std::max(2u, size() + size() / 4));
  }
}

uint32_t SumTree::Find(double share) const {
  double left = share * sums_[1];
  uint32_t node = 1;
  while (node < capacity_) {
    node *= 2;
    // Rounding may lead past the last leaf that has weight: then the nearest one before.
    if (sums_[node] > 0 && (left < sums_[node] || sums_[node + 1] <= 0)) continue;
    left -= sums_[node];
    ++node;
  }
  return node - capacity_;
}

void SumTree::CheckInvariants() const {
  for (uint32_t node = 1; node < capacity_; ++node) CHECK(sums_[node] == sums_[2 * node] + sums_[2 * node + 1]);
  for (uint32_t leaf = size(); leaf < capacity_; ++leaf) CHECK(weight(leaf) == 0);
}

// --- Weighted ------------------------------------------------------------------------------------------------------------

double Weighted::WeightOf(uint32_t slot) const {
  const double priority = items_->priority(slot);
  return exponent_ == 0 ? 1 : exponent_ == 1 ? priority : std::pow(priority, exponent_);
}

void Weighted::OnInsert(uint32_t slot) {
  const Item& item = (*items_)[slot];
  if (item.cohort >= parts_.size()) parts_.resize(item.cohort + 1);
  Part& part = parts_[item.cohort];
  positions_.Add(slot, part.tree.size());
  const double weight = WeightOf(slot);
  part.tree.Append(slot, weight);
  part.weightless += weight == 0;
  weightless_ += weight == 0;
}

void Weighted::OnRemove(uint32_t slot) {
  const uint32_t leaf = positions_[slot];
  if (leaf == kNoPosition) return;
  Part& part = parts_[(*items_)[slot].cohort];
  const bool weightless = part.tree.weight(leaf) == 0;
  part.weightless -= weightless;
  weightless_ -= weightless;
  part.tree.Remove(leaf);
  if (leaf < part.tree.size()) positions_.Move(part.tree.slot(leaf), leaf);
  positions_.Remove(slot);
  if (part.tree.size() == 0) part = Part();
}

void Weighted::OnPriority(uint32_t slot) {
  const uint32_t leaf = positions_[slot];
  if (leaf == kNoPosition) return;
  Part& part = parts_[(*items_)[slot].cohort];
  const double before = part.tree.weight(leaf), weight = WeightOf(slot);
  part.tree.Set(leaf, weight);
  const int change = (weight == 0) - (before == 0);
  part.weightless += static_cast<uint32_t>(change);
  weightless_ += static_cast<uint64_t>(static_cast<int64_t>(change));
}

uint64_t Weighted::CountDrawable(const Cohorts& cohorts, const StepWindow& window, uint64_t in_window) const {
  if (weightless_ == 0) return in_window;
  for (uint32_t cohort = 0; cohort < parts_.size(); ++cohort)
    if (parts_[cohort].weightless > 0 && cohorts.MayDraw(cohort, window)) in_window -= parts_[cohort].weightless;
  return in_window;
}

void Weighted::Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) {
  shares_.clear();
  int64_t least = INT64_MAX;  // staleness; the factors are relative to it, so that not all of them vanish
  for (uint32_t cohort = 0; cohort < parts_.size(); ++cohort) {
    if (!(parts_[cohort].tree.sum() > 0) || !drawable.cohorts->MayDraw(cohort, drawable.window)) continue;
    shares_.push_back({.cohort = cohort, .factor = 1, .end = 0});
    least = std::min(least, drawable.cohorts->StepsOf(cohort, drawable.window.step).staleness());
  }
  double total = 0;
  for (Share& share : shares_) {
    if (decay_ > 0) {
      const int64_t staleness = drawable.cohorts->StepsOf(share.cohort, drawable.window.step).staleness();
      share.factor = std::exp(-(static_cast<double>(staleness) - static_cast<double>(least)) / decay_);
    }
    total += share.factor * parts_[share.cohort].tree.sum();
    share.end = total;
  }
  picks->slots.clear();
  picks->probabilities.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const double at = random->Unit() * total;
    auto share = std::upper_bound(shares_.begin(), shares_.end(), at, [](double x, const Share& each) { return x < each.end; });
    if (share == shares_.end()) {  // by rounding
      do --share;
      while (share != shares_.begin() && share->end == std::prev(share)->end);
    }
    const SumTree& tree = parts_[share->cohort].tree;
    const uint32_t leaf = tree.Find(random->Unit());
    picks->slots.push_back(tree.slot(leaf));
    picks->probabilities.push_back(tree.weight(leaf) * share->factor / total);
  }
}

void Weighted::Persist(Archive& archive) {
  const uint64_t count = archive.Count(parts_.size());
  if (archive.loading()) parts_.resize(count);
  for (Part& part : parts_) {
    part.tree.Persist(archive, [this](uint32_t slot) { return WeightOf(slot); });
    if (!archive.loading() || archive.failed()) continue;
    for (uint32_t leaf = 0; leaf < part.tree.size(); ++leaf) {
      positions_.Add(part.tree.slot(leaf), leaf);
      part.weightless += part.tree.weight(leaf) == 0;
    }
    weightless_ += part.weightless;
  }
}

uint64_t Weighted::memory_bytes() const {
  uint64_t bytes = positions_.memory_bytes() + parts_.capacity() * sizeof(Part) + shares_.capacity() * sizeof(Share);
  for (const Part& part : parts_) bytes += part.tree.memory_bytes();
  return bytes;
}

void Weighted::CheckInvariants(const Cohorts& cohorts, uint64_t expected) const {
  uint64_t held = 0, weightless = 0;
  for (uint32_t cohort = 0; cohort < parts_.size(); ++cohort) {
    const Part& part = parts_[cohort];
    part.tree.CheckInvariants();
    held += part.tree.size();
    weightless += part.weightless;
    uint32_t of_part = 0;
    for (uint32_t leaf = 0; leaf < part.tree.size(); ++leaf) {
      const uint32_t slot = part.tree.slot(leaf);
      const Item& item = (*items_)[slot];
      CHECK(item.number != 0 && item.cohort == cohort && positions_[slot] == leaf) << "cohort " << cohort;
      CHECK(cohorts.OfCurrentEpoch(cohort)) << "item " << item.number;
      CHECK(part.tree.weight(leaf) == WeightOf(slot)) << "item " << item.number;
      of_part += part.tree.weight(leaf) == 0;
    }
    CHECK(of_part == part.weightless) << "cohort " << cohort;
  }
  CHECK(weightless == weightless_);
  CHECK(held == expected) << held << " in the selector, expected " << expected;
}

}  // namespace replay::server
