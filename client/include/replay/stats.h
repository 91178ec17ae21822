#pragma once
// What Client::Stats returns: the counters of the server and of each buffer, as they stand.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "replay/buffer_options.h"

namespace replay {

using NamedCounts = std::vector<std::pair<std::string, uint64_t>>;

struct Histogram {
  std::vector<double> bounds;    // inclusive upper bounds
  std::vector<uint64_t> counts;  // bounds.size() + 1, not cumulative
  double sum = 0;
};

// The trajectories of one source, one bucket of lengths, or one number of draws.
struct Breakdown {
  std::string name;  // "math" | "129-256" tokens | "3-4" draws
  uint64_t live = 0, inserted = 0;
  uint64_t withheld = 0;  // Of live: not to be drawn by the last Sample.
  NamedCounts removed;    // By reason; what never happened is left out.
};

struct BufferStats {
  std::string name;
  BufferOptions options;                          // in force
  uint64_t spilled_items = 0, spilled_bytes = 0;  // of the next two: on disk only
  uint64_t items = 0, bytes = 0, index_bytes = 0, tokens = 0, positive_items = 0, scored = 0, correct = 0;
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0;  // offered = accepted + duplicate + rejected + pending
  uint64_t zero_spread = 0;                                         // Of items: of groups whose members have one reward.
  uint64_t zero_spread_refused = 0;                                 // Of rejected.
  NamedCounts removed;                                              // accepted = items + sum of removed
  uint64_t drawn = 0, samples = 0, tokens_inserted = 0, tokens_drawn = 0, withheld = 0;
  Histogram staleness, reuse_gap, item_draws;
  NamedCounts outcomes;
  int64_t oldest_version = 0, newest_version = 0, consumer_step = 0;
  double pacing_balance = 0;
  uint64_t waiting_inserts = 0, waiting_samples = 0;
  double generation_seconds = 0, training_seconds = 0;
  uint64_t generated_trajectories = 0, trained_draws = 0;
  uint32_t workers = 0, trainers = 0, producers = 0, consumers = 0;
  NamedCounts views;                                  // live items (or groups) of each; with parts first of these, "part 0" …
  uint64_t prompts = 0;                               // remembered
  uint64_t groups = 0;                                // live, where they are the unit
  uint64_t reserved_groups = 0, pending = 0;          // pending: members of those that are there; nobody sees them yet
  uint64_t expired_groups = 0;                        // reserved ones whose lease or deadline ended: dropped or released
  uint64_t held = 0, leases = 0, expired_leases = 0;  // held: items (or groups) under a lease
  uint64_t column_bytes = 0;                          // of the column frames, beside bytes
  NamedCounts columns;                                // live items that have each
  // The first 63 sources, the others together as "(other)"; every bucket of lengths; by the draws an item had when it was
  // removed, of which there is only `removed`.
  std::vector<Breakdown> sources, lengths, draws;
};

struct ServerStats {
  std::string version;
  uint64_t generation = 0;
  double uptime_seconds = 0;
  uint64_t connections = 0, accepted_connections = 0, memory_used_bytes = 0, memory_limit_bytes = 0;
  NamedCounts requests, errors;
  std::vector<BufferStats> buffers;
};

}  // namespace replay
