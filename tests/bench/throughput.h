#pragma once
// Insert and sample throughput of replayd beside what else could move the same bytes: the blocking stand-in, memcpy, Redis.

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace replay::bench {

struct ThroughputOptions {
  std::string replayd;  // "": only the others, to look at the machine
  bool all = false;     // every combination; else the cases of the figures
  std::string only;     // cases whose name contains this
  int repeats = 5;
  double slice_seconds = 0.3;
  // Pre-built requests of all clients; half as much is live. Beyond the second-level cache, as a buffer is, but not so large
  // that the client mostly waits for its own memory: a generator has just written what it sends.
  uint64_t ring_bytes = 16 << 20;
  uint64_t pool_bytes = 1 << 30;  // what a sample draws from; beyond any cache
};
// Prints a table as it goes, to standard error, and returns the contests.
nlohmann::json RunThroughput(const ThroughputOptions& options);

}  // namespace replay::bench
