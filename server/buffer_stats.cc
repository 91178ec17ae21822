// What a Buffer shows of itself: Stats, Describe, CheckInvariants.

#include <algorithm>
#include <numeric>

#include "server/buffer_state.h"
#include "server/check.h"

namespace replay::server {

std::string_view ToString(RemoveReason reason) {
  static constexpr std::array<std::string_view, static_cast<size_t>(RemoveReason::kCount)> kNames = {
      "capacity", "bytes", "max_draws", "deleted", "age", "staleness"};
  return reason < RemoveReason::kCount ? kNames[static_cast<size_t>(reason)] : "unknown";
}

BufferStats Buffer::Stats() const {
  const State& s = *state_;
  BufferStats stats;
  stats.name = s.name;
  stats.options = s.options;
  stats.items = s.items.live();
  stats.bytes = s.store.frame_bytes();
  stats.spilled_items = s.store.spilled();
  stats.spilled_bytes = s.store.spilled_bytes();
  stats.index_bytes = sizeof(State) + s.items.memory_bytes() + s.cohorts.memory_bytes() + s.selector->memory_bytes() +
                      s.receipts.memory_bytes() + s.ranking.memory_bytes() + s.plans.memory_bytes() + s.leases.memory_bytes() +
                      s.reservations.memory_bytes() + s.breakdown.memory_bytes() + s.columns.memory_bytes() +
                      s.late_tags.held_bytes() + s.late_tags.memory_bytes() +
                      (s.picks.slots.capacity() + s.batch_slots.capacity()) * sizeof(uint32_t);
  if (s.by_group()) {
    stats.index_bytes += s.group_rows.memory_bytes() + s.group_cohorts.memory_bytes() + s.groups.memory_bytes();
    stats.groups = s.units.live();
  }
  stats.reserved_groups = s.reservations.size();
  stats.pending = s.reservations.pending();
  stats.expired_groups = s.expired_groups;
  stats.dropped_members = s.dropped_members;
  stats.held = s.held;
  stats.leases = s.leases.size();
  stats.expired_leases = s.expired_leases;
  for (const auto& view : s.views) stats.index_bytes += view->memory_bytes();
  for (uint32_t rank = 0; s.in_parts() && rank < s.options.parts; ++rank)
    stats.views.emplace_back(s.ViewsOfRank(rank)[0]->options().name, s.ViewsOfRank(rank)[0]->members());
  for (const ViewOptions& view : s.options.views) {
    stats.views.emplace_back(view.name, 0);
    for (uint32_t rank = 0; rank < std::max(1u, s.options.parts); ++rank)
      stats.views.back().second += s.FindView(view.name, rank)->members();
  }
  if (s.prompts) {
    stats.index_bytes += s.prompts->memory_bytes();
    stats.prompts = s.prompts->size();
  }
  stats.column_bytes = s.columns.bytes();
  stats.columns = s.columns.CountsByName();
  stats.tokens = s.tokens;
  stats.positive_items = s.units.positive();
  stats.stored = s.stored;
  stats.inserted = s.inserted;
  stats.sampled = s.sampled;
  stats.removed_outcomes = s.removed_outcomes;
  stats.offered = s.offered;
  stats.accepted = s.accepted;
  stats.duplicate = s.duplicate;
  stats.rejected = s.rejected;
  stats.zero_spread = s.zero_spread_items;
  stats.zero_spread_refused = s.zero_spread_refused;
  stats.removed = s.removed;
  stats.drawn = s.drawn;
  stats.samples = s.samples;
  stats.tokens_inserted = s.tokens_inserted;
  stats.tokens_drawn = s.tokens_drawn;
  stats.withheld = s.withheld;
  stats.withheld_total = s.withheld_total;
  stats.staleness = s.staleness;
  stats.reuse_gap = s.reuse_gap;
  stats.item_draws = s.item_draws;
  const Cohorts::VersionRange versions = s.cohorts.Versions();
  stats.oldest_version = versions.oldest;
  stats.newest_version = versions.newest;
  stats.consumer_step = s.consumer_step;
  stats.pacing_balance = s.pacing.balance();
  stats.cost = s.cost;
  s.breakdown.Show(s.sources, s.unit_cohorts, s.last_window, &stats);
  return stats;
}

std::string Buffer::Describe() const {
  const State& s = *state_;
  std::string text;
  bool boundary_shown = false;
  for (uint32_t unit = s.units.oldest(); unit != kNoSlot; unit = s.units[unit].newer) {
    const Item& item = s.units[unit];
    if (!item.positive && !boundary_shown) {
      text += "| ";
      boundary_shown = true;
    }
    text += std::to_string(item.number);
    if (s.by_group()) text += "x" + std::to_string(s.groups.count(unit));
    if (item.held) text += "!";
    if (item.outcome() == Outcome::kCorrect) text += "+";
    if (item.draws > 0) text += "*" + std::to_string(item.draws);
    if (!s.unit_cohorts.OfCurrentEpoch(item.cohort)) text += "~";
    text += " ";
  }
  if (!boundary_shown) text += "| ";
  return text + "positive=" + std::to_string(s.units.positive()) + " fresh=" + std::to_string(s.units.fresh()) +
         " drawn=" + std::to_string(s.drawn);
}

void Buffer::CheckInvariants() const {
  const State& s = *state_;
  s.items.CheckInvariants();
  if (s.by_group()) {
    s.units.CheckInvariants();
    s.cohorts.CheckInvariants(s.items.live());
    s.CheckGroups();
  }
  s.unit_cohorts.CheckInvariants(s.units.live(), s.held);
  s.selector->CheckInvariants(s.unit_cohorts, s.unit_cohorts.of_current_epoch());
  for (const auto& view : s.views) view->CheckInvariants(s.unit_cohorts);
  if (s.prompts) s.prompts->CheckInvariants();
  uint64_t in_parts = 0;
  for (uint32_t rank = 0; s.in_parts() && rank < s.options.parts; ++rank) in_parts += s.ViewsOfRank(rank)[0]->members();
  CHECK(in_parts == (s.in_parts() ? s.unit_cohorts.of_current_epoch() : 0)) << in_parts << " units in parts";
  CHECK(s.ranking.size() == (s.ranks() ? s.units.positive() : 0) && s.ranking.IsInOrder()) << s.ranking.size() << " ranked";
  CHECK(s.offered == s.accepted + s.duplicate + s.rejected + s.reservations.pending())
      << s.offered << " offered, " << s.accepted << " + " << s.duplicate << " + " << s.rejected << " + "
      << s.reservations.pending();
  const uint64_t removed = std::accumulate(s.removed.begin(), s.removed.end(), uint64_t{0});
  s.breakdown.CheckInvariants(
      s.items, [&s](uint32_t slot) { return s.units[s.UnitOf(slot)].cohort; }, s.accepted, s.removed, s.item_draws);
  CHECK(s.accepted == s.items.live() + removed) << s.accepted << " accepted, " << s.items.live() << " + " << removed;

  uint64_t bytes = 0, spilled = 0, spilled_items = 0, tokens = 0, zero_spread = 0;
  OutcomeCounts outcomes;
  for (uint32_t slot = s.items.oldest(); slot != kNoSlot; slot = s.items[slot].newer) {
    const Item& item = s.items[slot];
    CHECK(s.FrameOf(slot)) << "item " << item.number << " has no frame";
    bytes += s.FrameOf(slot).size();
    spilled += s.FrameOf(slot).is_absent() ? s.FrameOf(slot).size() : 0;
    spilled_items += s.FrameOf(slot).is_absent();
    tokens += item.token_count;
    zero_spread += item.zero_spread;
    State::CountOutcome(&outcomes, item.outcome());
  }
  uint64_t held = 0;
  for (uint32_t unit = s.units.oldest(); unit != kNoSlot; unit = s.units[unit].newer) {
    const Item& row = s.units[unit];
    CHECK(!row.positive || row.outcome() == Outcome::kCorrect || s.ranks()) << "unit " << row.number;
    CHECK(s.options.max_draws == 0 || row.draws < s.options.max_draws || row.held) << row.number << ", drawn " << row.draws;
    held += row.held;
  }
  CHECK(held == s.held) << held << " held, counted " << s.held;
  CHECK(spilled_items == s.store.spilled()) << spilled_items << " spilled, the store says " << s.store.spilled();
  CHECK(spilled == s.store.spilled_bytes()) << spilled << " bytes spilled, the store says " << s.store.spilled_bytes();
  CHECK(bytes == s.store.frame_bytes()) << bytes << " bytes, the store says " << s.store.frame_bytes();
  CHECK(zero_spread == s.zero_spread_items) << zero_spread << " of groups with zero spread, counted " << s.zero_spread_items;
  CHECK(s.zero_spread_refused <= s.rejected) << s.zero_spread_refused << " of " << s.rejected << " rejected";
  CHECK(tokens == s.tokens) << tokens << " tokens, counted " << s.tokens;
  CHECK(outcomes.correct == s.stored.correct && outcomes.incorrect == s.stored.incorrect);
  CHECK(s.inserted.correct + s.became.correct == s.stored.correct + s.removed_outcomes.correct + s.ceased.correct);
  CHECK(s.inserted.incorrect + s.became.incorrect == s.stored.incorrect + s.removed_outcomes.incorrect + s.ceased.incorrect);
  s.columns.CheckInvariants();
  s.late_tags.CheckInvariants();
  CHECK(s.units.fresh() <= s.options.fresh_capacity()) << s.units.fresh() << " fresh";
  CHECK(s.units.positive() <= s.options.positive_capacity()) << s.units.positive() << " positive";
  CHECK(s.units.positive() == 0 || s.units.fresh() == s.options.fresh_capacity()) << s.units.fresh() << " fresh";
  CHECK(s.options.capacity_bytes == 0 || s.BytesHeld() <= s.options.capacity_bytes || s.items.live() == 0) << bytes << " bytes";
}

// Each group has its members, one behind the other, and the row that they make.
void Buffer::State::CheckGroups() const {
  uint64_t members = 0;
  for (uint32_t group = units.oldest(); group != kNoSlot; group = units[group].newer) {
    uint64_t next = items[groups.first(group)].number;
    bool correct = false;
    groups.ForEach(group, [&](uint32_t member) {
      CHECK(items[member].number == next++) << "item " << items[member].number << " in group " << units[group].number;
      CHECK(groups.GroupOf(member) == group && items[member].draws == units[group].draws) << "item " << items[member].number;
      correct |= items[member].outcome() == Outcome::kCorrect;
      ++members;
    });
    CHECK(correct == (units[group].outcome() == Outcome::kCorrect)) << "group " << units[group].number;
  }
  CHECK(members == items.live()) << members << " members, " << items.live() << " trajectories";
}

}  // namespace replay::server
