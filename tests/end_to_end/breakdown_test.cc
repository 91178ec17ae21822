// What a buffer tells about its trajectories by source, length and draws, and which groups it refuses, through the real daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "replay/client.h"
#include "tests/support/daemon.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::Pair;

Trajectory Rollout(const std::string& id, const std::string& source, size_t tokens = 2) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.run_id = "run";
  rollout.source = source;
  rollout.token_ids.assign(tokens, 7);
  rollout.loss_mask.assign(tokens, 1);
  return rollout;
}

std::vector<Trajectory> Group(const std::string& name, const std::vector<float>& rewards) {
  std::vector<Trajectory> group;
  for (uint32_t i = 0; i < rewards.size(); ++i) {
    Trajectory& member = group.emplace_back(Rollout(name + std::to_string(i), "math"));
    member.group_id = name;
    member.group_size = static_cast<uint32_t>(rewards.size());
    member.index_in_group = i;
    member.reward = rewards[i];
  }
  return group;
}

class BreakdownOfADaemon : public testing::Test {
 protected:
  BufferStats Stats() { return Value(client_.Stats("b")).buffers.at(0); }
  static Breakdown Row(const std::vector<Breakdown>& rows, const std::string& name) {
    for (const Breakdown& row : rows)
      if (row.name == name) return row;
    throw std::runtime_error("no row " + name);
  }

  Daemon daemon_{{.buffers = "[]", .io_threads = 2}};
  Client client_{{.address = daemon_.unix_address()}};
};

TEST_F(BreakdownOfADaemon, TellsWhatOfEachSourceAndLengthIsStoredWithheldAndRemoved) {
  Value(client_.CreateBuffer("b", {.capacity_items = 4, .selector = "fifo"}));
  std::vector<Trajectory> rollouts = {Rollout("a", "math"), Rollout("b", "math", 200), Rollout("c", "code", 70'000)};
  rollouts[2].version_segments = {{0, 70'000, 9}};
  Value(client_.Insert("b", rollouts, 10s));
  Value(client_.Sample("b", {.count = 1, .step = 5}, 0s));  // the third is newer
  Value(client_.Insert("b", std::vector{Rollout("d", "math"), Rollout("e", "math")}, 10s));

  const BufferStats stats = Stats();
  ASSERT_EQ(2u, stats.sources.size());
  const Breakdown math = Row(stats.sources, "math"), code = Row(stats.sources, "code");
  EXPECT_EQ(3u, math.live);
  EXPECT_EQ(4u, math.inserted);
  EXPECT_EQ(0u, math.withheld);
  EXPECT_THAT(math.removed, ElementsAre(Pair("capacity", 1)));
  EXPECT_EQ(1u, code.withheld);
  EXPECT_TRUE(code.removed.empty());
  EXPECT_EQ(11u, stats.lengths.size());
  EXPECT_EQ(2u, Row(stats.lengths, "1-128").live);
  EXPECT_EQ(3u, Row(stats.lengths, "1-128").inserted);
  EXPECT_EQ(1u, Row(stats.lengths, "129-256").live);
  EXPECT_EQ(1u, Row(stats.lengths, "65537+").withheld);
  EXPECT_THAT(Row(stats.draws, "1").removed, ElementsAre(Pair("capacity", 1)));
  EXPECT_TRUE(Row(stats.draws, "0").removed.empty());
}

TEST_F(BreakdownOfADaemon, RefusesGroupsWithZeroSpreadAndSaysSo) {
  Value(client_.CreateBuffer("b", {.zero_spread = "refuse"}));
  std::vector<Trajectory> request = Group("flat", {1, 1, 1});
  for (Trajectory& member : Group("steep", {0, 1})) request.push_back(std::move(member));
  const InsertReceipt receipt = Value(client_.Insert("b", request, 10s));
  EXPECT_EQ(2u, receipt.count);
  EXPECT_EQ(3u, receipt.refused);
  EXPECT_EQ(1u, receipt.first_item);
  EXPECT_EQ(2u, receipt.live);
  const InsertReceipt plain = Value(client_.Insert("b", std::vector{Rollout("alone", "math")}, 10s));
  EXPECT_EQ(1u, plain.count);
  EXPECT_EQ(0u, plain.refused);

  const BufferStats stats = Stats();
  EXPECT_EQ(6u, stats.offered);
  EXPECT_EQ(3u, stats.accepted);
  EXPECT_EQ(3u, stats.rejected);
  EXPECT_EQ(3u, stats.zero_spread_refused);
  EXPECT_EQ(0u, stats.zero_spread);
  EXPECT_EQ("refuse", stats.options.zero_spread);
}

TEST_F(BreakdownOfADaemon, AWriterCountsWhatWasRefused) {
  Value(client_.CreateBuffer("b", {.zero_spread = "refuse"}));
  const auto writer = client_.NewWriter("b");
  for (int i = 0; i < 10; ++i) Value(writer->InsertGroup(Group("flat" + std::to_string(i) + "-", {1, 1})));
  Value(writer->InsertGroup(Group("steep", {0, 1, 0})));
  Value(writer->Flush(30s));
  const Writer::Progress progress = writer->progress();
  EXPECT_EQ(3u, progress.accepted);
  EXPECT_EQ(20u, progress.refused);
  EXPECT_EQ(0u, progress.duplicate + progress.failed + progress.in_flight);
  EXPECT_EQ(3u, Stats().items);
}

TEST_F(BreakdownOfADaemon, KeptGroupsWithZeroSpreadAreCounted) {
  Value(client_.CreateBuffer("b", {}));
  Value(client_.Insert("b", Group("flat", {1, 1, 1}), 10s));
  EXPECT_EQ(3u, Stats().zero_spread);
  const std::vector<std::string> ids = {"flat0"};
  Value(client_.Delete("b", ids));
  EXPECT_EQ(2u, Stats().zero_spread);
}

}  // namespace
}  // namespace replay::test
