#include "server/pass_selectors.h"

#include <algorithm>
#include <utility>

#include "server/check.h"

namespace replay::server {

// --- Pool ----------------------------------------------------------------------------------------------------------------

void Pool::Clear() {
  lists_.clear();
  ends_.clear();
  size_ = 0;
}

void Pool::Add(std::span<const uint32_t> slots) {
  if (slots.empty()) return;
  size_ += slots.size();
  lists_.push_back(slots);
  ends_.push_back(size_);
}

uint32_t Pool::At(uint64_t position) const {
  const auto list = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
  return lists_[list][position - (ends_[list] - lists_[list].size())];
}

void Pool::Choose(uint64_t count, Random* random, std::vector<uint32_t>* slots) {
  displaced_.clear();
  const auto at = [&](uint64_t position) {
    const auto moved = displaced_.find(position);
    return moved == displaced_.end() ? position : moved->second;
  };
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t picked = i + random->Below(static_cast<uint32_t>(size_ - i));
    slots->push_back(At(at(picked)));
    displaced_[picked] = at(i);
  }
}

// --- Epoch ---------------------------------------------------------------------------------------------------------------

void Epoch::Swap(List* list, uint32_t a, uint32_t b) {
  std::swap(list->slots[a], list->slots[b]);
  positions_.Move(list->slots[a], a);
  positions_.Move(list->slots[b], b);
}

void Epoch::OnInsert(uint32_t slot) {
  const Item& item = (*items_)[slot];
  if (item.cohort >= lists_.size()) lists_.resize(item.cohort + 1);
  List& list = lists_[item.cohort];
  const auto position = static_cast<uint32_t>(list.slots.size());
  positions_.Add(slot, position);
  list.slots.push_back(slot);
  Swap(&list, position, list.unseen++);
}

void Epoch::OnRemove(uint32_t slot) {
  if (!positions_.Has(slot)) return;
  List& list = lists_[(*items_)[slot].cohort];
  if (positions_[slot] < list.unseen) Swap(&list, positions_[slot], --list.unseen);
  Swap(&list, positions_[slot], static_cast<uint32_t>(list.slots.size()) - 1);
  list.slots.pop_back();
  positions_.Remove(slot);
  if (list.slots.empty()) list = List();  // The cohort may never come back.
}

void Epoch::Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) {
  picks->slots.clear();
  picks->probabilities.clear();
  begins_pass_ = false;
  last_stage_ = 0;
  const auto fill = [&](bool all) {
    pool_.Clear();
    for (uint32_t cohort = 0; cohort < lists_.size(); ++cohort) {
      const List& list = lists_[cohort];
      if (!list.slots.empty() && drawable.cohorts->MayDraw(cohort, drawable.window))
        pool_.Add({list.slots.data(), all ? list.slots.size() : list.unseen});
    }
  };
  fill(/*all=*/false);
  while (picks->slots.size() < count) {
    if (pool_.size() == 0 || !picks->slots.empty()) {
      if (!begins_pass_) fill(/*all=*/true);
      begins_pass_ = true;
      last_stage_ = picks->slots.size();
    }
    const uint64_t taken = std::min<uint64_t>(count - picks->slots.size(), pool_.size());
    picks->probabilities.resize(picks->slots.size() + taken, 1.0 / static_cast<double>(pool_.size()));
    pool_.Choose(taken, random, &picks->slots);
  }
}

void Epoch::MarkSeen(uint32_t slot) {
  List& list = lists_[(*items_)[slot].cohort];
  if (positions_[slot] < list.unseen) Swap(&list, positions_[slot], --list.unseen);
}

void Epoch::Commit(const Picks& picks) {
  if (begins_pass_)
    for (List& list : lists_) list.unseen = static_cast<uint32_t>(list.slots.size());
  for (size_t i = last_stage_; i < picks.slots.size(); ++i) MarkSeen(picks.slots[i]);
}

void Epoch::Persist(Archive& archive) {
  archive(lists_);
  if (!archive.loading()) return;
  for (const List& list : lists_)
    for (uint32_t position = 0; position < list.slots.size(); ++position) positions_.Add(list.slots[position], position);
}

uint64_t Epoch::memory_bytes() const {
  uint64_t bytes = positions_.memory_bytes() + lists_.capacity() * sizeof(List);
  for (const List& list : lists_) bytes += list.slots.capacity() * sizeof(uint32_t);
  return bytes;
}

