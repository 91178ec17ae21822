#include "client/trajectory.h"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "schema/trajectory.capnp.h"
#include "tests/support/fake_server.h"

namespace replay {
namespace {

using testing::SmallTrajectory;

Trajectory FullTrajectory() {
  Trajectory full = SmallTrajectory("step12-prompt7-2");
  full.run_id = "run-1";
  full.epoch = 3;
  full.group_id = "prompt7";
  full.group_size = 1;
  full.rollout_id = "rollout-9";
  full.part_index = 1;
  full.part_count = 2;
  full.segments = {{0, 2, Role::kUser, false}, {2, 5, Role::kAssistant, true}};
  full.version_segments = {{2, 3, -4}, {3, 5, 1'000'000'000'000}};
  full.reward = 0.5f;
  full.named_rewards = {{"format", 1.0f}, {"length", -0.25f}};
  full.correct = Correctness::kYes;
  full.advantage = std::vector<float>{0, 0, 1, -1, 2};
  full.status = FinishStatus::kTruncatedLength;
  full.source = "gsm8k";
  full.dataset_index = 41;
  full.temperature = 0.7f;
  full.created_at_unix_ns = 1'700'000'000'000'000'000;
  full.tags = {
      {"language", std::string("de")}, {"turns", int64_t{3}}, {"score", 0.125}, {"judged", true}, {"note", std::string()}};
  full.opaque = {0, 1, 2, 255};
  return full;
}

TrajectoryView RoundTrip(const Trajectory& trajectory) {
  IdMaker ids;
  const Result<Frame> frame = EncodeTrajectory(trajectory, ids);
  EXPECT_TRUE(frame) << frame.error().ToString();
  TrajectoryFacts facts;
  EXPECT_EQ(ValidateTrajectory(frame->bytes(), {}, &facts), "");
  const Result<TrajectoryView> view = ViewFrame(*frame);
  EXPECT_TRUE(view) << view.error().ToString();
  return *view;
}

TEST(Trajectory, ComesBackWithEveryField) {
  const Trajectory full = FullTrajectory();
  const TrajectoryView view = RoundTrip(full);
  EXPECT_EQ(view.trajectory_id(), full.trajectory_id);
  EXPECT_EQ(view.group_id(), "prompt7");
  EXPECT_EQ(view.version_segments().size(), 2u);
  EXPECT_EQ(view.temperature(), 0.7f);
  EXPECT_EQ(view.named_reward("length"), -0.25f);
  EXPECT_EQ(view.named_reward("lengt"), std::nullopt);
  const auto advantage = std::get<std::span<const float>>(view.advantage());
  EXPECT_EQ(std::vector<float>(advantage.begin(), advantage.end()), std::get<std::vector<float>>(full.advantage));
  const Trajectory back = view.ToTrajectory();
  EXPECT_EQ(back.run_id, full.run_id);
  EXPECT_EQ(back.epoch, full.epoch);
  EXPECT_EQ(back.group_size, full.group_size);
  EXPECT_EQ(back.rollout_id, full.rollout_id);
  EXPECT_EQ(back.part_index, full.part_index);
  EXPECT_EQ(back.part_count, full.part_count);
  EXPECT_EQ(back.token_ids, full.token_ids);
  EXPECT_EQ(back.prompt_length, full.prompt_length);
  EXPECT_EQ(back.segments, full.segments);
  EXPECT_EQ(back.loss_mask, full.loss_mask);
  EXPECT_EQ(back.version_segments, full.version_segments);
  EXPECT_EQ(back.reward, full.reward);
  EXPECT_EQ(back.named_rewards, full.named_rewards);
  EXPECT_EQ(back.correct, full.correct);
  EXPECT_EQ(back.advantage, full.advantage);
  EXPECT_EQ(back.status, full.status);
  EXPECT_EQ(back.source, full.source);
  EXPECT_EQ(back.dataset_index, full.dataset_index);
  EXPECT_EQ(back.temperature, full.temperature);
  EXPECT_EQ(back.created_at_unix_ns, full.created_at_unix_ns);
  EXPECT_EQ(back.tags, full.tags);
  EXPECT_EQ(back.opaque, full.opaque);
}

TEST(Trajectory, HasAScalarAdvantageOrNone) {
  Trajectory trajectory = SmallTrajectory("advantage");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(RoundTrip(trajectory).advantage()));
  trajectory.advantage = -1.5f;
  EXPECT_EQ(std::get<float>(RoundTrip(trajectory).advantage()), -1.5f);
  EXPECT_EQ(std::get<float>(RoundTrip(trajectory).ToTrajectory().advantage), -1.5f);
}

TEST(Trajectory, KeepsLogprobsBitForBit) {
  Trajectory trajectory = SmallTrajectory("bits");
  // A signalling NaN, a NaN with a payload and a sign, both zeros, a denormal.
  const uint32_t bits[5] = {0x7fa00001, 0xffc12345, 0x80000000, 0x00000000, 0x00000001};
  std::memcpy(trajectory.behaviour_logprobs.data(), bits, sizeof bits);
  const TrajectoryView view = RoundTrip(trajectory);
  EXPECT_EQ(std::memcmp(view.behaviour_logprobs().data(), bits, sizeof bits), 0);
  EXPECT_EQ(std::memcmp(view.ToTrajectory().behaviour_logprobs.data(), bits, sizeof bits), 0);
}

TEST(Trajectory, ViewPointsIntoTheFrame) {
  const TrajectoryView view = RoundTrip(SmallTrajectory("views"));
  const auto bytes = view.frame_bytes();
  const auto* ids = reinterpret_cast<const uint8_t*>(view.token_ids().data());
  EXPECT_TRUE(ids >= bytes.data() && ids < bytes.data() + bytes.size());
}

TEST(Trajectory, IsStampedAndNamedWhenItIsNot) {
  Trajectory trajectory = SmallTrajectory("");
  trajectory.created_at_unix_ns = 0;
  IdMaker ids;
  const Trajectory first = ViewFrame(*EncodeTrajectory(trajectory, ids))->ToTrajectory();
  const Trajectory second = ViewFrame(*EncodeTrajectory(trajectory, ids))->ToTrajectory();
  EXPECT_EQ(first.trajectory_id.size(), 34u);  // 32 digits, '-', '1'
  EXPECT_NE(first.trajectory_id, second.trajectory_id);
  EXPECT_GT(first.created_at_unix_ns, 1'600'000'000'000'000'000);
}

// The same fields set through MallocMessageBuilder, which grows as it must.
uint64_t GrownWords(const Trajectory& from) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<schema::Trajectory>();
  const auto text = [](const std::string& s) { return capnp::Text::Reader(s.c_str(), s.size()); };
  to.setTrajectoryId(text(from.trajectory_id));
  if (!from.run_id.empty()) to.setRunId(text(from.run_id));
  if (!from.group_id.empty()) to.setGroupId(text(from.group_id));
  if (!from.rollout_id.empty()) to.setRolloutId(text(from.rollout_id));
  if (!from.source.empty()) to.setSource(text(from.source));
  const auto size = [](const auto& list) { return static_cast<unsigned>(list.size()); };
  to.initTokenIds(size(from.token_ids));
  to.initLossMask(size(from.loss_mask));
  if (!from.behaviour_logprobs.empty()) to.initBehaviourLogprobs(size(from.behaviour_logprobs));
  if (!from.segments.empty()) to.initSegments(size(from.segments));
  if (!from.version_segments.empty()) to.initVersionSegments(size(from.version_segments));
  if (!from.named_rewards.empty()) {
    auto rewards = to.initNamedRewards(size(from.named_rewards));
    for (unsigned i = 0; i < rewards.size(); ++i)
      if (!from.named_rewards[i].first.empty()) rewards[i].setName(text(from.named_rewards[i].first));
  }
  if (const auto* list = std::get_if<std::vector<float>>(&from.advantage)) to.getAdvantage().initPerToken(size(*list));
  if (!from.tags.empty()) {
    auto tags = to.initTags(size(from.tags));
    for (unsigned i = 0; i < tags.size(); ++i) {
      if (!from.tags[i].first.empty()) tags[i].setName(text(from.tags[i].first));
      if (const auto* value = std::get_if<std::string>(&from.tags[i].second)) tags[i].setText(text(*value));
    }
  }
  if (!from.opaque.empty()) to.initOpaque(size(from.opaque));
  uint64_t words = 0;
  for (const auto& segment : message.getSegmentsForOutput()) words += segment.size();
  return words;
}

