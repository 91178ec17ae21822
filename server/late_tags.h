#pragma once
// LateTags: the tags that Update has given items, by slot. They stand in place of those of the same name in the frame, which keeps
// what was inserted. Items without any cost nothing here. Put, Find: O(tags of the item). Belongs to its buffer's thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schema/tags.h"
#include "server/archive.h"

namespace replay::server {

class LateTags {
 public:
  // Each in place of the one of its name; the later of two counts. WhyRefused said "".
  void Put(uint32_t slot, std::span<const NamedTag> tags);
  void Remove(uint32_t slot) {
    if (!by_slot_.empty()) RemoveAll(slot);
  }
  // Of the item; none for most.
  std::span<const NamedTag> Of(uint32_t slot) const;
  // As Update wrote it last, else as it stands in the frame.
  FrameTag Read(uint32_t slot, const Frame& frame, std::string_view name) const;
  // "" or why the item cannot have these beside those that it has: too many, or too many bytes.
  std::string WhyRefused(uint32_t slot, std::span<const NamedTag> tags) const;

  // What the item would count towards capacity_bytes with these.
  uint64_t HeldBytesWith(uint32_t slot, std::span<const NamedTag> tags) const;

  // What counts towards the buffer's capacity_bytes: names, texts and 16 bytes a tag.
  uint64_t held_bytes() const { return held_bytes_; }
  uint64_t memory_bytes() const;  // beside that
  static uint64_t BytesOf(const NamedTag& tag);
  // At most this much of a control message.
  static uint64_t WireBytes(std::span<const NamedTag> tags);
  void Persist(Archive& archive);
  // Dies with a message if the sum is not that of the tags. O(tags).
  void CheckInvariants() const;

 private:
  void RemoveAll(uint32_t slot);
  static void Merge(std::span<const NamedTag> tags, std::vector<NamedTag>* into);
  std::vector<NamedTag> Merged(uint32_t slot, std::span<const NamedTag> tags) const;

  std::unordered_map<uint32_t, std::vector<NamedTag>> by_slot_;
  uint64_t held_bytes_ = 0;
};

}  // namespace replay::server
