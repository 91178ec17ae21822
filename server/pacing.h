#pragma once
// Pacing holds draws to replay_ratio (y) per inserted trajectory, inside a band. All counts are trajectories.
//
//   balance = (inserted - baseline) * y - drawn
//   draws of n wait    while available < min_size (with or without pacing), or balance - n < -tolerance
//   inserts of n wait  never while available < min_size, else while balance + n * y > tolerance
//
// available: live items that may be drawn (Cohorts), so that neither side waits for the other after a trainer went back to an
// older step. baseline: what was inserted by requests that came while available < min_size, the first time or again; nobody
// waited for it, so it does not count. An explicit delete of an item that was never drawn and not part of the baseline takes
// its insert back; draws given back take theirs back. pace_draws or pace_inserts = false leaves that side unbounded.
//
// Both sides cannot wait at once: balance - n < -tolerance and balance + m * y > tolerance together say n + m * y > 2 *
// tolerance, which CheckOptions refuses for the largest n and m. And a distinct selector, which needs n different items, has
// min_size >= the largest n, so that inserts go on until they are there.
//
// A plain value: no clock, no lock, no wait. Lives on its buffer's thread; ReplayService does the waiting. Everything O(1).

#include <cstdint>
#include <string>

#include "server/archive.h"
#include "server/buffer_options.h"
#include "server/verdict.h"

namespace replay::server {

class Pacing {
 public:
  explicit Pacing(const BufferOptions& options);
  // Keeps the balance as it stands, drawn into the new band; counts on from there with the new ratio.
  void Alter(const BufferOptions& options);

  // Otherwise nobody ever waits here, whatever is available.
  bool paces() const { return replay_ratio_ != 0; }
  bool InsertMustWait(uint64_t count, uint64_t available) const;
  // `given_back` counts as if it had been taken back already.
  bool DrawMustWait(uint64_t count, uint64_t given_back) const;
  bool filling(uint64_t available) const { return available < min_size_; }
  uint64_t min_size() const { return min_size_; }

  // Returns true if these count, false if they were part of the baseline. `available` is from before the insert.
  bool OnInsert(uint64_t count, uint64_t available);
  uint64_t OnDraw(uint64_t count, uint64_t given_back);  // how much of `given_back` was taken back
  void OnDeleteOfUndrawn();                              // of an item whose insert counted

  void Persist(Archive& archive) { archive(carried_, inserted_, drawn_, outstanding_); }  // beside the options
  double balance() const;                                                                 // 0 without pacing
  // "balance 41 + 8 inserts * replay_ratio 2 would exceed tolerance 50: 7 more draws are needed". Empty if they need not wait.
  std::string WhyInsertWaits(uint64_t count, uint64_t available) const;
  std::string WhyDrawWaits(uint64_t count, uint64_t given_back) const;

 private:
  void Configure(const BufferOptions& options);

  double replay_ratio_ = 0;  // 0: no pacing
  double tolerance_ = 0;
  uint64_t min_size_ = 1;
  bool pace_draws_ = true;
  bool pace_inserts_ = true;

  double carried_ = 0;        // the balance at the last Alter
  int64_t inserted_ = 0;      // since then, without the baseline
  int64_t drawn_ = 0;         // since then, less what was given back
  uint64_t outstanding_ = 0;  // draws that could still be given back: all ever, less what was
};

}  // namespace replay::server
