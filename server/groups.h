#pragma once
// Groups: which trajectories belong together, in a buffer whose unit is the group.
//
//   trajectory slot ──► group slot          group slot ──► its members, in their order in the group
//
// A group comes and goes whole, so its members are linked once. 8 bytes a trajectory and 8 a group. Everything O(1), ForEach
// O(members). Belongs to its buffer's thread.

#include <cstdint>
#include <span>

#include "server/archive.h"
#include "server/slot_index.h"
#include "storage/segmented_array.h"

namespace replay::server {

class Groups {
 public:
  // `members` is not empty.
  void Add(uint32_t group, std::span<const uint32_t> members) {
    if (group >= heads_size_) heads_.Reserve(heads_size_ = group + 1);
    heads_[group] = {members[0], static_cast<uint32_t>(members.size())};
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] >= links_size_) links_.Reserve(links_size_ = members[i] + 1);
      links_[members[i]] = {group, i + 1 < members.size() ? members[i + 1] : kNoSlot};
    }
  }
  uint32_t GroupOf(uint32_t trajectory) const { return links_[trajectory].group; }
  uint32_t first(uint32_t group) const { return heads_[group].first; }
  uint32_t count(uint32_t group) const { return heads_[group].count; }
  // `visit` may remove the member.
  template <typename Visit>
  void ForEach(uint32_t group, Visit visit) const {
    for (uint32_t member = heads_[group].first, next = kNoSlot; member != kNoSlot; member = next) {
      next = links_[member].next;
      visit(member);
    }
  }
  void Persist(Archive& archive) {
    archive(heads_size_, links_size_);
    archive.Entries(heads_, heads_size_);
    archive.Entries(links_, links_size_);
  }
  uint64_t memory_bytes() const { return heads_.memory_bytes() + links_.memory_bytes(); }

 private:
  struct Head {
    uint32_t first = kNoSlot;
    uint32_t count = 0;
    void Persist(Archive& archive) { archive(first, count); }
  };
  struct Link {
    uint32_t group = kNoSlot;
    uint32_t next = kNoSlot;
    void Persist(Archive& archive) { archive(group, next); }
  };
  SegmentedArray<Head, 1024> heads_;
  SegmentedArray<Link, 4096> links_;
  uint32_t heads_size_ = 0, links_size_ = 0;
};

}  // namespace replay::server
