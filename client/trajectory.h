#pragma once
// Trajectory → frame → TrajectoryView. The frame that is built here, once, is what travels and what the daemon keeps.
//
//   Trajectory ──EncodeTrajectory──► frame (sized first, filled in place, sealed) ──► wire … disk … wire ──ViewFrame──► view
//
// Pure functions, any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/column.h"
#include "replay/client.h"
#include "replay/trajectory.h"
#include "schema/message.h"
#include "schema/validate.h"

namespace replay {

struct TrajectoryView::Data {
  Frame frame;  // what everything else points into
  std::string_view trajectory_id, run_id, group_id;
  std::span<const int32_t> token_ids;
  std::span<const uint8_t> loss_mask;
  std::span<const float> behaviour_logprobs;
  std::vector<VersionSegment> version_segments;  // copied: a newer schema may have wider entries
  std::vector<std::pair<std::string_view, float>> named_rewards;
  std::variant<std::monostate, float, std::span<const float>> advantage;
  uint64_t epoch = 0;
  uint32_t group_size = 0, index_in_group = 0, prompt_length = 0;
  float reward = 0, temperature = 1, priority = 1;
  Correctness correct = Correctness::kUnknown;
  FinishStatus status = FinishStatus::kCompleted;
  std::vector<ColumnView> columns;
};

// Ids for trajectories that came without: 32 hexadecimal digits of the maker, '-', a count. Any thread.
class IdMaker {
 public:
  IdMaker();
  std::string Next();

 private:
  std::string prefix_;
  std::atomic<uint64_t> next_{1};
};

// 128 random bits.
Key128 RandomKey();

// The exact number of words of the frame's segment.
uint64_t TrajectoryWords(const Trajectory& trajectory, std::string_view id);

// Builds and seals the frame; an empty trajectory_id is replaced by one of `ids`, a created_at of 0 by now. Checks only what
// would not fit into a frame: ValidateTrajectory checks the rest.
Result<Frame> EncodeTrajectory(const Trajectory& trajectory, IdMaker& ids, std::string* id_of_frame = nullptr);

// What one Insert stores whole or not at all.
struct EncodedGroup {
  std::vector<Frame> frames;
  std::vector<EncodedColumn> columns;  // in the order of their frames
  uint64_t bytes = 0;
};
// Encodes and checks as the server will: every trajectory, and that groups are whole. Errors name the position and the field.
// With `partial` groups need not be.
Result<EncodedGroup> EncodeGroup(std::span<const Trajectory> group, IdMaker& ids, bool partial = false);

// Parses once into spans. The frame's checksum has been compared. Errors: kCorrupted.
Result<TrajectoryView> ViewFrame(Frame frame, std::vector<ColumnView> columns = {});

}  // namespace replay
