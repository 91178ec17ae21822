#pragma once
// A histogram over fixed bounds, owned by one thread and copied when it is shown. Observing is a search in at most 15 bounds;
// over the bounds 0, 1, 2, 4, 8 … a count of bits: a draw observes twice, and mispredicted branches would be half its cost.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "server/archive.h"

namespace replay::server {

struct Histogram {
  std::span<const double> bounds;  // inclusive upper bounds, static storage
  std::vector<uint64_t> counts;    // bounds.size() + 1, not cumulative
  double sum = 0;

  Histogram() = default;
  explicit Histogram(std::span<const double> upper_bounds) : bounds(upper_bounds), counts(upper_bounds.size() + 1) {}
  // One with the same bounds.
  void Persist(Archive& archive) {
    archive(counts, sum);
    if (counts.size() != bounds.size() + 1) {
      counts.assign(bounds.size() + 1, 0);
      archive.Fail();
    }
  }
  void Observe(double value) {
    ++counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
    sum += value;
  }
  // Observe for whole numbers, where the bounds are 0, 1, 2, 4, 8 … (kStepBounds, kDrawBounds).
  void ObserveCount(int64_t value) {
    const auto positive = static_cast<uint64_t>(std::max<int64_t>(value, 0));
    const size_t bucket = positive == 0 ? 0 : static_cast<size_t>(std::bit_width(positive - 1)) + 1;
    ++counts[std::min(bucket, bounds.size())];
    sum += static_cast<double>(value);
  }
};

inline constexpr double kStepBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};  // staleness, steps since last use
inline constexpr double kDrawBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};             // bucket 0: generation wasted

}  // namespace replay::server
