#include "server/late_tags.h"

#include <algorithm>
#include <utility>

#include "schema/limits.h"
#include "server/check.h"
#include "server/frame_note.h"
#include "server/requests_archive.h"

namespace replay::server {
namespace {

uint64_t Sum(std::span<const NamedTag> tags) {
  uint64_t bytes = 0;
  for (const NamedTag& tag : tags) bytes += LateTags::BytesOf(tag);
  return bytes;
}

}  // namespace

uint64_t LateTags::BytesOf(const NamedTag& tag) {
  const auto* text = std::get_if<std::string>(&tag.value);
  return 16 + tag.name.size() + (text ? text->size() : 0);
}

uint64_t LateTags::WireBytes(std::span<const NamedTag> tags) { return Sum(tags) + tags.size() * 48; }

void LateTags::Merge(std::span<const NamedTag> tags, std::vector<NamedTag>* into) {
  for (const NamedTag& tag : tags) {
    const auto same = std::find_if(into->begin(), into->end(), [&](const NamedTag& each) { return each.name == tag.name; });
    if (same == into->end())
      into->push_back(tag);
    else
      same->value = tag.value;
  }
}

void LateTags::Put(uint32_t slot, std::span<const NamedTag> tags) {
  if (tags.empty()) return;
  std::vector<NamedTag>& own = by_slot_[slot];
  held_bytes_ -= Sum(own);
  Merge(tags, &own);
  held_bytes_ += Sum(own);
}

void LateTags::RemoveAll(uint32_t slot) {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return;
  held_bytes_ -= Sum(found->second);
  by_slot_.erase(found);
}

std::span<const NamedTag> LateTags::Of(uint32_t slot) const {
  if (by_slot_.empty()) return {};
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() ? std::span<const NamedTag>() : found->second;
}

FrameTag LateTags::Read(uint32_t slot, const Frame& frame, std::string_view name) const {
  for (const NamedTag& tag : Of(slot))
    if (tag.name == name) return ValueOf(tag);
  return TagOf(frame, name);
}

std::vector<NamedTag> LateTags::Merged(uint32_t slot, std::span<const NamedTag> tags) const {
  const auto own = Of(slot);
  std::vector<NamedTag> merged(own.begin(), own.end());
  Merge(tags, &merged);
  return merged;
}

uint64_t LateTags::HeldBytesWith(uint32_t slot, std::span<const NamedTag> tags) const { return Sum(Merged(slot, tags)); }

std::string LateTags::WhyRefused(uint32_t slot, std::span<const NamedTag> tags) const {
  if (tags.empty()) return "";
  const std::vector<NamedTag> merged = Merged(slot, tags);
  if (merged.size() > kMaxTags)
    return "the item would have " + std::to_string(merged.size()) + " tags from updates: at most " + std::to_string(kMaxTags) +
           " are allowed";
  if (const uint64_t bytes = Sum(merged); bytes > kMaxLateTagBytes)
    return "the item's tags from updates would take " + std::to_string(bytes) + " bytes: at most " +
           std::to_string(kMaxLateTagBytes) + " are allowed";
  return "";
}

uint64_t LateTags::memory_bytes() const {
  constexpr uint64_t kNodeBytes = sizeof(void*) + sizeof(std::pair<const uint32_t, std::vector<NamedTag>>) + 16;
  uint64_t bytes = by_slot_.bucket_count() * sizeof(void*) + by_slot_.size() * kNodeBytes;
  for (const auto& [slot, tags] : by_slot_) bytes += tags.capacity() * sizeof(NamedTag);
  return bytes;
}

void LateTags::Persist(Archive& archive) {
  archive(held_bytes_);
  PersistBySlot(archive, by_slot_);
}

void LateTags::CheckInvariants() const {
  uint64_t bytes = 0;
  for (const auto& [slot, tags] : by_slot_) {
    CHECK(!tags.empty()) << "slot " << slot;
    bytes += Sum(tags);
  }
  CHECK(bytes == held_bytes_) << bytes << " bytes of late tags, counted " << held_bytes_;
}

}  // namespace replay::server
