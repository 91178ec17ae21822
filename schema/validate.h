#pragma once
// Everything the daemon decides by is read from a core frame once, here, when it comes in; afterwards the frame is opaque bytes.
// The client runs the same check before it sends, so that an error appears where the trajectory was made.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/message.h"

namespace replay {

// As the producer said it; same numbers as schema::Correctness.
enum class Outcome : uint8_t { kUnknown = 0, kIncorrect = 1, kCorrect = 2 };

// Where a text stands in a frame.
struct FrameText {
  uint32_t offset = 0;
  uint32_t size = 0;
  std::string_view In(std::span<const uint8_t> frame) const {
    return {reinterpret_cast<const char*>(frame.data()) + offset, size};
  }
};

// What an index row needs to know about a trajectory.
struct TrajectoryFacts {
  Key128 id;
  Key128 group;  // zero: none
  Key128 run;
  uint64_t epoch = 0;
  int64_t min_version = 0;  // of the version segments; 0 without any
  int64_t max_version = 0;
  uint32_t token_count = 0;
  uint32_t group_size = 0;
  uint32_t index_in_group = 0;
  float reward = 0;
  float priority = 1;
  int64_t dataset_index = -1;  // negative: of no prompt
  Outcome correct = Outcome::kUnknown;
  bool has_tags = false;
  uint16_t column_count = 0;  // names in column_names
  FrameText source;
};

// The run of the trajectory before: nearly always that of the next, so that it need not be hashed again.
struct LastRun {
  std::string id;
  Key128 hash = HashId("");
};

struct ValidateOptions {
  bool check_checksum = true;
  bool only_generated_code = false;  // Without the short way for plain trajectories: for the test that holds them equal.
  LastRun* last_run = nullptr;       // kept by the caller
};

// Checks one core frame whole: shape, checksum, every list length against the token count, every range, every limit of
// limits.h. Returns "" and fills `facts`, or an error that names the field, the value and the rule, e.g.
//   "loss_mask has 12 entries, token_ids has 14: they must agree".
// `checksum_error`, if given, is set when it was the checksum that failed. Never throws.
std::string ValidateTrajectory(std::span<const uint8_t> frame, const ValidateOptions& options, TrajectoryFacts* facts,
                               bool* checksum_error = nullptr);

// Checks that the trajectories of one request are whole groups: for each group id as many members as group_size says, the
// same size in each, every index once; and that no trajectory id stands twice. "" or the error, which names the position in
// the request. `scratch` is kept by the caller so that steady traffic allocates nothing.
struct GroupScratch {
  std::vector<uint32_t> order;
};
inline bool IsOneOfItsOwn(std::span<const TrajectoryFacts> facts) { return facts.size() == 1 && facts[0].group_size <= 1; }
// With `partial` a group need not be whole.
std::string ValidateGroups(std::span<const TrajectoryFacts> facts, GroupScratch* scratch, bool partial = false);

// "" or what is wrong with a buffer's name: 1..64 of [A-Za-z0-9_.-].
std::string ValidateBufferName(std::string_view name);

}  // namespace replay
