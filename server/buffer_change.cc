// What a Buffer does when something changes that is not an insert or a draw: Update, Alter, OnPublish, OnTime.

#include <algorithm>
#include <utility>

#include "server/buffer_state.h"

namespace replay::server {

UpdateOutcome Buffer::Update(const ItemUpdate& update, uint32_t* revision) {
  State& s = *state_;
  *revision = 0;
  const uint32_t slot = s.items.Find(HashId(update.id));
  if (slot == kNoSlot) return UpdateOutcome::kNotThere;
  *revision = s.items.revision(slot);
  if (update.revision && *update.revision != *revision) return UpdateOutcome::kOtherRevision;
  *revision = s.items.NextRevision(slot);
  if (update.priority) {
    s.items.SetPriority(slot, *update.priority);
    s.selector->OnPriority(slot);
  }
  if (update.reward || update.correct) s.Rescore(slot, update);
  for (const auto& view : s.views) view->OnChange(slot);
  const Item& item = s.items[slot];
  if (item.positive && !s.ranks() && item.outcome() != Outcome::kCorrect) s.RemoveItem(slot, RemoveReason::kCapacity);
  s.Retain();
  return UpdateOutcome::kDone;
}

void Buffer::State::Rescore(uint32_t slot, const ItemUpdate& update) {
  Item& item = items[slot];
  const bool ranked = ranks() && item.positive;
  if (ranked) ranking.Erase(slot);
  item.reward = update.reward.value_or(item.reward);
  const Outcome before = item.outcome();
  if (update.correct) item.outcome_said = *update.correct != Outcome::kUnknown;
  const Outcome said = !item.outcome_said ? Outcome::kUnknown : update.correct.value_or(before);
  const Outcome outcome = retention.Decide(said, item.reward);
  item.outcome_bits = static_cast<uint32_t>(outcome);
  CountOutcome(&stored, before, -1);
  CountOutcome(&ceased, before);
  CountOutcome(&stored, outcome);
  CountOutcome(&became, outcome);
  if (ranked) ranking.Insert(slot);
}

void Buffer::State::MarkTime() {
  if (marks.empty() || now_ms >= marks.back().time_ms + options.max_age_ms / 1'000 + 1)
    marks.push_back({items.next_number(), now_ms});
}

bool Buffer::State::EvictAged() {
  // The last mark is of what is inserted until the next.
  uint64_t kept_from = 0;
  while (!marks.empty() && now_ms >= marks.front().time_ms + options.max_age_ms) {
    marks.pop_front();
    kept_from = marks.empty() ? items.next_number() : marks.front().first_number;
  }
  const uint64_t before = items.live();
  while (items.live() > 0 && items[items.oldest()].number < kept_from) RemoveItem(items.oldest(), RemoveReason::kAge);
  return items.live() < before;
}

bool Buffer::State::EvictStale() {
  const uint64_t before = items.live();
  for (uint32_t slot = items.oldest(), next = kNoSlot; cohorts.expired() > 0; slot = next) {
    next = items[slot].newer;
    if (cohorts.IsExpired(items[slot].cohort)) RemoveItem(slot, RemoveReason::kStaleness);
  }
  return items.live() < before;
}

bool Buffer::OnTime(uint64_t now_ms) {
  State& s = *state_;
  s.now_ms = std::max(s.now_ms, now_ms);
  if (s.options.max_age_ms == 0 || !s.EvictAged()) return false;
  s.Retain();
  return true;
}

void Buffer::State::FillSelector() {
  selector = MakeSelector({.kind = options.selector,
                           .priority_exponent = options.priority_exponent,
                           .staleness_decay = options.staleness_decay,
                           .of_view = false},
                          &items);
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer)
    if (cohorts.OfCurrentEpoch(items[slot].cohort)) selector->OnInsert(slot);
}

void Buffer::State::FillViews() {
  views.clear();
  for (const ViewOptions& view : options.views) views.push_back(std::make_unique<View>(view, &items, &sources));
  for (uint32_t slot = items.oldest(); slot != kNoSlot && !views.empty(); slot = items[slot].newer)
    if (cohorts.OfCurrentEpoch(items[slot].cohort))
      for (const auto& view : views) view->OnInsert(slot, FrameOf(slot).bytes());
}

std::string Buffer::Alter(BufferOptions options) {
  State& s = *state_;
  std::string error = CheckOptions(&options);
  if (!error.empty()) return error;
  const BufferOptions before = std::exchange(s.options, options);
  s.retention = Retention(options);
  s.pacing.Alter(options);
  if (options.seed != before.seed) s.random = Random(options.seed);
  s.cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  if (options.selector != before.selector || options.priority_exponent != before.priority_exponent ||
      options.staleness_decay != before.staleness_decay)
    s.FillSelector();
  if (options.views != before.views) s.FillViews();
  if (options.max_draws > 0 && (before.max_draws == 0 || options.max_draws < before.max_draws)) {
    std::vector<uint32_t> all;
    for (uint32_t slot = s.items.oldest(); slot != kNoSlot; slot = s.items[slot].newer) all.push_back(slot);
    s.RemoveDrawnOut(all);
  }
  if (options.evict_staleness != before.evict_staleness) {
    s.cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
    s.EvictStale();
  }
  if (options.max_age_ms == 0) s.marks.clear();
  // What was inserted before counts as inserted now.
  if (options.max_age_ms > 0 && before.max_age_ms == 0) s.marks = {{0, s.now_ms}};
  if (options.max_age_ms > 0) s.EvictAged();
  if (options.retention != before.retention) s.ReviewPositives();
  s.Retain();
  return "";
}

void Buffer::OnPublish(PolicyVersions::Snapshot versions) {
  State& s = *state_;
  if (s.cohorts.OnPublish(std::move(versions))) s.DropOlderEpochsFromSelector();
  if (s.cohorts.expired() > 0 && s.EvictStale()) s.Retain();
}

void Buffer::State::DropOlderEpochsFromSelector() {
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer) {
    if (cohorts.OfCurrentEpoch(items[slot].cohort)) continue;
    selector->OnRemove(slot);
    for (const auto& view : views) view->OnRemove(slot);
  }
}

}  // namespace replay::server
