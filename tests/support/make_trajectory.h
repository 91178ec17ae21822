#pragma once
// Trajectory frames for tests, valid unless the test says otherwise, byte for byte as a client would send them.
//
//   Frame frame = MakeTrajectory({.id = "a", .length = 128});
//   std::vector<Frame> group = MakeGroup(4, {.id = "prompt7", .group = "prompt7"});   // ids prompt7-0 … prompt7-3
//   Frame broken = MakeTrajectory({.edit = [](auto trajectory) { trajectory.initLossMask(3); }});
//
// Contents follow from the id and the length alone, so equal options give equal bytes.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "schema/message.h"
#include "schema/trajectory.capnp.h"

namespace replay::test {

struct TrajectoryOptions {
  std::string id = "t";
  std::string group = {};   // empty: none
  uint32_t group_size = 0;  // with a group: 0 means 1
  uint32_t index_in_group = 0;
  uint32_t length = 16;  // tokens
  // g++ takes a member without an initializer for a forgotten one.
  std::vector<int64_t> versions = {};  // one version segment each, over equal parts of the tokens
  schema::Correctness correct = schema::Correctness::UNKNOWN;
  float reward = 0;
  std::string run = {};
  uint64_t epoch = 0;
  bool rich = false;  // Also fills every optional field: rewards, tags, opaque bytes, segments, advantage.
  std::function<void(schema::Trajectory::Builder)> edit = {};  // Last, before the frame is sealed.
};

Frame MakeTrajectory(const TrajectoryOptions& options = {});
// `size` members of one group; their ids are the option's with "-0", "-1" … behind it. Without a group the id names it.
std::vector<Frame> MakeGroup(uint32_t size, const TrajectoryOptions& options = {});
// Any words as the one segment of a sealed frame: for bytes that no builder makes.
Frame SealWords(const std::vector<uint64_t>& words);

}  // namespace replay::test
