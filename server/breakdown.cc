#include "server/breakdown.h"

#include <numeric>

#include "server/check.h"

namespace replay::server {

using std::to_string;

std::string Breakdown::NameOfLength(uint32_t length) {
  const uint32_t below = length == 0 ? 0 : 64u << length;
  return to_string(below + 1) + (length == kLengths - 1 ? "+" : "-" + to_string(128u << length));
}

std::string Breakdown::NameOfDraws(uint32_t draws) {
  if (draws <= 2) return to_string(draws);
  const uint32_t most = 1u << (draws - 1);
  return to_string(most / 2 + 1) + (draws == kDraws - 1 ? "+" : "-" + to_string(most));
}

void Breakdown::Grow(uint32_t cohort, uint32_t source) {
  uint32_t room = source_room_;
  while (room <= source) room = std::min(kSources, 2 * (kLengths + room) - kLengths);  // 5, 21, 53, 64
  const uint32_t rows = std::max(rows_, cohort + 1);
  if (room == source_room_) {
    tallies_.resize(size_t{rows} * (kLengths + room));
  } else {
    std::vector<uint32_t> wider(size_t{rows} * (kLengths + room));
    for (size_t row = 0; row < rows_; ++row)
      std::copy_n(&tallies_[row * (kLengths + source_room_)], kLengths + source_room_, &wider[row * (kLengths + room)]);
    tallies_ = std::move(wider);
  }
  rows_ = rows;
  source_room_ = room;
}

Breakdown::Tallies Breakdown::Withheld(const Cohorts& cohorts, const StepWindow& window) const {
  Tallies withheld{};
  const size_t width = kLengths + source_room_;
  for (uint32_t cohort = 0; cohort < rows_; ++cohort) {
    if (cohorts.MayDraw(cohort, window)) continue;  // A cohort without items adds zeros, whatever is said of it.
    for (size_t i = 0; i < width; ++i) withheld[i] += tallies_[cohort * width + i];
  }
  return withheld;
}

BreakdownRow Breakdown::RowOf(uint32_t tally, const Tallies& withheld) const {
  BreakdownRow row;
  row.inserted = row.live = inserted_[tally];
  row.withheld = withheld[tally];
  for (size_t reason = 0; reason < kRemoveReasons; ++reason) {
    row.removed[reason] = removed_[reason].tallies[tally];
    row.live -= row.removed[reason];
  }
  return row;
}

void Breakdown::Show(const Sources& sources, const Cohorts& cohorts, const std::optional<StepWindow>& window,
                     BufferStats* stats) const {
  const Tallies withheld = window ? Withheld(cohorts, *window) : Tallies{};
  stats->lengths.clear();
  for (uint32_t length = 0; length < kLengths; ++length) {
    stats->lengths.push_back(RowOf(length, withheld));
    stats->lengths.back().name = NameOfLength(length);
  }

  BreakdownRow others = RowOf(kLengths, withheld);
  others.name = sources.name(0);
  stats->sources.clear();
  for (uint32_t source = 1; source < std::min<uint32_t>(sources.size(), kSources); ++source) {
    BreakdownRow row = RowOf(kLengths + source, withheld);
    row.name = sources.name(static_cast<uint16_t>(source));
    if (row.name == others.name) {  // Somebody calls a source so.
      others.live += row.live;
      others.inserted += row.inserted;
      others.withheld += row.withheld;
      for (size_t reason = 0; reason < kRemoveReasons; ++reason) others.removed[reason] += row.removed[reason];
    } else if (row.inserted > 0) {
      stats->sources.push_back(std::move(row));
    }
  }
  if (others.inserted > 0) stats->sources.push_back(std::move(others));

  stats->draws.clear();
  for (uint32_t draws = 0; draws < kDraws; ++draws) {
    BreakdownRow& row = stats->draws.emplace_back();
    row.name = NameOfDraws(draws);
    for (size_t reason = 0; reason < kRemoveReasons; ++reason) row.removed[reason] = removed_[reason].draws[draws];
  }
}

void Breakdown::CheckInvariants(const ItemTable& items, const std::function<uint32_t(uint32_t)>& cohort_of, uint64_t accepted,
                                const std::array<uint64_t, kRemoveReasons>& removed, const Histogram& item_draws) const {
  const auto sum = [](const auto& from, size_t begin, size_t end) {
    return std::accumulate(from.begin() + static_cast<std::ptrdiff_t>(begin), from.begin() + static_cast<std::ptrdiff_t>(end),
                           uint64_t{0});
  };
  const auto check_sums = [&](const Tallies& tallies, uint64_t total, const char* what) {
    CHECK(sum(tallies, 0, kLengths) == total) << sum(tallies, 0, kLengths) << " by length, " << what << " " << total;
    CHECK(sum(tallies, kLengths, tallies.size()) == total)
        << sum(tallies, kLengths, tallies.size()) << " by source, " << what << " " << total;
  };
  check_sums(inserted_, accepted, "accepted");
  std::array<uint64_t, kDraws> draws{};
  for (size_t reason = 0; reason < kRemoveReasons; ++reason) {
    const Removed& of = removed_[reason];
    check_sums(of.tallies, removed[reason], "removed");
    CHECK(sum(of.draws, 0, kDraws) == removed[reason]) << sum(of.draws, 0, kDraws) << " by draws, removed " << removed[reason];
    for (uint32_t i = 0; i < kDraws; ++i) draws[i] += of.draws[i];
  }
  CHECK(std::equal(draws.begin(), draws.end(), item_draws.counts.begin(), item_draws.counts.end()))
      << "draws of what was removed";

  Tallies live{};
  std::vector<uint32_t> tallies(tallies_.size());
  const size_t width = kLengths + source_room_;
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer) {
    const Item& item = items[slot];
    for (const uint32_t tally : {LengthOf(item.token_count), kLengths + SourceOf(item)}) {
      ++live[tally];
      ++tallies[cohort_of(slot) * width + tally];
    }
  }
  CHECK(tallies == tallies_) << "the rows of the cohorts disagree with the items";
  for (uint32_t i = 0; i < live.size(); ++i) {
    const uint64_t shown = RowOf(i, {}).live;
    CHECK(live[i] == shown) << live[i] << " live of tally " << i << ", counted " << shown;
  }
}

}  // namespace replay::server
