#pragma once
// Leases: what was drawn and is held until it is acknowledged, so that nobody else draws it.
//
//   Sample ──► lease (number, holder, expiry) over the units drawn ──► Acknowledge | expiry | the holder's connection ends
//
// Only the bookkeeping: what becomes of a unit whose lease ends, Buffer decides. A unit may leave the buffer while it is held; it
// is known by its insertion number, so that a later one in its slot is not taken for it. Open and Close O(units) of the lease,
// NextExpired O(1), EndOf O(leases). About 100 bytes a lease and 32 a unit. Belongs to its buffer's thread.

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/archive.h"

namespace replay::server {

class Leases {
 public:
  struct Unit {
    uint32_t slot = 0;
    uint64_t number = 0;      // of the unit, to tell it from a later one in its slot
    uint64_t first_item = 0;  // insertion numbers of its trajectories, which follow each other
    uint32_t count = 0;
    void Persist(Archive& archive) { archive(slot, number, first_item, count); }
  };
  struct Lease {
    uint64_t number = 0;
    uint64_t holder = 0;  // the connection that sampled
    uint64_t expires_ms = 0;
    std::vector<Unit> units;
    void Persist(Archive& archive) { archive(number, holder, expires_ms, units); }
  };

  // The number of a new lease, from 1.
  uint64_t Open(uint64_t holder, uint64_t expires_ms, std::vector<Unit> units);
  // Takes units out of a lease and ends it when none is left: those that hold one of `items`, or all without any. Empty: there is
  // no such lease, or none of them in it.
  std::vector<Unit> Close(uint64_t number, std::span<const uint64_t> items);
  // All units of leases that have expired by then. Leases expire in any order, since their length may be altered.
  std::vector<Unit> CloseExpired(uint64_t now_ms);
  std::vector<Unit> CloseOf(uint64_t holder);

  // Of whoever held one before the daemon started.
  std::vector<Unit> CloseAll();

  uint64_t size() const { return leases_.size(); }
  void Persist(Archive& archive);
  uint64_t memory_bytes() const;

 private:
  using List = std::list<Lease>;
  void CloseWhole(List::iterator lease, std::vector<Unit>* units);

  List leases_;
  std::unordered_map<uint64_t, List::iterator> by_number_;
  uint64_t next_number_ = 1;
  uint64_t next_expiry_ms_ = UINT64_MAX;  // at most the earliest
};

}  // namespace replay::server
