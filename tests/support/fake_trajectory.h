#pragma once
// Frames and facts for tests of Buffer, which never looks into a frame: a few tagged bytes do.
//
//   Batch batch;
//   batch.Add({.id = "t1", .version = 3, .correct = Outcome::kCorrect});
//   buffer.Insert(batch.Request(), &result);

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "server/check.h"

namespace replay::fake {

struct Trajectory {
  std::string id = {};
  std::string run = "run";
  uint64_t epoch = 0;
  int64_t version = 0;
  Outcome correct = Outcome::kUnknown;
  float reward = 0;
  float priority = 1;
  uint32_t tokens = 10;
  uint64_t bytes = 64;
  uint64_t tag = 0;         // written into the frame
  std::string source = {};  // likewise
  std::string group = {};
  uint32_t group_size = 0;
  uint32_t index_in_group = 0;
  int64_t dataset_index = -1;
};

inline Frame MakeFrame(uint64_t bytes, uint64_t tag, const std::string& source = {}) {
  CHECK(bytes >= sizeof tag + source.size());
  Frame frame = Frame::Allocate(bytes);
  std::memset(frame.mutable_data(), 0, bytes);
  std::memcpy(frame.mutable_data(), &tag, sizeof tag);
  std::memcpy(frame.mutable_data() + sizeof tag, source.data(), source.size());
  return frame;
}

inline uint64_t TagOf(const Frame& frame) {
  uint64_t tag;
  std::memcpy(&tag, frame.data(), sizeof tag);
  return tag;
}

inline TrajectoryFacts MakeFacts(const Trajectory& trajectory) {
  TrajectoryFacts facts;
  facts.id = HashId(trajectory.id);
  facts.run = HashId(trajectory.run);
  facts.epoch = trajectory.epoch;
  facts.min_version = facts.max_version = trajectory.version;
  facts.token_count = trajectory.tokens;
  facts.reward = trajectory.reward;
  facts.priority = trajectory.priority;
  facts.correct = trajectory.correct;
  if (!trajectory.source.empty()) facts.source = {sizeof trajectory.tag, static_cast<uint32_t>(trajectory.source.size())};
  if (!trajectory.group.empty()) facts.group = HashId(trajectory.group);
  facts.group_size = trajectory.group_size;
  facts.index_in_group = trajectory.index_in_group;
  facts.dataset_index = trajectory.dataset_index;
  return facts;
}

// The trajectories of one request; keeps what the request points to.
struct Batch {
  std::vector<Frame> frames;
  std::vector<TrajectoryFacts> facts;

  Batch& Add(const Trajectory& trajectory) {
    frames.push_back(MakeFrame(trajectory.bytes, trajectory.tag, trajectory.source));
    facts.push_back(MakeFacts(trajectory));
    return *this;
  }
  server::InsertRequest Request(Key128 writer = {}, uint64_t sequence = 0, uint64_t acknowledged_through = 0) {
    server::InsertRequest request;
    request.frames = frames;
    request.facts = facts;
    request.writer = writer;
    request.sequence = sequence;
    request.acknowledged_through = acknowledged_through;
    return request;
  }
};

}  // namespace replay::fake
