#include "server/item_table.h"

#include "server/check.h"

namespace replay::server {

uint32_t ItemTable::Add(const TrajectoryFacts& facts, Outcome outcome) {
  uint32_t slot = free_;
  if (slot != kNoSlot) {
    free_ = items_[slot].newer;
  } else {
    slot = slot_count_++;
    items_.Reserve(slot_count_);
    identities_.Reserve(slot_count_);
  }
  Item& item = items_[slot];
  item = Item();
  item.number = next_number_++;
  item.token_count = facts.token_count;
  item.outcome_bits = static_cast<uint32_t>(outcome);
  item.reward = facts.reward;
  item.older = newest_;
  (newest_ == kNoSlot ? oldest_ : items_[newest_].newer) = slot;
  newest_ = slot;
  if (oldest_fresh_ == kNoSlot) oldest_fresh_ = slot;
  ++fresh_;
  identities_[slot] = {facts.id, facts.group};
  if (slot < with_late_) late_[slot] = Late();
  index_.Insert(HashOf(facts.id), slot);
  return slot;
}

ItemTable::Late& ItemTable::LateOf(uint32_t slot) {
  if (slot >= with_late_) {
    late_.Reserve(slot_count_);
    with_late_ = slot_count_;
  }
  return late_[slot];
}

void ItemTable::Remove(uint32_t slot) {
  Item& item = items_[slot];
  index_.Erase(HashOf(identities_[slot].id), slot);
  if (next_page_end_ > 0) {
    for (PageEnd& end : page_ends_)
      if (end.slot == slot) end.slot = item.older;
  }
  if (oldest_fresh_ == slot) oldest_fresh_ = item.newer;
  (item.older == kNoSlot ? oldest_ : items_[item.older].newer) = item.newer;
  (item.newer == kNoSlot ? newest_ : items_[item.newer].older) = item.older;
  --(item.positive ? positive_ : fresh_);
  item.number = 0;
  item.newer = free_;
  free_ = slot;
}

void ItemTable::MakePositive() {
  Item& item = items_[oldest_fresh_];
  item.positive = 1;
  oldest_fresh_ = item.newer;
  --fresh_;
  ++positive_;
}

void ItemTable::MakeFresh() {
  const uint32_t slot = oldest_fresh_ == kNoSlot ? newest_ : items_[oldest_fresh_].older;
  items_[slot].positive = 0;
  oldest_fresh_ = slot;
  --positive_;
  ++fresh_;
}

uint32_t ItemTable::FirstAfter(uint64_t number) const {
  if (oldest_ == kNoSlot || number < items_[oldest_].number) return oldest_;
  for (const PageEnd& end : page_ends_)
    if (end.number == number && number != 0) return end.slot == kNoSlot ? oldest_ : items_[end.slot].newer;
  if (number >= items_[newest_].number) return kNoSlot;
  uint32_t slot;
  if (number - items_[oldest_].number < items_[newest_].number - number) {
    for (slot = oldest_; items_[slot].number <= number;) slot = items_[slot].newer;
  } else {
    for (slot = newest_; items_[items_[slot].older].number > number;) slot = items_[slot].older;
  }
  return slot;
}

void ItemTable::RememberPage(uint64_t last_number, uint32_t last_slot) {
  page_ends_[next_page_end_++ % page_ends_.size()] = {last_number, last_slot};
}

void Item::Persist(Archive& archive) {
  uint32_t token_bits = token_count;
  auto bits = static_cast<uint8_t>(outcome_bits | positive << 2 | counted << 3 | outcome_said << 4 | zero_spread << 5 |
                                   held << 6 | has_tags << 7);
  archive(number, last_use_step, draws, cohort, token_bits, bits, reward, source, older, newer);
  if (!archive.loading()) return;
  token_count = token_bits & ((1u << 24) - 1);
  outcome_bits = bits & 3;
  positive = bits >> 2 & 1;
  counted = bits >> 3 & 1;
  outcome_said = bits >> 4 & 1;
  zero_spread = bits >> 5 & 1;
  held = bits >> 6 & 1;
  has_tags = bits >> 7 & 1;
}

void ItemTable::Persist(Archive& archive) {
  archive(slot_count_, with_late_, free_, oldest_, newest_, oldest_fresh_, positive_, fresh_, next_number_);
  archive.Entries(items_, slot_count_);
  archive.Entries(identities_, slot_count_);
  archive.Entries(late_, with_late_);
  if (!archive.loading() || archive.failed()) return;
  for (uint32_t slot = 0; slot < slot_count_; ++slot)
    if (items_[slot].number != 0) index_.Insert(HashOf(identities_[slot].id), slot);
}

void ItemTable::CheckInvariants() const {
  uint64_t live = 0, positive = 0, previous = 0;
  uint32_t before = kNoSlot;
  for (uint32_t slot = oldest_; slot != kNoSlot; before = slot, slot = items_[slot].newer) {
    const Item& item = items_[slot];
    CHECK(item.number > previous) << "item " << item.number << " follows " << previous;
    CHECK(item.older == before) << "item " << item.number;
    CHECK(Find(identities_[slot].id) == slot) << "item " << item.number;
    CHECK(!item.positive || live == positive) << "positive item " << item.number << " after a fresh one";
    CHECK(item.positive || live != positive || oldest_fresh_ == slot) << "item " << item.number;
    previous = item.number;
    positive += item.positive;
    ++live;
  }
  CHECK(before == newest_);
  CHECK(positive == positive_ && live - positive == fresh_) << positive << " positive of " << live;
  CHECK(fresh_ > 0 || oldest_fresh_ == kNoSlot);
  CHECK(previous < next_number_);
  CHECK(index_.size() == live) << index_.size() << " ids of " << live << " items";
  uint64_t unused = 0;
  for (uint32_t slot = free_; slot != kNoSlot; slot = items_[slot].newer) {
    CHECK(items_[slot].number == 0) << "slot " << slot;
    ++unused;
  }
  CHECK(unused + live == slot_count_) << unused << " free and " << live << " live of " << slot_count_;
}

}  // namespace replay::server
