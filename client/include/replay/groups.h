#pragma once
// Groups that come in member by member, and how much may be generated: ReserveGroup, InsertMembers and Admit of replay/client.h.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace replay {

using std::chrono::milliseconds;

// A group whose members arrive by several InsertMembers. Nobody sees them before the group is complete.
enum class MissingMembers : uint8_t { kDrop, kRelease, kWait };  // same order as the protocol's
struct Reservation {
  std::string group_id{};
  uint32_t size = 0;               // members it will have, as group_size in each of them
  milliseconds lease{30'000};      // Somebody works on it: renewed by each member, and by reserving it again.
  milliseconds deadline{300'000};  // When it must be complete; never renewed.
  // What becomes of it when lease or deadline end: its members are dropped, or it becomes a group of those that are there, or it
  // goes on waiting.
  MissingMembers missing = MissingMembers::kDrop;
  uint32_t batch = 0;  // Above 0: waits for admission first, with this batch.
};

struct ReservedGroup {
  uint32_t present = 0;     // Members that are there.
  uint32_t size = 0;        // announced
  uint64_t first_item = 0;  // Of CommitGroup: insertion number of the first member.
};

// How many trajectories may be generated now so that none is too stale when its turn comes.
struct AdmissionRequest {
  uint32_t count = 0;                      // Waits until so many are admitted; 0: only asks.
  uint32_t batch = 0;                      // Trajectories a gradient step uses.
  std::optional<int64_t> max_staleness{};  // Instead of the buffer's.
};

struct Admission {
  int64_t credits = 0;  // (max_staleness + 1) * batch - live - reserved
  uint64_t live = 0;
  uint64_t reserved = 0;  // Members of reserved groups, there or still to come.
};

}  // namespace replay
