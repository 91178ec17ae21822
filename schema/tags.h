#pragma once
// A trajectory's tags, read from its frame one at a time: what few buffers ask for is not among the facts that each insert reads.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace replay {

// The value of a tag.
struct FrameTag {
  enum class Kind : uint8_t { kNone, kNumber, kFlag, kText };
  Kind kind = Kind::kNone;
  double number = 0;  // also of a flag: 0 or 1. An integer beyond 2^53 is rounded.
  std::string text;
};
// That of the first tag of this name in a frame that ValidateTrajectory passed; kNone without one.
FrameTag ReadTag(std::span<const uint8_t> frame, std::string_view name);

// A tag outside of a frame, as Update brings it: with the type it was sent with.
struct NamedTag {
  std::string name;
  std::variant<std::string, int64_t, double, bool> value;
  bool operator==(const NamedTag&) const = default;
};
FrameTag ValueOf(const NamedTag& tag);
// All those of a frame that ValidateTrajectory passed, as they stand there.
std::vector<NamedTag> ReadTags(std::span<const uint8_t> frame);
// "" or what is wrong with a tag, the rule being that of tags in a frame.
std::string CheckTag(const NamedTag& tag);

}  // namespace replay
