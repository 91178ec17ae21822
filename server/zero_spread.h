#pragma once
// ZeroSpreadFinder finds the groups of a request whose members all have one reward. Nothing is learned from them: the advantage of
// each member, its reward less the group's mean, is 0.
//
// Members of one group may stand anywhere in the request. O(trajectories + groups · log groups), without groups one look at
// each; steady traffic allocates nothing. The answers hold until the next Find.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schema/validate.h"

namespace replay::server {

class ZeroSpreadFinder {
 public:
  // How many trajectories are members of such a group.
  uint64_t Find(std::span<const TrajectoryFacts> facts);
  // Of the last Find: whether the trajectory is one of them.
  bool operator[](size_t trajectory) const { return marks_[trajectory] != 0; }

 private:
  // Neighbours of one group.
  struct Run {
    uint32_t begin, end;
    bool spread;
  };
  std::vector<Run> runs_;
  std::vector<uint8_t> marks_;  // [trajectories]
};

}  // namespace replay::server
