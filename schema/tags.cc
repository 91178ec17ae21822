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

std::vector<NamedTag> ReadTags(std::span<const uint8_t> frame) {
  FrameReader reader(frame, /*passes=*/1);
  std::vector<NamedTag> tags;
  for (const auto& tag : reader.Root<schema::Trajectory>().getTags()) {
    const capnp::Text::Reader name = tag.getName();
    NamedTag& read = tags.emplace_back(NamedTag{.name = {name.begin(), name.size()}, .value = {}});
    if (tag.isInteger())
      read.value = tag.getInteger();
    else if (tag.isReal())
      read.value = tag.getReal();
    else if (tag.isFlag())
      read.value = tag.getFlag();
    else
      read.value = std::string(tag.getText().begin(), tag.getText().size());
  }
  return tags;
}

FrameTag ValueOf(const NamedTag& tag) {
  const auto number = [](double value) { return FrameTag{.kind = FrameTag::Kind::kNumber, .number = value, .text = {}}; };
  if (const auto* integer = std::get_if<int64_t>(&tag.value)) return number(static_cast<double>(*integer));
  if (const auto* real = std::get_if<double>(&tag.value)) return number(*real);
  if (const auto* flag = std::get_if<bool>(&tag.value))
    return {.kind = FrameTag::Kind::kFlag, .number = *flag ? 1.0 : 0.0, .text = {}};
  return {.kind = FrameTag::Kind::kText, .number = 0, .text = std::get<std::string>(tag.value)};
}

std::string CheckTag(const NamedTag& tag) {
  if (tag.name.empty()) return "tags.name is empty";
  const auto too_long = [](const char* field, size_t bytes, uint32_t most) {
    return std::string(field) + " has " + std::to_string(bytes) + " bytes: at most " + std::to_string(most) + " are allowed";
  };
  if (tag.name.size() > kMaxIdBytes) return too_long("tags.name", tag.name.size(), kMaxIdBytes);
  const auto* text = std::get_if<std::string>(&tag.value);
  if (text && text->size() > kMaxTagBytes) return too_long("tags.text", text->size(), kMaxTagBytes);
  return "";
}

}  // namespace replay
