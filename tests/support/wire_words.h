#pragma once
// Cap'n Proto pointers as words, to make messages that no builder would. https://capnproto.org/encoding.html
//
//   std::vector<uint64_t> words = WordsOf(MakeTrajectory());
//   words[PointerAt(words, kTokenIds)] = ListPointer(offset, ElementSize::kVoid, 1u << 29);
//   Frame hostile = SealWords(words);

#include <cstdint>
#include <cstring>
#include <vector>

#include "schema/message.h"

namespace replay::test {

enum class ElementSize : uint64_t { kVoid, kBit, kByte, kTwoBytes, kFourBytes, kEightBytes, kPointer, kComposite };

// `offset` counts words from the end of the pointer. For kComposite `count` is the words that follow the tag.
constexpr uint64_t ListPointer(int32_t offset, ElementSize size, uint32_t count) {
  return 1u | (static_cast<uint64_t>(static_cast<uint32_t>(offset) << 2)) | (static_cast<uint64_t>(size) << 32) |
         (static_cast<uint64_t>(count) << 35);
}
constexpr uint64_t StructPointer(int32_t offset, uint16_t data_words, uint16_t pointers) {
  return static_cast<uint64_t>(static_cast<uint32_t>(offset) << 2) | (static_cast<uint64_t>(data_words) << 32) |
         (static_cast<uint64_t>(pointers) << 48);
}
// The tag in front of a composite list's elements: a struct pointer whose offset is the element count.
constexpr uint64_t CompositeTag(uint32_t count, uint16_t data_words, uint16_t pointers) {
  return StructPointer(static_cast<int32_t>(count), data_words, pointers);
}
constexpr uint64_t FarPointer(uint32_t word, uint32_t segment, bool double_far) {
  return 2u | (double_far ? 4u : 0u) | (static_cast<uint64_t>(word) << 3) | (static_cast<uint64_t>(segment) << 32);
}

// The segment of a sealed frame.
inline std::vector<uint64_t> WordsOf(const Frame& frame) {
  std::vector<uint64_t> words((frame.size() - kFrameTableBytes - kChecksumBytes) / 8);
  std::memcpy(words.data(), frame.data() + kFrameTableBytes, words.size() * 8);
  return words;
}

// Pointer fields of Trajectory in the order of their declaration.
enum TrajectoryPointer : size_t {
  kTrajectoryId,
  kRunId,
  kGroupId,
  kRolloutId,
  kTokenIds,
  kSegments,
  kLossMask,
  kBehaviourLogprobs,
  kVersionSegments,
  kNamedRewards,
  kAdvantagePerToken,
  kSource,
  kTags,
  kOpaque,
  kColumnNames,
};
// Index of the word of the root struct's pointer `number`, for a root that follows its pointer at once.
inline size_t PointerAt(const std::vector<uint64_t>& words, size_t number) { return 1 + ((words[0] >> 32) & 0xffff) + number; }

}  // namespace replay::test
