#include "schema/tags.h"

#include "schema/message.h"
#include "schema/trajectory.capnp.h"

namespace replay {

FrameTag ReadTag(std::span<const uint8_t> frame, std::string_view name) {
  FrameReader reader(frame, /*passes=*/1);
  for (const auto& tag : reader.Root<schema::Trajectory>().getTags()) {
    const capnp::Text::Reader tag_name = tag.getName();
    if (std::string_view(tag_name.begin(), tag_name.size()) != name) continue;
    if (tag.isInteger()) return {.kind = FrameTag::Kind::kNumber, .number = static_cast<double>(tag.getInteger()), .text = {}};
    if (tag.isReal()) return {.kind = FrameTag::Kind::kNumber, .number = tag.getReal(), .text = {}};
    if (tag.isFlag()) return {.kind = FrameTag::Kind::kFlag, .number = tag.getFlag() ? 1.0 : 0.0, .text = {}};
    const capnp::Text::Reader text = tag.getText();
    return {.kind = FrameTag::Kind::kText, .number = 0, .text = std::string(text.begin(), text.size())};
  }
  return {};
}

}  // namespace replay