TEST(Trajectory, IsSizedExactly) {
  std::mt19937 random(7);
  const auto upto = [&](uint32_t most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    Trajectory t;
    t.trajectory_id = std::string(1 + upto(127), 'i');
    t.run_id = std::string(upto(20), 'r');
    t.group_id = std::string(upto(1) * upto(20), 'g');
    t.group_size = t.group_id.empty() ? 0 : 1;
    t.rollout_id = std::string(upto(9), 'o');
    t.source = std::string(upto(17), 's');
    const size_t length = 1 + upto(40);
    t.token_ids.assign(length, 5);
    t.loss_mask.assign(length, 1);
    if (upto(1)) t.behaviour_logprobs.assign(length, -1);
    for (uint32_t i = 0; i < upto(3) && i + 1 < length; ++i) t.segments.push_back({i, i + 1});
    for (uint32_t i = 0; i < upto(3) && i + 1 < length; ++i) t.version_segments.push_back({i, i + 1, 4});
    for (uint32_t i = 0; i < upto(3); ++i) t.named_rewards.emplace_back(std::string(1 + upto(10), 'n'), 1.0f);
    for (uint32_t i = 0; i < upto(3); ++i) t.tags.emplace_back(std::string(1 + upto(10), 't'), std::string(upto(10), 'v'));
    if (upto(1)) t.tags.emplace_back("x", 1.5);
    if (upto(1)) t.advantage = std::vector<float>(length, 0.5f);
    t.opaque.assign(upto(1) * upto(50), 9);
    EXPECT_EQ(TrajectoryWords(t, t.trajectory_id), GrownWords(t)) << "round " << round;
    const TrajectoryView view = RoundTrip(t);
    EXPECT_EQ(view.frame_bytes().size(), 16 + 8 * GrownWords(t)) << "round " << round;
  }
}

