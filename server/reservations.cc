#include "server/reservations.h"

#include <algorithm>
#include <utility>

#include "server/frame_note.h"
#include "server/requests_archive.h"

namespace replay::server {

Reservations::Group* Reservations::Find(const Key128& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &*found->second;
}

uint64_t Reservations::Member::bytes() const {
  uint64_t sum = frame.size();
  for (const Frame& column : columns) sum += column.size() + Frame::kOverheadBytes;
  return sum;
}

Reservations::Group* Reservations::Add(Group group) {
  announced_ += group.size;
  groups_.push_back(std::move(group));
  by_key_.emplace(groups_.back().key, std::prev(groups_.end()));
  return &groups_.back();
}

void Reservations::AddMember(Group* group, const TrajectoryFacts& facts, Frame frame, std::vector<Frame> columns) {
  ids_.emplace(facts.id, group);
  group->members.push_back({facts, std::move(frame), std::move(columns)});
  frame_bytes_ += group->members.back().bytes();
}

std::vector<Reservations::Member> Reservations::Take(Group* group) {
  std::vector<Member> members = std::move(group->members);
  announced_ -= group->size;
  for (const Member& member : members) {
    ids_.erase(member.facts.id);
    frame_bytes_ -= member.bytes();
  }
  const auto found = by_key_.find(group->key);
  groups_.erase(found->second);
  by_key_.erase(found);
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.facts.index_in_group < b.facts.index_in_group; });
  return members;
}

Reservations::Group* Reservations::NextOver(uint64_t now_ms) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [now_ms](const Group& group) {
    return group.missing != MissingMembers::kWait && group.over(now_ms);
  });
  return found == groups_.end() ? nullptr : &*found;
}

bool Reservations::AnyHeld(uint64_t now_ms) const {
  return std::any_of(groups_.begin(), groups_.end(), [now_ms](const Group& group) { return !group.over(now_ms); });
}

void Reservations::Member::Persist(Archive& archive) {
  archive(facts);
  PersistCore(archive, frame, facts);
  columns.resize(archive.Count(columns.size()));
  for (Frame& column : columns) PersistColumn(archive, column);
}

void Reservations::Group::Persist(Archive& archive) {
  archive(key, id, size, missing, lease_ms, expires_ms, deadline_ms, members);
}

void Reservations::Persist(Archive& archive) {
  archive(announced_, frame_bytes_, groups_);
  if (!archive.loading()) return;
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    by_key_.emplace(group->key, group);
    for (const Member& member : group->members) ids_.emplace(member.facts.id, &*group);
  }
}

uint64_t Reservations::memory_bytes() const {
  constexpr uint64_t kNode = 56;  // of a hash map
  uint64_t bytes = by_key_.size() * kNode + ids_.size() * kNode;
  for (const Group& group : groups_) bytes += sizeof(Group) + group.id.capacity() + group.members.capacity() * sizeof(Member);
  return bytes;
}

}  // namespace replay::server
