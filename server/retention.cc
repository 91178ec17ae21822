#include "server/retention.h"

namespace replay::server {

Retention::Retention(const BufferOptions& options)
    : fresh_capacity_(options.fresh_capacity()),
      positive_capacity_(options.positive_capacity()),
      any_outcome_(options.retention == RetentionKind::kBest),
      capacity_bytes_(options.capacity_bytes == 0 ? UINT64_MAX : options.capacity_bytes),
      correct_threshold_(options.correct_threshold) {}

std::string Retention::WhyTooLarge(uint64_t trajectories, uint64_t bytes) const {
  if (Fits(trajectories, bytes)) return "";
  using std::to_string;
  if (trajectories > fresh_capacity_)
    return to_string(trajectories) + " trajectories in one request, but the buffer keeps " + to_string(fresh_capacity_) +
           " fresh ones (capacity_items " + to_string(fresh_capacity_ + positive_capacity_) + ", " +
           to_string(positive_capacity_) + " of them for older ones that stay on)";
  return to_string(bytes) + " bytes in one request, but the buffer keeps " + to_string(capacity_bytes_) +
         " (capacity_bytes; each frame counts " + to_string(Frame::kOverheadBytes) + " bytes more than its size)";
}

}  // namespace replay::server