TEST(Trajectory, OfALongRolloutIsOneSegment) {
  Trajectory trajectory = SmallTrajectory("long");
  const size_t length = 100'000;
  trajectory.token_ids.assign(length, 7);
  trajectory.loss_mask.assign(length, 1);
  trajectory.behaviour_logprobs.assign(length, -0.5f);
  const TrajectoryView view = RoundTrip(trajectory);
  EXPECT_EQ(view.token_ids().size(), length);
  EXPECT_EQ(CheckFrameShape(view.frame_bytes()), "");
}

TEST(EncodeGroup, NamesWhatIsWrongAndWhere) {
  IdMaker ids;
  std::vector<Trajectory> group = {SmallTrajectory("a"), SmallTrajectory("b")};
  group[1].loss_mask.pop_back();
  EXPECT_EQ(EncodeGroup(group, ids).error().ToString(),
            "invalid_argument: trajectory 1: loss_mask has 4 entries, token_ids has 5: they must agree");
  group = {SmallTrajectory("a"), SmallTrajectory("a")};
  EXPECT_EQ(EncodeGroup(group, ids).error().ToString(),
            "invalid_argument: trajectory_id: trajectories 0 and 1 of the request have the same one");
  group = {SmallTrajectory("a")};
  group[0].group_id = "g";
  group[0].group_size = 2;
  EXPECT_EQ(
      EncodeGroup(group, ids).error().ToString(),
      "invalid_argument: group_size: the group of trajectory 0 has 2 members, the request holds 1: a group is inserted whole");
  EXPECT_EQ(EncodeGroup({}, ids).error().code, ErrorCode::kInvalidArgument);
}

TEST(ViewFrame, RefusesBytesThatAreNoTrajectory) {
  // Another message with a valid checksum: lists of other widths must not be taken for tokens.
  std::mt19937_64 random(11);
  const Frame good = testing::SmallFrame("x");
  for (int round = 0; round < 2000; ++round) {
    Frame frame = Frame::CopyOf(good.bytes());
    for (int flips = 0; flips < 3; ++flips) frame.mutable_data()[8 + random() % (frame.size() - 16)] ^= 1 << random() % 8;
    SealFrame({frame.mutable_data(), frame.size()});
    const Result<TrajectoryView> view = ViewFrame(frame);
    if (!view) continue;
    EXPECT_EQ(view->loss_mask().size(), view->token_ids().size());
    (void)view->ToTrajectory();  // must neither throw nor read outside
  }
}

}  // namespace
}  // namespace replay
