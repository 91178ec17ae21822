#include "server/verdict.h"

#include <array>

namespace replay::server {

std::string_view ToString(ErrorCode code) {
  static constexpr std::array<std::string_view, static_cast<size_t>(ErrorCode::kCount)> kNames = {"ok",
                                                                                                  "invalid_argument",
                                                                                                  "not_found",
                                                                                                  "already_exists",
                                                                                                  "timed_out",
                                                                                                  "resource_exhausted",
                                                                                                  "failed_precondition",
                                                                                                  "writer_expired",
                                                                                                  "corrupted",
                                                                                                  "unavailable",
                                                                                                  "buffer_dropped",
                                                                                                  "unsupported_version",
                                                                                                  "protocol_violation",
                                                                                                  "internal"};
  static_assert(!kNames.back().empty(), "each code has its name");
  return code < ErrorCode::kCount ? kNames[static_cast<size_t>(code)] : "unknown";
}

std::string_view ToString(WaitReason reason) {
  static constexpr std::array<std::string_view, static_cast<size_t>(WaitReason::kCount)> kNames = {
      "none",   "min_size", "pacing",   "staleness",   "filter", "group_incomplete",
      "memory", "storage",  "draining", "no_producer", "version"};
  static_assert(!kNames.back().empty(), "each reason has its name");
  return reason < WaitReason::kCount ? kNames[static_cast<size_t>(reason)] : "unknown";
}

}  // namespace replay::server
