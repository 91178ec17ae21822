#pragma once
// What a buffer is told to be: who stays (retention), who is drawn (selector), how draws and inserts wait for each other
// (pacing). One struct for the configuration file, CreateBuffer and AlterBuffer.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace replay::server {

enum class RetentionKind : uint8_t { kFifo, kPositiveBias, kBest };
enum class SelectorKind : uint8_t {  // same order as the protocol's
  kUniform,
  kUniformDistinct,
  kLifo,
  kFifo,
  kEpoch,
  kUnusedFirst,
  kPrioritized,
  kRecency
};

std::string_view ToString(RetentionKind kind);  // "positive_bias"
std::string_view ToString(SelectorKind kind);   // "uniform_distinct"
// Whether a batch of this kind needs as many different items as it has slots.
bool IsDistinct(SelectorKind kind);
std::optional<RetentionKind> ParseRetention(std::string_view text);
std::optional<SelectorKind> ParseSelector(std::string_view text);

// A decimal in [0, 1) kept as written, so that floor(delta * N) is exact: 0.29 of 100 is 29 (in binary floating point it is 28).
struct Decimal {
  uint64_t numerator = 0;  // over denominator, a power of ten
  uint64_t denominator = 1;
  uint64_t FloorOf(uint64_t n) const;  // 128-bit inside
  std::string ToString() const;        // "0.25"
  bool operator==(const Decimal&) const = default;
};
// "" or the error. Accepts 0, 0.25, .5, 2.5e-1; up to 18 digits.
std::string ParseDecimal(std::string_view text, Decimal* decimal);

// What is retained and drawn as one. A trajectory without a group is a group of its own.
enum class Unit : uint8_t { kTrajectory, kGroup };
// What becomes of a group whose members all have one reward.
enum class ZeroSpread : uint8_t { kKeep, kRefuse };
// What an insert survives once it is answered: nothing, kill -9, power loss. Same numbers as the protocol's.
enum class AcknowledgementLevel : uint8_t { kMemory, kProcess, kDisk };
std::string_view ToString(Unit unit);                   // "trajectory"
std::string_view ToString(ZeroSpread what);             // "keep"
std::string_view ToString(AcknowledgementLevel level);  // "disk"
std::optional<Unit> ParseUnit(std::string_view text);
std::optional<ZeroSpread> ParseZeroSpread(std::string_view text);
std::optional<AcknowledgementLevel> ParseLevel(std::string_view text);

// See server/view.h and filter.h.
struct ViewOptions {
  std::string name;  // 1 to 64 of [A-Za-z0-9_.-]
  std::string filter;
  SelectorKind selector = SelectorKind::kUniform;
  double priority_exponent = 1;
  double staleness_decay = 0;
  bool operator==(const ViewOptions&) const = default;
};

struct BufferOptions {
  Unit unit = Unit::kTrajectory;  // of capacity_items, min_size and the count of a Sample; cannot be altered
  uint64_t capacity_items = 1'000'000;
  uint64_t capacity_bytes = 0;  // 0: chosen at creation from what is unassigned of the memory limit
  RetentionKind retention = RetentionKind::kFifo;
  Decimal delta;  // positive_bias, best: share of the capacity for older items that are correct, or of the highest reward
  SelectorKind selector = SelectorKind::kUniform;
  double priority_exponent = 1;          // prioritized: weight = priority^exponent …
  double staleness_decay = 0;            // … · exp(-staleness / decay), in gradient steps; 0: not. Of recency too
  std::optional<int64_t> max_staleness;  // What is staler is not drawn, and counted as withheld.
  uint32_t max_draws = 0;                // 0: unbounded
  // Evicted once this old, as of the last tick; 0: never. And once this much staler than the newest published step.
  uint64_t max_age_ms = 0;
  std::optional<int64_t> evict_staleness;
  std::optional<double> correct_threshold;
  std::vector<ViewOptions> views;
  bool closed = false;    // Inserts are refused, and a Sample that would wait for one is told.
  uint64_t lease_ms = 0;  // What is drawn is held until it is acknowledged, so long at most; 0: not held. See server/leases.h
  ZeroSpread zero_spread = ZeroSpread::kKeep;
  uint32_t parts = 1;           // Above 1: each rank draws from a part of its own.
  uint32_t prompt_history = 0;  // Prompts whose outcomes are remembered, see server/prompts.h; 0: none
  AcknowledgementLevel level = AcknowledgementLevel::kDisk;  // Of inserts that ask for none; without storage.path it is memory.

  double replay_ratio = 0;        // 0: no pacing
  double tolerance = 0;           // 0 with pacing: chosen as the least allowed, (max_draws_per_sample + max_insert * y) / 2
  bool tolerance_chosen = false;  // It was chosen so, and is chosen anew when the numbers in it are altered.
  uint64_t min_size = 1;
  uint32_t max_draws_per_sample = 0;  // 0: the protocol's limit without pacing; with pacing it must be given
  uint32_t max_insert = 0;
  bool pace_draws = true;  // false: this side is left unbounded
  bool pace_inserts = true;

  std::optional<uint64_t> seed;

  // N+ and N_fresh of server/retention.h.
  uint64_t positive_capacity() const { return retention == RetentionKind::kFifo ? 0 : delta.FloorOf(capacity_items); }
  uint64_t fresh_capacity() const { return capacity_items - positive_capacity(); }
};

// The number as an error message shows it: "0.5", "80".
std::string NumberText(double value);

// "" or the first rule that the options break, with the values and, for pacing, the sum:
//   "pacing: max_draws_per_sample + max_insert * replay_ratio = 64 + 8 * 2 = 80 exceeds 2 * tolerance = 40: draws and inserts
//    could wait for each other for ever"
// Fills in what is derived (tolerance). `capacity_bytes` is left to the caller.
std::string CheckOptions(BufferOptions* options);

// Names of the options as in the configuration file, for AlterBuffer's list.
std::span<const std::string_view> OptionNames();
// Copies the named option from `source`; false if there is none of that name.
bool CopyOption(std::string_view name, const BufferOptions& source, BufferOptions* target);
// "uniform": fifo + uniform; "positive_bias": positive_bias + uniform. False: no such preset.
bool ApplyPolicy(std::string_view policy, BufferOptions* options);

}  // namespace replay::server
