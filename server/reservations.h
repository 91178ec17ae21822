#pragma once
// Reservations: groups whose members arrive by several Inserts and that nobody sees before they are complete.
//
//   ReserveGroup(group, size) ──► Insert(partial) … ──► complete ──► the group is inserted, its members by their index in it
//                                                   └─► lease or deadline ends ──► drop | release with those there | wait
//
// The lease tells that somebody still works on the group: each member and each repeated ReserveGroup renews it. The deadline is
// never renewed. Complete is what has as many members as were announced; never what stands together in a request. Members are not
// live: they are neither drawn nor retained, and only Buffer's counts of pending trajectories and bytes know them.
//
// Find O(1), NextOver and AnyHeld O(groups). About 250 bytes a group and 150 a member, beyond its frame. Of its buffer's thread.

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "schema/message.h"
#include "schema/validate.h"
#include "server/archive.h"
#include "server/buffer.h"

namespace replay::server {

class Reservations {
 public:
  struct Member {
    TrajectoryFacts facts;
    Frame frame;
    std::vector<Frame> columns;
    uint64_t bytes() const;  // with the overhead of each column
    void Persist(Archive& archive);
  };
  struct Group {
    Key128 key;
    std::string id;
    uint32_t size = 0;
    MissingMembers missing = MissingMembers::kDrop;
    uint64_t lease_ms = 0, expires_ms = 0, deadline_ms = 0;  // the last two as of the buffer's clock
    std::vector<Member> members = {};
    void Persist(Archive& archive);
    bool over(uint64_t now_ms) const { return now_ms >= expires_ms || now_ms >= deadline_ms; }
  };

  // Null: the group is not reserved.
  Group* Find(const Key128& key) const;
  Group* Add(Group group);
  // Whether a member with this trajectory id is there, of any group.
  bool Holds(const Key128& id) const { return ids_.contains(id); }
  void AddMember(Group* group, const TrajectoryFacts& facts, Frame frame, std::vector<Frame> columns = {});
  // Ends the reservation; its members in the order of their index.
  std::vector<Member> Take(Group* group);
  // The first group, in the order they were reserved, that is over and does not wait on; null: none.
  Group* NextOver(uint64_t now_ms);
  // Whether somebody still works on a group: one that waits on without a lease has nobody.
  bool AnyHeld(uint64_t now_ms) const;

  uint64_t size() const { return groups_.size(); }
  uint64_t announced() const { return announced_; }      // members of all groups, there or not
  uint64_t pending() const { return ids_.size(); }       // members that are there
  uint64_t frame_bytes() const { return frame_bytes_; }  // with columns and their overhead
  void Persist(Archive& archive);
  uint64_t memory_bytes() const;

 private:
  struct KeyHash {
    size_t operator()(const Key128& key) const { return key.low; }
  };
  std::list<Group> groups_;
  std::unordered_map<Key128, std::list<Group>::iterator, KeyHash> by_key_;
  std::unordered_map<Key128, const Group*, KeyHash> ids_;
  uint64_t announced_ = 0, frame_bytes_ = 0;
};

}  // namespace replay::server
