#include "tests/support/make_trajectory.h"

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace replay::test {
namespace {

void FillTokens(const TrajectoryOptions& options, schema::Trajectory::Builder trajectory) {
  uint32_t seed = 2166136261u;  // FNV-1a of the id
  for (char c : options.id) seed = (seed ^ static_cast<uint8_t>(c)) * 16777619u;
  auto ids = trajectory.initTokenIds(options.length);
  auto mask = trajectory.initLossMask(options.length);
  auto logprobs = trajectory.initBehaviourLogprobs(options.length);
  const uint32_t prompt = options.length / 4;
  for (uint32_t i = 0; i < options.length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.set(i, static_cast<int32_t>((seed >> 8) % 128'256));
    mask.set(i, i >= prompt ? 1 : 0);
    logprobs.set(i, i >= prompt ? -static_cast<float>(seed >> 8) / 1e6f : std::numeric_limits<float>::quiet_NaN());
  }
  trajectory.setPromptLength(prompt);
}

void FillVersions(const TrajectoryOptions& options, schema::Trajectory::Builder trajectory) {
  const auto count = static_cast<uint32_t>(options.versions.size());
  auto segments = trajectory.initVersionSegments(count);
  for (uint32_t i = 0; i < count; ++i) {
    segments[i].setBegin(options.length * i / count);
    segments[i].setEnd(options.length * (i + 1) / count);
    segments[i].setVersion(options.versions[i]);
  }
}

void FillOptional(const TrajectoryOptions& options, schema::Trajectory::Builder trajectory) {
  trajectory.setRolloutId("rollout-" + options.id);
  trajectory.setPartIndex(1);
  trajectory.setPartCount(3);
  auto segments = trajectory.initSegments(2);
  segments[0].setEnd(options.length / 2);
  segments[0].setRole(schema::Role::USER);
  segments[1].setBegin(options.length / 2);
  segments[1].setEnd(options.length);
  segments[1].setRole(schema::Role::ASSISTANT);
  segments[1].setTrainable(true);
  auto rewards = trajectory.initNamedRewards(2);
  rewards[0].setName("format");
  rewards[0].setValue(0.5f);
  rewards[1].setName("answer");
  rewards[1].setValue(1.0f);
  auto advantage = trajectory.getAdvantage().initPerToken(options.length);
  for (uint32_t i = 0; i < options.length; ++i) advantage.set(i, 0.25f * static_cast<float>(i));
  trajectory.setStatus(schema::Status::TRUNCATED_LENGTH);
  trajectory.setSource("gsm8k");
  trajectory.setDatasetIndex(7473);
  trajectory.setTemperature(0.7f);
  trajectory.setCreatedAtUnixNs(1'700'000'000'123'456'789);
  auto tags = trajectory.initTags(4);
  tags[0].setName("text");
  tags[0].setText("easy");
  tags[1].setName("integer");
  tags[1].setInteger(-3);
  tags[2].setName("real");
  tags[2].setReal(2.5);
  tags[3].setName("flag");
  tags[3].setFlag(true);
  auto opaque = trajectory.initOpaque(33);
  for (uint32_t i = 0; i < opaque.size(); ++i) opaque[i] = static_cast<uint8_t>(i * 7);
}

}  // namespace

Frame MakeTrajectory(const TrajectoryOptions& options) {
  capnp::MallocMessageBuilder scratch;
  auto trajectory = scratch.initRoot<schema::Trajectory>();
  trajectory.setTrajectoryId(options.id);
  trajectory.setRunId(options.run);
  trajectory.setEpoch(options.epoch);
  if (!options.group.empty()) {
    trajectory.setGroupId(options.group);
    trajectory.setGroupSize(std::max(1u, options.group_size));
    trajectory.setIndexInGroup(options.index_in_group);
  }
  FillTokens(options, trajectory);
  FillVersions(options, trajectory);
  trajectory.setCorrect(options.correct);
  trajectory.setReward(options.reward);
  if (options.rich) FillOptional(options, trajectory);
  if (options.edit) options.edit(trajectory);

  // The scratch message may have several segments and holes where a field was set twice: the copy has neither.
  const auto source = trajectory.asReader();
  std::vector<uint64_t> words(source.totalSize().wordCount + 1);
  capnp::FlatMessageBuilder flat(kj::arrayPtr(reinterpret_cast<capnp::word*>(words.data()), words.size()));
  flat.setRoot(source);
  words.resize(flat.getSegmentsForOutput()[0].size());
  return SealWords(words);
}

std::vector<Frame> MakeGroup(uint32_t size, const TrajectoryOptions& options) {
  std::vector<Frame> frames;
  TrajectoryOptions member = options;
  if (member.group.empty()) member.group = options.id;
  member.group_size = size;
  for (uint32_t i = 0; i < size; ++i) {
    member.id = options.id + "-" + std::to_string(i);
    member.index_in_group = i;
    frames.push_back(MakeTrajectory(member));
  }
  return frames;
}

Frame SealWords(const std::vector<uint64_t>& words) {
  const uint64_t body_bytes = words.size() * sizeof(uint64_t);
  Frame frame = Frame::Allocate(kFrameTableBytes + body_bytes + kChecksumBytes);
  const uint32_t table[2] = {0, static_cast<uint32_t>(words.size())};
  std::memcpy(frame.mutable_data(), table, sizeof table);
  if (body_bytes > 0) std::memcpy(frame.mutable_data() + kFrameTableBytes, words.data(), body_bytes);
  SealFrame({frame.mutable_data(), frame.size()});
  return frame;
}

}  // namespace replay::test
