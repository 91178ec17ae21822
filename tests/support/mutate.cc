#include "tests/support/mutate.h"

#include <algorithm>
#include <cstring>

#include "schema/trajectory.capnp.h"

namespace replay::test {
namespace {

uint64_t Sum(capnp::Text::Reader text) {
  uint64_t sum = text.size();
  for (char c : text) sum += static_cast<uint8_t>(c);
  return sum;
}

template <typename List>
uint64_t SumOf(List list) {
  uint64_t sum = list.size();
  for (auto entry : list) {
    uint32_t bits = 0;
    std::memcpy(&bits, &entry, sizeof entry);
    sum += bits;
  }
  return sum;
}

uint64_t SumOf(schema::Trajectory::Reader trajectory) {
  uint64_t sum = Sum(trajectory.getTrajectoryId()) + Sum(trajectory.getRunId()) + Sum(trajectory.getGroupId()) +
                 Sum(trajectory.getRolloutId()) + Sum(trajectory.getSource());
  sum += SumOf(trajectory.getTokenIds()) + SumOf(trajectory.getLossMask()) + SumOf(trajectory.getBehaviourLogprobs());
  if (trajectory.getAdvantage().isPerToken()) sum += SumOf(trajectory.getAdvantage().getPerToken());
  for (const auto& segment : trajectory.getSegments()) sum += segment.getBegin() + segment.getEnd();
  for (const auto& segment : trajectory.getVersionSegments()) sum += static_cast<uint64_t>(segment.getVersion());
  for (const auto& reward : trajectory.getNamedRewards()) sum += Sum(reward.getName());
  for (const auto& tag : trajectory.getTags()) sum += Sum(tag.getName()) + (tag.isText() ? Sum(tag.getText()) : 0);
  for (const auto& name : trajectory.getColumnNames()) sum += Sum(name);
  for (uint8_t byte : trajectory.getOpaque()) sum += byte;
  return sum;
}

}  // namespace

void MutateWords(std::vector<uint64_t>* words, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !words->empty(); --changes) {
    uint64_t& word = (*words)[random() % words->size()];
    const auto byte = random() % 8;
    switch (random() % 9) {
      case 0:
        word ^= 1ull << (random() % 64);
        break;
      case 1:
        reinterpret_cast<uint8_t*>(&word)[byte] = static_cast<uint8_t>(random());
        break;
      case 2:
        word = 0;
        break;
      case 3:
        word = (*words)[random() % words->size()];
        break;
      case 4:
        word += (random() % 9 - 4) << 2;
        break;  // a pointer's offset
      case 5:
        word += (random() % 9 - 4) << 35;
        break;  // a list's length
      case 6:
        word = (word & ~(7ull << 32)) | (random() % 8) << 32;
        break;  // a list's element size
      case 7:
        word ^= random() % 4;
        break;  // a pointer's kind
      default:
        if (random() % 8 == 0) words->resize(std::max<size_t>(1, random() % words->size()));
    }
  }
}

uint64_t ReadWholeTrajectory(const Frame& frame, int times) {
  FrameReader reader(frame.bytes());
  uint64_t sum = 0;
  for (int i = 0; i < times; ++i) sum += SumOf(reader.Root<schema::Trajectory>());
  return sum;
}

}  // namespace replay::test
