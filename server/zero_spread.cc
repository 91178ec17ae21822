#include "server/zero_spread.h"

#include <algorithm>
#include <tuple>

namespace replay::server {

uint64_t ZeroSpreadFinder::Find(std::span<const TrajectoryFacts> facts) {
  marks_.assign(facts.size(), 0);
  runs_.clear();
  for (uint32_t begin = 0, end = 0; begin < facts.size(); begin = end) {
    const TrajectoryFacts& first = facts[begin];
    bool spread = false;
    for (end = begin + 1; end < facts.size() && facts[end].group == first.group; ++end)
      spread |= facts[end].reward != first.reward;
    if (first.group != Key128{}) runs_.push_back({begin, end, spread});
  }
  // The runs of one group side by side.
  const auto key = [facts](const Run& run) {
    const Key128& group = facts[run.begin].group;
    return std::tuple(group.high, group.low, run.begin);
  };
  if (runs_.size() > 1) std::sort(runs_.begin(), runs_.end(), [&](const Run& a, const Run& b) { return key(a) < key(b); });

  uint64_t count = 0;
  for (size_t begin = 0, end = 0; begin < runs_.size(); begin = end) {
    const TrajectoryFacts& first = facts[runs_[begin].begin];
    bool spread = false;
    for (end = begin; end < runs_.size() && facts[runs_[end].begin].group == first.group; ++end)
      spread |= runs_[end].spread || facts[runs_[end].begin].reward != first.reward;
    for (size_t run = begin; run < end && !spread; ++run) {
      std::fill(marks_.begin() + runs_[run].begin, marks_.begin() + runs_[run].end, uint8_t{1});
      count += runs_[run].end - runs_[run].begin;
    }
  }
  return count;
}

}  // namespace replay::server
