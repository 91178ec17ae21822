#pragma once
// A Writer's requests from when they are made until they have ended.
//
//   Add ──► to send ──Send──► sent ──End──────► gone, in order: what is behind a gap holds its place
//              ▲                │──SendAgain──┐ answered, certainly not stored
//              └────────────────┴──OnBroken───┘ never answered: uncertain
//
// Sequences are 1, 2, 3 … for each writer id. A request that is sent again keeps its sequence, so the server stores it once.
// A plain value: no clock, no lock, no socket.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "client/trajectory.h"

namespace replay {

// What goes out as one request: the trajectories of one or more InsertGroup calls, none of them split.
struct Bundle {
  std::vector<Frame> frames;
  std::vector<EncodedColumn> columns;  // in the order of their frames
  std::vector<uint32_t> units;         // trajectories of each call; they add up to frames.size()
  uint64_t bytes = 0;
  void Append(EncodedGroup group);
  std::vector<Bundle> Split() &&;  // one for each call
};

class Window {
 public:
  struct Request {
    uint64_t sequence = 0;
    Bundle bundle;
    bool ended = false;
    bool uncertain = false;  // sent on a connection that broke before the reply
  };

  explicit Window(Key128 writer) : writer_(writer) {}
  Key128 writer() const { return writer_; }
  // Every request up to here has ended.
  uint64_t acknowledged_through() const { return requests_.empty() ? next_sequence_ - 1 : requests_.front().sequence - 1; }
  size_t size() const { return requests_.size(); }  // with those that have ended but hold their place
  bool has_to_send() const { return !to_send_.empty(); }
  size_t sent_count() const { return sent_.size(); }

  void Add(Bundle bundle);
  // The next to send, from now on sent; null: there is none. Valid until the next call.
  const Request* Send();

  // The next to send, without sending it, and a way to end it unsent.
  const Request* Next() const { return to_send_.empty() ? nullptr : &Find(to_send_.front()); }
  Bundle EndNext();

  // The reply to the oldest sent request has come.
  bool OldestIsUncertain() const { return Find(sent_.front()).uncertain; }
  Bundle End();
  void SendAgain();

  // No more replies will come: what was sent is to be sent again, first and in order.
  void OnBroken();
  // Ends everything that is not sent; .first: certainly not stored, .second: uncertain.
  std::pair<std::vector<Bundle>, std::vector<Bundle>> EndUnsent();
  // Everything that is left is numbered anew for another writer id. Nothing may be sent. If the server still has what the old
  // writer stored, an uncertain request could then be stored twice: such ones end, and are returned.
  std::vector<Bundle> Renumber(Key128 writer, bool server_is_empty);

 private:
  Request& Find(uint64_t sequence) { return requests_[sequence - requests_.front().sequence]; }
  const Request& Find(uint64_t sequence) const { return requests_[sequence - requests_.front().sequence]; }
  Bundle Finish(uint64_t sequence);
  void DropEnded();

  Key128 writer_;
  uint64_t next_sequence_ = 1;
  std::deque<Request> requests_;  // consecutive sequences
  std::deque<uint64_t> to_send_;  // ascending
  std::deque<uint64_t> sent_;     // in the order they were sent, which is the order of the replies
};

}  // namespace replay
