#pragma once
// Journal: what a buffer has decided since its state was last saved, one record for each decision that changed something.
//
//   record = u32 bytes behind it | u8 operation, u64 buffer time in ms | what it was asked (archive.h) | u64 digest of the state
//
// A decision is a function of (state, request, time, random), so the same requests bring the saved state to where it was: who
// left, who was drawn, what is random next. A Sample is some 100 bytes, however many it drew; an Insert 180 a trajectory, without
// its frame. The digest shows at once if another decision was made than then, as an update of the program may.
//
//   Buffer ──► Journal ──► whoever keeps records and frames          Buffer::Load of the state, then Buffer::Replay of each record
//
// Belongs to its buffer's thread. O(bytes).

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/archive.h"

namespace replay::server {

enum class Operation : uint8_t {
  kInsert = 1,
  kLook,         // an Insert that has stored nothing: a repeat, refused, waiting
  kSample,       // also one that drew, and then had too many bytes for a reply
  kSampleWaits,  // or was refused; what it left to be seen
  kAskForPlan,   // that there was
  kCredit,
  kDelete,
  kUpdate,
  kAcknowledge,
  kEndLeases,
  kEndAllLeases,
  kReserve,
  kAlter,
  kPublish,
  kVersions,  // the whole registry
  kTime,
  kCost,
};

class Journal {
 public:
  struct Entries {
    std::string records;
    uint64_t count = 0;
    std::vector<Frame> frames;  // that came with them, numbered
    bool empty() const { return count == 0; }
  };

  // A record: Begin, what was asked, End.
  Archive Begin(Operation operation, uint64_t now_ms) {
    entries_.records.resize(end_);  // What was left of one that did not come to its end.
    begin_ = end_;
    Archive archive(&entries_.records);
    uint32_t size = 0;
    archive(size, operation, now_ms);
    return archive;
  }
  void End(uint64_t digest) {
    Archive (&entries_.records)(digest);
    const auto size = static_cast<uint32_t>(entries_.records.size() - begin_ - sizeof(uint32_t));
    std::memcpy(entries_.records.data() + begin_, &size, sizeof size);
    end_ = entries_.records.size();
    total_.store(total_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (++entries_.count == 1 && on_first) on_first();
  }
  void Bring(const Frame& frame) { entries_.frames.push_back(frame); }

  const Entries& entries() const { return entries_; }
  // Of all that were ever written. Any thread.
  uint64_t total() const { return total_.load(std::memory_order_relaxed); }
  Entries Take() {
    entries_.records.resize(std::exchange(end_, 0));
    return std::exchange(entries_, Entries());
  }

  // Called when there is something to Take where there was nothing. It must not call back.
  std::function<void()> on_first;

 private:
  Entries entries_;
  size_t begin_ = 0;  // of the record at hand
  size_t end_ = 0;    // of the last that is whole
  std::atomic<uint64_t> total_{0};
};

}  // namespace replay::server
