#pragma once
// What tests of the Writer share: a server's memory of what it stored, and small inputs.

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "replay/client.h"
#include "tests/support/fake_server.h"

namespace replay::testing {

// What a server stores: exactly once for each (writer, sequence), and the log of what arrived.
class Shelf {
 public:
  // "stored" or "duplicate"; sends the receipt unless `reply` is false.
  void Store(FakeServer::Request& request, bool reply = true) {
    const std::lock_guard lock(mutex_);
    const bool known = !receipts_.emplace(request.writer, request.sequence).second;
    if (!known) ids_.insert(ids_.end(), request.ids.begin(), request.ids.end());
    Log(request, known ? "duplicate" : "stored");
    if (reply)
      request.Send(testing::InsertReply(request.id, {.count = static_cast<uint32_t>(request.ids.size()), .duplicate = known}));
  }
  void Refuse(FakeServer::Request& request, ErrorCode code, const std::string& message, WaitReason reason = WaitReason::kNone) {
    const std::lock_guard lock(mutex_);
    Log(request, std::string(ToString(code)));
    request.Send(testing::ErrorReply(request.id, code, message, reason));
  }
  void Empty() {
    const std::lock_guard lock(mutex_);
    receipts_.clear();
    ids_.clear();
  }
  std::vector<std::string> ids() {
    const std::lock_guard lock(mutex_);
    return ids_;
  }
  // "1:2 stored, 2:1 duplicate": sequence:trajectories and what became of it; a letter for each writer id.
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  void Log(const FakeServer::Request& request, const std::string& what) {
    const auto [writer, added] = writers_.emplace(request.writer, static_cast<char>('a' + writers_.size()));
    log_ += (log_.empty() ? "" : ", ") + std::string(1, writer->second) + std::to_string(request.sequence) + ":" +
            std::to_string(request.ids.size()) + " " + what;
  }

  std::mutex mutex_;
  std::set<std::pair<uint64_t, uint64_t>> receipts_;
  std::map<uint64_t, char> writers_;
  std::vector<std::string> ids_;
  std::string log_;
};

// Sends at once and comes back fast.
inline WriterOptions Quick() {
  return {.linger = milliseconds(0),
          .give_up_after = milliseconds(20'000),
          .back_off_first = milliseconds(1),
          .back_off_most = milliseconds(20)};
}

// The members of one group: "name-0", "name-1" …
inline std::vector<Trajectory> Group(const std::string& name, uint32_t size) {
  std::vector<Trajectory> group;
  for (uint32_t i = 0; i < size; ++i) {
    group.push_back(SmallTrajectory(name + "-" + std::to_string(i)));
    group.back().group_id = name;
    group.back().group_size = size;
    group.back().index_in_group = i;
  }
  return group;
}

inline std::string Describe(const Writer::Progress& p) {
  return "accepted=" + std::to_string(p.accepted) + " duplicate=" + std::to_string(p.duplicate) +
         " failed=" + std::to_string(p.failed) + " in_flight=" + std::to_string(p.in_flight) +
         " lost=" + std::to_string(p.content_lost);
}

}  // namespace replay::testing
