#include "server/ordered_selector.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/check.h"

namespace replay::server {

void Ordered::OnInsert(uint32_t slot) {
  if (!keeps_lists_) return;
  const Item& item = (*items_)[slot];
  if (item.cohort >= lists_.size()) lists_.resize(item.cohort + 1);
  List& list = lists_[item.cohort];
  list.emplace_hint(list.end(), item.number, slot);  // It is mostly the newest: O(1) then.
  ++size_;
}

void Ordered::OnRemove(uint32_t slot) {
  const Item& item = (*items_)[slot];
  if (item.cohort < lists_.size()) size_ -= lists_[item.cohort].erase(item.number);
}

void Ordered::Draw(uint32_t count, const Drawable& drawable, Random*, Picks* picks) {
  picks->probabilities.clear();
  picks->probability = 1;
  picks->slots.clear();
  if (!of_view_ && drawable.in_window == items_->live()) {
    for (uint32_t slot = newest_first_ ? items_->newest() : items_->oldest(); picks->slots.size() < count;) {
      picks->slots.push_back(slot);
      slot = newest_first_ ? (*items_)[slot].older : (*items_)[slot].newer;
    }
    return;
  }
  if (!std::exchange(keeps_lists_, true))
    for (uint32_t slot = items_->oldest(); slot != kNoSlot; slot = (*items_)[slot].newer)
      if (drawable.cohorts->OfCurrentEpoch((*items_)[slot].cohort)) OnInsert(slot);
  Merge(count, drawable, &picks->slots);
}

void Ordered::Merge(uint32_t count, const Drawable& drawable, std::vector<uint32_t>* slots) {
  heads_.clear();
  for (uint32_t cohort = 0; cohort < lists_.size(); ++cohort) {
    const List& list = lists_[cohort];
    if (list.empty() || !drawable.cohorts->MayDraw(cohort, drawable.window)) continue;
    heads_.push_back({newest_first_ ? std::prev(list.end()) : list.begin(), &list});
  }
  const auto is_later = [this](const Head& a, const Head& b) {
    return newest_first_ ? a.at->first < b.at->first : a.at->first > b.at->first;
  };
  std::make_heap(heads_.begin(), heads_.end(), is_later);
  while (slots->size() < count) {
    std::pop_heap(heads_.begin(), heads_.end(), is_later);
    Head& head = heads_.back();
    slots->push_back(head.at->second);
    if (head.at == (newest_first_ ? head.list->begin() : std::prev(head.list->end()))) {
      heads_.pop_back();
      continue;
    }
    if (newest_first_)
      --head.at;
    else
      ++head.at;
    std::push_heap(heads_.begin(), heads_.end(), is_later);
  }
}

void Ordered::Persist(Archive& archive) {
  archive(of_view_, keeps_lists_);
  const uint64_t lists = archive.Count(lists_.size());
  if (archive.loading()) lists_.resize(lists);
  for (List& list : lists_) {
    if (!archive.loading()) {
      archive.Count(list.size());
      for (auto& [number, slot] : list) archive(slot);
      continue;
    }
    for (uint64_t left = archive.Count(0); left > 0 && !archive.failed(); --left, ++size_) {
      uint32_t slot = kNoSlot;
      archive(slot);
      if (!archive.failed()) list.emplace_hint(list.end(), (*items_)[slot].number, slot);
    }
  }
}

uint64_t Ordered::memory_bytes() const {
  constexpr uint64_t kOfNode = 48;  // about what a node takes
  return size_ * kOfNode + lists_.capacity() * sizeof(List) + heads_.capacity() * sizeof(Head);
}

void Ordered::CheckInvariants(const Cohorts& cohorts, uint64_t expected) const {
  if (!keeps_lists_) return;
  uint64_t held = 0;
  for (uint32_t cohort = 0; cohort < lists_.size(); ++cohort) {
    held += lists_[cohort].size();
    for (const auto& [number, slot] : lists_[cohort])
      CHECK((*items_)[slot].number == number && (*items_)[slot].cohort == cohort && cohorts.OfCurrentEpoch(cohort))
          << "item " << number;
  }
  CHECK(held == expected && held == size_) << held << " in the selector, expected " << expected;
}

}  // namespace replay::server
