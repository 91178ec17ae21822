// What a Buffer does when something changes that is not an insert or a draw: Update, Alter, OnPublish, OnTime.

#include <algorithm>
#include <utility>

#include "server/buffer_state.h"
#include "server/requests_archive.h"

namespace replay::server {

UpdateOutcome Buffer::Update(const ItemUpdate& update, uint32_t* revision) {
  State& s = *state_;
  *revision = 0;
  const uint32_t slot = s.items.Find(HashId(update.id));
  if (slot == kNoSlot) return UpdateOutcome::kNotThere;
  *revision = s.items.revision(slot);
  if (update.revision && *update.revision != *revision) return UpdateOutcome::kOtherRevision;
  *revision = s.items.NextRevision(slot);
  for (const Frame& column : update.columns) s.Number(column);
  const uint32_t unit = s.UnitOf(slot);
  const Item& row = s.units[unit];
  const bool ranked = update.reward && s.ranks() && row.positive;
  if (ranked) s.ranking.Erase(unit);
  if (update.priority) s.items.SetPriority(slot, *update.priority);
  if (update.reward || update.correct) s.Rescore(slot, update);
  s.WriteLate(slot, update);
  if (s.by_group() && (update.priority || update.reward || update.correct)) s.ReviewGroup(unit);
  if (ranked) s.ranking.Insert(unit);
  if (!row.held) {
    if (update.priority) s.selector->OnPriority(unit);
    if (!update.tags.empty() && s.IsInSelector(unit))
      for (const auto& view : s.ViewsOf(unit)) view->OnTags(unit, s.FrameOfUnit(unit));
    for (const auto& view : s.ViewsOf(unit)) view->OnChange(unit);
  }
  if (s.prompts) s.ReviewPrompts();
  if (row.positive && !s.ranks() && row.outcome() != Outcome::kCorrect) s.RemoveUnit(unit, RemoveReason::kCapacity);
  s.Retain();
  s.Note(Operation::kUpdate, update);
  return UpdateOutcome::kDone;
}

void Buffer::State::Rescore(uint32_t slot, const ItemUpdate& update) {
  Item& item = items[slot];
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
  if (prompts) prompts->OnRescore(slot, before);
}

void Buffer::State::SetPrompts() {
  const auto looks_at_prompts = [](const ViewOptions& view) {
    Filter filter;
    return Filter::Parse(view.filter, &filter).empty() && filter.LooksAtPrompts();
  };
  const bool linked = std::any_of(options.views.begin(), options.views.end(), looks_at_prompts);
  if (options.prompt_history == 0) return prompts.reset();
  if (!prompts) prompts = std::make_unique<Prompts>(options.prompt_history, linked, &items);
  prompts->SetMost(options.prompt_history);
  prompts->SetLinked(linked);
}

void Buffer::State::ReviewPrompts() {
  prompts->VisitChanged([this](uint32_t slot) {
    const uint32_t unit = UnitOf(slot);
    if (by_group() && groups.first(unit) != slot) return;  // A group is of the prompt of its first member.
    for (const auto& view : ViewsOf(unit)) view->OnPromptChange(unit);
  });
}

bool Buffer::History(const std::string& source, int64_t after, uint32_t limit, std::vector<PromptOutcomes>* page) const {
  const State& s = *state_;
  page->clear();
  const std::optional<uint16_t> number = s.sources.Find(source);
  return s.prompts && number && s.prompts->List(*number, after, limit, page);
}

void Buffer::State::MarkTime() {
  if (marks.empty() || now_ms >= marks.back().time_ms + options.max_age_ms / 1'000 + 1)
    marks.push_back({units.next_number(), now_ms});
}

bool Buffer::State::EvictAged() {
  // The last mark is of what is inserted until the next.
  uint64_t kept_from = 0;
  while (!marks.empty() && now_ms >= marks.front().time_ms + options.max_age_ms) {
    marks.pop_front();
    kept_from = marks.empty() ? units.next_number() : marks.front().first_number;
  }
  const uint64_t before = units.live();
  while (units.live() > 0 && units[units.oldest()].number < kept_from) RemoveUnit(units.oldest(), RemoveReason::kAge);
  return units.live() < before;
}

bool Buffer::State::EvictStale() {
  const uint64_t before = units.live();
  for (uint32_t unit = units.oldest(), next = kNoSlot; unit_cohorts.expired() > 0; unit = next) {
    next = units[unit].newer;
    if (unit_cohorts.IsExpired(units[unit].cohort) && !units[unit].held) RemoveUnit(unit, RemoveReason::kStaleness);
  }
  return units.live() < before;
}

bool Buffer::OnTime(uint64_t now_ms) {
  State& s = *state_;
  s.now_ms = std::max(s.now_ms, now_ms);
  bool changed = false;
  const size_t marks_before = s.marks.size();
  if (s.leases.size() > 0) {
    const uint64_t before = s.leases.size();
    const std::vector<Leases::Unit> ended = s.leases.CloseExpired(s.now_ms);
    s.expired_leases += before - s.leases.size();
    if (!ended.empty()) s.EndLease(ended, /*used=*/false);
    changed |= !ended.empty();
  }
  if (s.reservations.size() > 0) changed |= s.EndReservations();
  if (s.options.max_age_ms > 0) changed |= s.EvictAged();
  if (changed) s.Retain();
  if (changed || s.marks.size() != marks_before) s.Note(Operation::kTime);
  return changed;
}

void Buffer::State::FillSelector() {
  selector = MakeSelector({.kind = options.selector,
                           .priority_exponent = options.priority_exponent,
                           .staleness_decay = options.staleness_decay,
                           .of_view = options.lease_ms > 0 || held > 0},  // Some of the units are in no selector.
                          &units);
  for (uint32_t unit = units.oldest(); unit != kNoSlot; unit = units[unit].newer)
    if (IsInSelector(unit)) selector->OnInsert(unit);
}

void Buffer::State::FillViews() {
  views.clear();
  const View::Of of{&units, &sources, &columns, &late_tags, by_group() ? &groups : nullptr, prompts.get()};
  ViewOptions part{.name = "", .filter = "", .selector = options.selector};
  part.priority_exponent = options.priority_exponent;
  part.staleness_decay = options.staleness_decay;
  for (uint32_t rank = 0; rank < std::max(1u, options.parts); ++rank) {
    part.name = "part " + std::to_string(rank);
    if (in_parts()) views.push_back(std::make_unique<View>(part, of));
    for (const ViewOptions& view : options.views) views.push_back(std::make_unique<View>(view, of));
  }
  for (uint32_t unit = units.oldest(); unit != kNoSlot && !views.empty(); unit = units[unit].newer)
    if (IsInSelector(unit))
      for (const auto& view : ViewsOf(unit)) view->OnInsert(unit, FrameOfUnit(unit));
}

std::string Buffer::Alter(BufferOptions options) {
  State& s = *state_;
  std::string error = CheckOptions(&options);
  if (!error.empty()) return error;
  if (options.unit != s.options.unit) return "unit is " + std::string(ToString(s.options.unit)) + ": it cannot be altered";
  const BufferOptions before = std::exchange(s.options, options);
  s.retention = Retention(options);
  s.pacing.Alter(options);
  if (options.seed != before.seed) s.random = Random(options.seed);
  s.unit_cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  const bool other_selector = options.selector != before.selector || options.priority_exponent != before.priority_exponent ||
                              options.staleness_decay != before.staleness_decay;
  if (other_selector || options.parts != before.parts || (options.lease_ms > 0) != (before.lease_ms > 0)) s.FillSelector();
  if (options.prompt_history != before.prompt_history || options.views != before.views) s.SetPrompts();
  if (options.views != before.views || options.parts != before.parts || (s.in_parts() && other_selector)) s.FillViews();
  if (s.prompts) s.ReviewPrompts();
  if (options.max_draws > 0 && (before.max_draws == 0 || options.max_draws < before.max_draws)) {
    std::vector<uint32_t> all;
    for (uint32_t unit = s.units.oldest(); unit != kNoSlot; unit = s.units[unit].newer) all.push_back(unit);
    s.RemoveDrawnOut(all);
  }
  if (options.evict_staleness != before.evict_staleness) {
    s.unit_cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
    s.EvictStale();
  }
  if (options.max_age_ms == 0) s.marks.clear();
  // What was inserted before counts as inserted now.
  if (options.max_age_ms > 0 && before.max_age_ms == 0) s.marks = {{0, s.now_ms}};
  if (options.max_age_ms > 0) s.EvictAged();
  if (options.retention != before.retention) s.ReviewPositives();
  s.Retain();
  s.Note(Operation::kAlter, options);
  return "";
}

void Buffer::OnPublish(PolicyVersions::Snapshot versions) {
  State& s = *state_;
  const uint64_t published_before = s.unit_cohorts.versions()->published();
  if (s.by_group()) s.cohorts.OnPublish(versions);
  if (s.unit_cohorts.OnPublish(std::move(versions))) s.DropOlderEpochsFromSelector();
  if (s.unit_cohorts.expired() > 0 && s.EvictStale()) s.Retain();
  if (s.journal) s.NoteVersions(published_before);
}

void Buffer::State::NoteVersions(uint64_t published_before) {
  const PolicyVersions& now = *unit_cohorts.versions();
  if (now.last() != nullptr && now.published() == published_before + 1) return Note(Operation::kPublish, *now.last());
  Note(Operation::kVersions, now.published(), now.List("", SIZE_MAX));
}

void Buffer::State::DropOlderEpochsFromSelector() {
  for (uint32_t unit = units.oldest(); unit != kNoSlot; unit = units[unit].newer)
    if (!unit_cohorts.OfCurrentEpoch(units[unit].cohort)) Exit(unit);
}

}  // namespace replay::server
