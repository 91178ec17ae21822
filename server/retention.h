#pragma once
// Retention decides who stays.
//
//   fifo:                 N+ = 0
//   positive_bias(delta): N+ = floor(delta * N), exactly          N_fresh = N - N+
//   best(delta):          N+ and N_fresh likewise
//
//   fresh    = the N_fresh freshest live items by insertion order
//   positive = what is older: with positive_bias at most the N+ freshest of it, and only correct ones; with best the N+ of the
//              highest reward, the newer of two with the same
//   bytes    = frame bytes + Frame::kOverheadBytes for each item <= capacity_bytes; over it the positive go first, oldest
//              or worst first, then the oldest fresh
//
// So an item that leaves the fresh ring stays on if it is correct (or good enough), and nothing that has left comes back. Where
// fresh items are deleted, drawn out, or N_fresh is raised, the newest positive ones are among the N_fresh freshest again and
// count as fresh, which makes room among the positive. Until N+ such items exist the buffer is smaller than N.
//
// Correct is decided once, at insert: as the producer said; where it said unknown, reward >= correct_threshold if a threshold
// is set (and incorrect below it), else unknown stays unknown, which is not correct.
//
// A plain value: it only decides, one step at a time; Buffer carries the steps out. Each step O(1), with best O(log N+); each
// insert 1 to 2 steps.

#include <cstdint>
#include <string>

#include "schema/validate.h"
#include "server/buffer_options.h"

namespace replay::server {

class Retention {
 public:
  explicit Retention(const BufferOptions& options);

  // What the buffer holds, as Next needs to know it.
  struct Contents {
    uint64_t fresh = 0;
    uint64_t positive = 0;
    uint64_t bytes = 0;                 // with the overhead of each frame, and with what is held beside the items
    bool oldest_fresh_correct = false;  // false without a fresh item; best does not ask
  };
  enum class Step : uint8_t {
    kDone,           // Everybody stays where they are.
    kMakeFresh,      // The newest positive item counts as fresh again.
    kMakePositive,   // The oldest fresh item enters the positive ring.
    kEvictPositive,  // For capacity: the oldest, with best the worst
    kEvictOldestFresh,
    kEvictPositiveForBytes,
    kEvictOldestFreshForBytes,
  };
  // The next step towards the rule above. Called until kDone.
  Step Next(const Contents& contents) const {
    if (contents.fresh < fresh_capacity_ && contents.positive > 0) return Step::kMakeFresh;
    if (contents.fresh > fresh_capacity_)
      return (contents.oldest_fresh_correct || any_outcome_) && positive_capacity_ > 0 ? Step::kMakePositive
                                                                                       : Step::kEvictOldestFresh;
    if (contents.positive > positive_capacity_) return Step::kEvictPositive;
    if (contents.bytes > capacity_bytes_ && contents.positive + contents.fresh > 0)
      return contents.positive > 0 ? Step::kEvictPositiveForBytes : Step::kEvictOldestFreshForBytes;
    return Step::kDone;
  }

  // Whether a request of so many trajectories and bytes (with overhead) can be held whole.
  bool Fits(uint64_t trajectories, uint64_t bytes) const { return trajectories <= fresh_capacity_ && bytes <= capacity_bytes_; }
  // "" or why a request of so many trajectories and bytes (with overhead) can never be held whole:
  //   "12 trajectories in one request, but the buffer keeps 8 fresh ones (capacity_items 10, 2 of them for older ones that stay
  //    on)"
  std::string WhyTooLarge(uint64_t trajectories, uint64_t bytes) const;

  Outcome Decide(Outcome said, float reward) const {
    if (said != Outcome::kUnknown || !correct_threshold_) return said;
    // As float, since the reward is one: 0.7f lies below the double 0.7.
    return reward >= static_cast<float>(*correct_threshold_) ? Outcome::kCorrect : Outcome::kIncorrect;
  }

 private:
  uint64_t fresh_capacity_;
  uint64_t positive_capacity_;
  bool any_outcome_;         // stays on: best
  uint64_t capacity_bytes_;  // UINT64_MAX: unbounded
  std::optional<double> correct_threshold_;
};

}  // namespace replay::server