void Epoch::CheckInvariants(const Cohorts& cohorts, uint64_t expected) const {
  uint64_t held = 0;
  for (uint32_t cohort = 0; cohort < lists_.size(); ++cohort) {
    const List& list = lists_[cohort];
    CHECK(list.unseen <= list.slots.size());
    held += list.slots.size();
    for (uint32_t position = 0; position < list.slots.size(); ++position) {
      const Item& item = (*items_)[list.slots[position]];
      CHECK(item.number != 0 && item.cohort == cohort && positions_[list.slots[position]] == position) << "cohort " << cohort;
      CHECK(cohorts.OfCurrentEpoch(cohort)) << "item " << item.number;
    }
  }
  CHECK(held == expected) << held << " in the selector, expected " << expected;
}

// --- UnusedFirst ---------------------------------------------------------------------------------------------------------

void UnusedFirst::Put(uint32_t slot, uint32_t level) {
  std::vector<uint32_t>& list = levels_[level][(*items_)[slot].cohort];
  positions_.Add(slot, static_cast<uint32_t>(list.size()));
  list.push_back(slot);
  level_of_[slot] = level;
}

void UnusedFirst::Take(uint32_t slot) {
  const auto level = levels_.find(level_of_[slot]);
  const auto list = level->second.find((*items_)[slot].cohort);
  const uint32_t last = list->second.back();
  list->second[positions_[slot]] = last;
  positions_.Move(last, positions_[slot]);
  list->second.pop_back();
  positions_.Remove(slot);
  if (list->second.empty()) level->second.erase(list);
  if (level->second.empty()) levels_.erase(level);
}

void UnusedFirst::OnInsert(uint32_t slot) {
  level_of_.Reserve(uint64_t{slot} + 1);
  Put(slot, (*items_)[slot].draws);
}

void UnusedFirst::OnRemove(uint32_t slot) {
  if (positions_.Has(slot)) Take(slot);
}

void UnusedFirst::Draw(uint32_t count, const Drawable& drawable, Random* random, Picks* picks) {
  picks->slots.clear();
  picks->probabilities.clear();
  pool_.Clear();
  uint32_t draws = 0;  // of all that are in the pool
  auto next = levels_.begin();
  while (picks->slots.size() < count) {
    if (pool_.size() == 0) draws = next->first;
    for (; next != levels_.end() && next->first <= draws; ++next)
      for (const auto& [cohort, slots] : next->second)
        if (drawable.cohorts->MayDraw(cohort, drawable.window)) pool_.Add(slots);
    if (pool_.size() == 0) continue;
    const uint64_t taken = std::min<uint64_t>(count - picks->slots.size(), pool_.size());
    picks->probabilities.resize(picks->slots.size() + taken, 1.0 / static_cast<double>(pool_.size()));
    pool_.Choose(taken, random, &picks->slots);
    ++draws;
  }
}

void UnusedFirst::OnDrawn(std::span<const uint32_t> slots) {
  for (const uint32_t slot : slots) {
    if (!positions_.Has(slot)) continue;
    Take(slot);
    Put(slot, (*items_)[slot].draws);
  }
}

void UnusedFirst::Persist(Archive& archive) {
  archive(levels_);
  if (!archive.loading()) return;
  for (const auto& [draws, level] : levels_) {
    for (const auto& [cohort, slots] : level) {
      for (uint32_t position = 0; position < slots.size(); ++position) {
        level_of_.Reserve(uint64_t{slots[position]} + 1);
        level_of_[slots[position]] = draws;
        positions_.Add(slots[position], position);
      }
    }
  }
}

uint64_t UnusedFirst::memory_bytes() const {
  constexpr uint64_t kOfNode = 64;  // about what a node of either map takes
  uint64_t bytes = level_of_.memory_bytes() + positions_.memory_bytes();
  for (const auto& [draws, level] : levels_) {
    bytes += kOfNode;
    for (const auto& [cohort, slots] : level) bytes += kOfNode + slots.capacity() * sizeof(uint32_t);
  }
  return bytes;
}

void UnusedFirst::CheckInvariants(const Cohorts& cohorts, uint64_t expected) const {
  uint64_t held = 0;
  for (const auto& [draws, level] : levels_) {
    CHECK(!level.empty()) << "level " << draws;
    for (const auto& [cohort, slots] : level) {
      CHECK(!slots.empty()) << "level " << draws << ", cohort " << cohort;
      CHECK(cohorts.OfCurrentEpoch(cohort)) << "cohort " << cohort;
      held += slots.size();
      for (uint32_t position = 0; position < slots.size(); ++position) {
        const Item& item = (*items_)[slots[position]];
        CHECK(item.number != 0 && item.draws == draws && item.cohort == cohort && positions_[slots[position]] == position)
            << "item " << item.number << " with " << item.draws << " draws on level " << draws;
      }
    }
  }
  CHECK(held == expected) << held << " in the selector, expected " << expected;
}

}  // namespace replay::server
