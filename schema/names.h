#pragma once
// How the protocol's enumerators are called in messages, metrics and JSON; by their numbers in protocol.capnp.

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace replay {

// "fifo, lifo" with ", ": for messages that name what is allowed.
inline std::string JoinNames(std::span<const std::string_view> names, std::string_view separator) {
  std::string joined;
  for (const std::string_view name : names) joined.append(joined.empty() ? "" : separator).append(name);
  return joined;
}

inline constexpr auto kErrorCodeNames = std::to_array<std::string_view>(
    {"ok", "invalid_argument", "not_found", "already_exists", "timed_out", "resource_exhausted", "failed_precondition",
     "writer_expired", "corrupted", "unavailable", "buffer_dropped", "unsupported_version", "protocol_violation", "internal",
     "plan_expired", "key_reused", "closed", "storage_full", "storage_failed"});

inline constexpr auto kWaitReasonNames =
    std::to_array<std::string_view>({"none", "min_size", "pacing", "staleness", "filter", "group_incomplete", "memory",
                                     "storage", "draining", "no_producer", "version"});

inline constexpr auto kRetentionNames = std::to_array<std::string_view>({"fifo", "positive_bias", "best"});

inline constexpr auto kSelectorNames = std::to_array<std::string_view>(
    {"uniform", "uniform_distinct", "lifo", "fifo", "epoch", "unused_first", "prioritized", "recency"});

inline constexpr auto kUnitNames = std::to_array<std::string_view>({"trajectory", "group"});

inline constexpr auto kZeroSpreadNames = std::to_array<std::string_view>({"keep", "refuse"});

inline constexpr auto kLevelNames = std::to_array<std::string_view>({"memory", "process", "disk"});

}  // namespace replay
