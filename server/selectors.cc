#include "server/selectors.h"

#include <utility>

#include "server/check.h"
#include "server/ordered_selector.h"
#include "server/pass_selectors.h"
#include "server/weighted_selector.h"

namespace replay::server {
namespace {

// What the two uniform selectors share: the dense array.
class DenseSelector : public Selector {
 public:
  explicit DenseSelector(const ItemTable* items) : items_(items) {}

  void OnInsert(uint32_t slot) override {
    slots_.Reserve(uint64_t{size_} + 1);
    slots_[size_] = slot;
    positions_.Add(slot, size_++);
  }

  void OnRemove(uint32_t slot) override {
    const uint32_t position = positions_[slot];
    if (position == kNoPosition) return;
    const uint32_t last = slots_[--size_];
    slots_[position] = last;
    positions_.Move(last, position);
    positions_.Remove(slot);
  }

  void Persist(Archive& archive) override {
    archive(size_);
    archive.Entries(slots_, size_);
    if (archive.failed()) size_ = 0;
    for (uint32_t position = 0; archive.loading() && position < size_; ++position) positions_.Add(slots_[position], position);
  }

  uint64_t memory_bytes() const override { return slots_.memory_bytes() + positions_.memory_bytes(); }

  void CheckInvariants(const Cohorts& cohorts, uint64_t expected) const override {
    CHECK(size_ == expected) << size_ << " in the selector, expected " << expected;
    for (uint32_t position = 0; position < size_; ++position) {
      const Item& item = (*items_)[slots_[position]];
      CHECK(item.number != 0 && positions_[slots_[position]] == position) << "position " << position;
      CHECK(cohorts.OfCurrentEpoch(item.cohort)) << "item " << item.number;
    }
  }

 protected:
  static std::vector<uint32_t>* Begin(uint32_t count, const Drawable& drawable, Picks* picks) {
    picks->probabilities.clear();
    picks->probability = 1.0 / static_cast<double>(drawable.count);
    picks->slots.resize(count);
    return &picks->slots;
  }
  void Swap(uint32_t a, uint32_t b) {
    std::swap(slots_[a], slots_[b]);
    positions_.Move(slots_[a], a);
    positions_.Move(slots_[b], b);
  }

  const ItemTable* const items_;
  SegmentedArray<uint32_t, 4096, 1u << 20> slots_;  // [size_]; a slab of it is half a million items
  Positions positions_;
  uint32_t size_ = 0;
};

class Uniform final : public DenseSelector {
 public:
  using DenseSelector::DenseSelector;

  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override {
    std::vector<uint32_t>* const slots = Begin(count, drawable, picks);
    if (drawable.count == size_) {
      // Positions first, so that the cache misses of the array overlap.
      for (uint32_t& pick : *slots) {
        pick = random->Below(size_);
        __builtin_prefetch(&slots_[pick]);
      }
      for (uint32_t& pick : *slots) pick = slots_[pick];
      return;
    }
    uint32_t pool = size_;
    for (uint32_t& pick : *slots) {
      uint32_t position = random->Below(pool);
      while (!drawable.MayDraw((*items_)[slots_[position]])) {
        Swap(position, --pool);
        position = random->Below(pool);
      }
      pick = slots_[position];
    }
  }
};

// Partial Fisher-Yates: the batch gathers at the front of the array.
class UniformDistinct final : public DenseSelector {
 public:
  using DenseSelector::DenseSelector;

  void Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) override {
    std::vector<uint32_t>* const slots = Begin(count, drawable, picks);
    if (drawable.count == size_) {
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t pick = i + random->Below(size_ - i);
        (*slots)[i] = pick;
        __builtin_prefetch(&slots_[pick], 1);
      }
      // An earlier swap may bring another item there; then its row is simply not warm.
      for (uint32_t i = 0; i < count; ++i) {
        items_->Prefetch(slots_[(*slots)[i]]);
        items_->Prefetch(slots_[i]);
      }
      for (uint32_t i = 0; i < count; ++i) {
        Swap(i, (*slots)[i]);
        (*slots)[i] = slots_[i];
      }
      return;
    }
    uint32_t pool = size_;
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t position = i + random->Below(pool - i);
      while (!drawable.MayDraw((*items_)[slots_[position]])) {
        Swap(position, --pool);
        position = i + random->Below(pool - i);
      }
      Swap(i, position);
      (*slots)[i] = slots_[i];
    }
  }
};

}  // namespace

void Selector::OnPriority(uint32_t) {}
void Selector::OnDrawn(std::span<const uint32_t>) {}
uint64_t Selector::CountDrawable(const Cohorts&, const StepWindow&, uint64_t in_window) const { return in_window; }
void Selector::Commit(const Picks&) {}

std::unique_ptr<Selector> MakeSelector(const SelectorOptions& options, const ItemTable* items) {
  switch (options.kind) {
    case SelectorKind::kUniform:
      return std::make_unique<Uniform>(items);
    case SelectorKind::kUniformDistinct:
      return std::make_unique<UniformDistinct>(items);
    case SelectorKind::kLifo:
    case SelectorKind::kFifo:
      return std::make_unique<Ordered>(items, options.kind == SelectorKind::kLifo, options.of_view);
    case SelectorKind::kEpoch:
      return std::make_unique<Epoch>(items);
    case SelectorKind::kUnusedFirst:
      return std::make_unique<UnusedFirst>(items);
    case SelectorKind::kPrioritized:
      return std::make_unique<Weighted>(items, options.priority_exponent, options.staleness_decay);
    case SelectorKind::kRecency:
      return std::make_unique<Weighted>(items, 0, options.staleness_decay);
  }
  CHECK(false) << "selector " << static_cast<int>(options.kind);
  std::abort();
}

}  // namespace replay::server
