// Trajectories and groups come into a Buffer, change and leave: what Insert, Retain, Update and Delete are made of.

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "server/buffer_state.h"
#include "server/frame_note.h"

namespace replay::server {

using std::to_string;

namespace {

// Those of one core frame; they stand in the order of their frames.
std::span<ColumnOf> ColumnsOf(std::span<ColumnOf> of_all, uint32_t frame) {
  if (of_all.empty()) return {};
  const auto before = [](const ColumnOf& each, uint32_t of) { return each.frame < of; };
  const auto begin = std::lower_bound(of_all.begin(), of_all.end(), frame, before);
  return {begin, std::lower_bound(begin, of_all.end(), frame + 1, before)};
}

}  // namespace

// --- They come -----------------------------------------------------------------------------------------------------------

uint32_t Buffer::State::AddItem(const TrajectoryFacts& facts, Frame&& frame, std::span<ColumnOf> own, bool counted,
                                bool zero_spread_group) {
  const Outcome outcome = retention.Decide(facts.correct, facts.reward);
  const uint32_t slot = items.Add(facts, outcome);
  Item& item = items[slot];
  item.cohort = cohorts.Add(facts);
  item.counted = counted;
  item.outcome_said = facts.correct != Outcome::kUnknown;
  item.zero_spread = zero_spread_group;
  zero_spread_items += zero_spread_group;
  item.has_tags = facts.has_tags;
  if (frame.is_absent()) [[unlikely]] {
    item.source = sources.NumberOf(SourceOf(frame, facts));
    frame = MakeAbsent(frame, facts.has_tags);
  } else {
    item.source = sources.NumberOf(facts.source.In(frame.bytes()));
  }
  if (!by_group()) breakdown.OnInsert(item, item.cohort);
  items.SetPriority(slot, facts.priority);
  store.Put(&item.place, std::move(frame));
  for (ColumnOf& each : own) columns.Put(slot, std::move(each.column));
  if (prompts) [[unlikely]]
    prompts->OnInsert(slot, item.source, facts.dataset_index);
  if (!by_group() && cohorts.OfCurrentEpoch(item.cohort)) Enter(slot);
  tokens += item.token_count;
  tokens_inserted += item.token_count;
  if (outcome != Outcome::kUnknown) {
    CountOutcome(&inserted, outcome);
    CountOutcome(&stored, outcome);
  }
  return slot;
}

void Buffer::State::Enter(uint32_t unit) {
  selector->OnInsert(unit);
  for (const auto& view : ViewsOf(unit)) view->OnInsert(unit, FrameOfUnit(unit));
}

void Buffer::State::Exit(uint32_t unit) {
  selector->OnRemove(unit);
  for (const auto& view : ViewsOf(unit)) view->OnRemove(unit);
}

void Buffer::State::AddGroup(std::span<const uint32_t> members, const TrajectoryFacts& facts, bool zero_spread_group) {
  const uint32_t group = group_rows.Add(facts, Outcome::kUnknown);
  Item& row = group_rows[group];
  row.cohort = group_cohorts.Add(facts);
  row.source = items[members[0]].source;
  row.zero_spread = zero_spread_group;
  groups.Add(group, members);
  for (const uint32_t member : members) breakdown.OnInsert(items[member], row.cohort);
  largest_group = std::max(largest_group, static_cast<uint32_t>(members.size()));
  ReviewGroup(group);
  if (group_cohorts.OfCurrentEpoch(row.cohort)) Enter(group);
}

void Buffer::State::ReviewGroup(uint32_t group) {
  Item& row = group_rows[group];
  Outcome outcome = Outcome::kUnknown;
  float reward = -std::numeric_limits<float>::infinity(), priority = 0;
  uint32_t draws = 0, token_count = 0;
  constexpr uint32_t kMostTokens = (1u << 24) - 1;  // of a row; no filter needs more
  groups.ForEach(group, [&](uint32_t member) {
    const Item& item = items[member];
    if (item.outcome() == Outcome::kCorrect || outcome == Outcome::kUnknown) outcome = item.outcome();
    reward = std::max(reward, item.reward);
    priority = std::max(priority, items.priority(member));
    draws = std::max(draws, item.draws);
    token_count = std::min(kMostTokens, token_count + item.token_count);
  });
  row.outcome_bits = static_cast<uint32_t>(outcome);
  row.reward = reward;
  row.draws = draws;
  row.token_count = token_count;
  group_rows.SetPriority(group, priority);
}

void Buffer::State::ListGroups(std::span<const TrajectoryFacts> facts) {
  group_lists.clear();
  const auto hash = [](const Key128& key) { return key.low; };
  std::unordered_map<Key128, size_t, decltype(hash)> list_of(16, hash);
  for (uint32_t i = 0; i < facts.size(); ++i) {
    if (IsRefused(i)) continue;
    const Key128& key = facts[i].group;
    if (key == Key128{}) {
      group_lists.push_back({i});  // a group by itself
      continue;
    }
    const auto [at, added] = list_of.try_emplace(key, group_lists.size());
    if (added) group_lists.emplace_back();
    group_lists[at->second].push_back(i);
  }
  for (std::vector<uint32_t>& list : group_lists)
    std::sort(list.begin(), list.end(),
              [&](uint32_t a, uint32_t b) { return facts[a].index_in_group < facts[b].index_in_group; });
}

std::string Buffer::State::WhyGroupsRefused(std::span<const TrajectoryFacts> facts) const {
  for (const std::vector<uint32_t>& list : group_lists) {
    const TrajectoryFacts& first = facts[list[0]];
    for (const uint32_t i : list)
      if (facts[i].run != first.run || facts[i].epoch != first.epoch)
        return "run_id and epoch of trajectories " + to_string(list[0]) + " and " + to_string(i) +
               " differ: where the unit is the group, its members are of one run and epoch";
  }
  return "";
}

void Buffer::State::AddGroups(std::span<const TrajectoryFacts> facts, std::span<Frame> frames, std::span<ColumnOf> of_all,
                              bool counted) {
  std::vector<uint32_t> members;
  for (const std::vector<uint32_t>& list : group_lists) {
    TrajectoryFacts whole_group = facts[list[0]];
    members.clear();
    for (const uint32_t i : list) {
      whole_group.min_version = std::min(whole_group.min_version, facts[i].min_version);
      whole_group.max_version = std::max(whole_group.max_version, facts[i].max_version);
      members.push_back(AddItem(facts[i], std::move(frames[i]), ColumnsOf(of_all, i), counted, zero_spread[i]));
    }
    AddGroup(members, whole_group, zero_spread[list[0]]);
  }
}

void Buffer::State::AddAll(std::span<const TrajectoryFacts> facts, std::span<Frame> frames, std::span<ColumnOf> of_all,
                           bool counted) {
  if (options.max_age_ms > 0) MarkTime();
  if (facts.size() == 1 && !by_group()) {
    AddItem(facts[0], std::move(frames[0]), of_all, counted, facts[0].group != Key128{});
  } else if (by_group()) {
    AddGroups(facts, frames, of_all, counted);
  } else {
    for (uint32_t i = 0; i < facts.size(); ++i)
      if (!IsRefused(i)) AddItem(facts[i], std::move(frames[i]), ColumnsOf(of_all, i), counted, zero_spread[i]);
  }
  if (prompts) [[unlikely]]
    ReviewPrompts();
}

// --- They leave ----------------------------------------------------------------------------------------------------------

void Buffer::State::RemoveUnit(uint32_t unit, RemoveReason reason) {
  const Item& row = units[unit];
  if (ranks() && row.positive) ranking.Erase(unit);
  Exit(unit);
  held -= row.held;
  const auto remove = [&](uint32_t slot) {
    breakdown.OnRemove(items[slot], row.cohort, reason);
    RemoveItem(slot, reason);
  };
  if (!by_group()) return remove(unit);
  groups.ForEach(unit, remove);
  group_cohorts.Remove(row.cohort, row.held);
  group_rows.Remove(unit);
}

void Buffer::State::RemoveItem(uint32_t slot, RemoveReason reason) {
  Item& item = items[slot];
  ++removed[static_cast<size_t>(reason)];
  item_draws.ObserveCount(item.draws);
  tokens -= item.token_count;
  zero_spread_items -= item.zero_spread;
  if (item.outcome() != Outcome::kUnknown) {
    CountOutcome(&removed_outcomes, item.outcome());
    CountOutcome(&stored, item.outcome(), -1);
  }
  if (prompts) [[unlikely]]
    prompts->OnRemove(slot);
  cohorts.Remove(item.cohort, item.held);
  columns.Remove(slot);
  late_tags.Remove(slot);
  store.Remove(&item.place);
  items.Remove(slot);
}

uint32_t Buffer::Delete(std::string_view id) {
  State& s = *state_;
  const uint32_t slot = s.items.Find(HashId(id));
  if (slot == kNoSlot) return 0;
  const uint64_t before = s.items.live();
  const auto give_back = [&s](uint32_t member) {
    if (s.items[member].draws == 0 && s.items[member].counted) s.pacing.OnDeleteOfUndrawn();
  };
  const uint32_t unit = s.UnitOf(slot);
  if (s.by_group())
    s.groups.ForEach(unit, give_back);
  else
    give_back(slot);
  s.RemoveUnit(unit, RemoveReason::kDeleted);
  const uint64_t deleted = before - s.items.live();
  s.Retain();
  if (s.journal) s.Note(Operation::kDelete, std::string(id));
  return static_cast<uint32_t>(deleted);
}

}  // namespace replay::server
