#pragma once
// A trajectory as a program sees it: `Trajectory` is what a generator fills in, `TrajectoryView` is what a trainer reads.
//
//   replay::Trajectory rollout;
//   rollout.trajectory_id = "step12-prompt7-2";      // empty: the client makes one up
//   rollout.token_ids = {1, 15, 9, 204, 2};          // [L] prompt and response
//   rollout.prompt_length = 2;
//   rollout.loss_mask = {0, 0, 1, 1, 1};             // [L]
//   rollout.behaviour_logprobs = {NAN, NAN, -0.1f, -2.3f, -0.7f};  // [L], NaN where not generated
//   rollout.version_segments = {{2, 5, 12}};         // tokens [2, 5) came from policy version 12
//   rollout.reward = 1.0f;
//   rollout.correct = replay::Correctness::kYes;
//
// A group (GRPO: the rollouts of one prompt) shares group_id and group_size, each member has its own index_in_group.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "replay/column.h"

namespace replay {

enum class Correctness : uint8_t { kUnknown, kNo, kYes };
enum class FinishStatus : uint8_t {
  kCompleted,
  kTruncatedLength,
  kTruncatedTurns,
  kAborted,
  kFailedParse,
  kFailedTimeout,
  kFailedEnvironment
};
enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };

struct Segment {  // Tokens [begin, end) were written by `role`.
  uint32_t begin = 0;
  uint32_t end = 0;
  Role role = Role::kAssistant;
  bool trainable = false;
  bool operator==(const Segment&) const = default;
};

struct VersionSegment {  // Tokens [begin, end) were sampled from policy `version`.
  uint32_t begin = 0;
  uint32_t end = 0;
  int64_t version = 0;
  bool operator==(const VersionSegment&) const = default;
};

using TagValue = std::variant<std::string, int64_t, double, bool>;

struct Trajectory {
  std::string trajectory_id;  // At most 128 bytes, as every id here. Unique among the live items of a buffer.
  std::string run_id;
  uint64_t epoch = 0;    // Raised when a trainer restarts from an older step.
  std::string group_id;  // Empty: belongs to no group.
  uint32_t group_size = 0;
  uint32_t index_in_group = 0;
  std::string rollout_id;  // Parent of several training rows made from one rollout.
  uint32_t part_index = 0;
  uint32_t part_count = 0;
  std::vector<int32_t> token_ids;  // [L], not negative
  uint32_t prompt_length = 0;
  std::vector<Segment> segments;          // ordered, not overlapping
  std::vector<uint8_t> loss_mask;         // [L] 0 or 1
  std::vector<float> behaviour_logprobs;  // [L] or empty; kept bit-exact
  std::vector<VersionSegment> version_segments;
  float reward = 0;
  std::vector<std::pair<std::string, float>> named_rewards;
  Correctness correct = Correctness::kUnknown;
  std::variant<std::monostate, float, std::vector<float>> advantage;  // none, scalar, [L]
  FinishStatus status = FinishStatus::kCompleted;
  std::string source;
  int64_t dataset_index = -1;
  float temperature = 1;
  int64_t created_at_unix_ns = 0;  // 0: the client stamps it when it encodes
  std::vector<std::pair<std::string, TagValue>> tags;
  std::vector<uint8_t> opaque;  // Never interpreted.
  float priority = 1;           // At first, for the selector prioritized: 0 (never drawn) to 1e9.
  std::vector<Column> columns;  // Heavy data, fetched only by name; token and ragged ones are [L, …].
};

// A received trajectory: views into the bytes as they came over the wire, nothing copied. Copying a view is cheap and keeps
// the bytes alive; the spans are valid as long as any copy is. Immutable, any thread.
class TrajectoryView {
 public:
  std::string_view trajectory_id() const;
  std::string_view run_id() const;
  uint64_t epoch() const;
  std::string_view group_id() const;
  uint32_t group_size() const;
  uint32_t index_in_group() const;
  std::span<const int32_t> token_ids() const;  // [L]
  uint32_t prompt_length() const;
  std::span<const uint8_t> loss_mask() const;         // [L]
  std::span<const float> behaviour_logprobs() const;  // [L] or empty
  std::span<const VersionSegment> version_segments() const;
  float reward() const;
  std::optional<float> named_reward(std::string_view name) const;
  Correctness correct() const;
  std::variant<std::monostate, float, std::span<const float>> advantage() const;  // none, scalar, [L]
  FinishStatus status() const;
  float temperature() const;  // of sampling
  float priority() const;     // as it was inserted
  // Those that were asked for and that it has; null: not this one.
  std::span<const ColumnView> columns() const;
  const ColumnView* column(std::string_view name) const;
  // Everything, copied out; of the columns those above.
  Trajectory ToTrajectory() const;
  // The frame exactly as its generator built it, checksum included.
  std::span<const uint8_t> frame_bytes() const;

  struct Data;  // of the library
  explicit TrajectoryView(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

}  // namespace replay
