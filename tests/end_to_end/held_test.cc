// What a buffer holds back, against the real daemon through the client library: leases, groups that come in member by member, and
// admission; over two I/O threads, so that calls come from the buffer's thread and from another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "replay/client.h"
#include "tests/support/daemon.h"
#include "tests/support/replayctl.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

Trajectory Rollout(const std::string& id) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.token_ids.assign(4, 7);
  rollout.loss_mask.assign(4, 1);
  return rollout;
}

Trajectory Member(const std::string& group, uint32_t size, uint32_t index) {
  Trajectory member = Rollout(group + "." + std::to_string(index));
  member.group_id = group;
  member.group_size = size;
  member.index_in_group = index;
  return member;
}

class Held : public testing::Test {
 protected:
  void CreateQueue(milliseconds lease = 60s) {
    // On either I/O thread: the calls of one client come from both.
    Value(client_.CreateBuffer("other", {.capacity_bytes = 1 << 20}));
    Value(client_.CreateBuffer("q", {.capacity_bytes = 1 << 20, .selector = "fifo", .max_draws = 1, .lease = lease}));
  }
  void Insert(int first, int count) {
    std::vector<Trajectory> rollouts;
    for (int i = first; i < first + count; ++i) rollouts.push_back(Rollout(std::to_string(i)));
    Value(client_.Insert("q", rollouts, 5s));
  }
  static SampleOptions Count(uint32_t count) {
    SampleOptions options;
    options.count = count;
    return options;
  }
  static std::string Ids(const Batch& batch) {
    std::string ids;
    for (const Draw& draw : batch.draws) ids += (ids.empty() ? "" : " ") + std::string(batch.trajectory(draw).trajectory_id());
    return ids;
  }
  BufferStats Stats(const std::string& buffer = "q") { return Value(client_.Stats(buffer)).buffers.at(0); }

  Daemon daemon_{{.buffers = "[]", .io_threads = 2}};
  Client client_{{.address = daemon_.unix_address()}};
};

TEST_F(Held, AcknowledgedDrawsLeaveAndOthersWaitForWhatIsHeld) {
  CreateQueue();
  Insert(0, 4);
  const Batch first = Value(client_.Sample("q", Count(2), 0ms));
  EXPECT_EQ("0 1", Ids(first));
  EXPECT_EQ("2 3", Ids(Value(client_.Sample("q", Count(2), 0ms))));
  EXPECT_EQ(4u, Stats().held);
  const Result<Batch> none = client_.Sample("q", Count(1), 0ms);
  ASSERT_FALSE(none);
  EXPECT_EQ(WaitReason::kMinSize, none.error().reason);
  EXPECT_THAT(none.error().message, HasSubstr("4 more are held under leases"));
  EXPECT_EQ(2u, Value(client_.Acknowledge("q", first.lease)));
  EXPECT_EQ(2u, Stats().items);
  EXPECT_EQ(ErrorCode::kNotFound, client_.Acknowledge("q", first.lease).error().code);
  EXPECT_EQ(ErrorCode::kInvalidArgument, client_.Acknowledge("q", 0).error().code);
}

TEST_F(Held, ReplayctlAcknowledgesOneItemAndGivesAnotherBack) {
  CreateQueue();
  Insert(0, 4);
  const Batch batch = Value(client_.Sample("q", Count(3), 0ms));
  const std::string lease = "acknowledge q " + std::to_string(batch.lease);
  const auto ended = [](uint64_t lease_number, int items) { return nlohmann::json{{"lease", lease_number}, {"ended", items}}; };
  EXPECT_EQ(ended(batch.lease, 1), ReplayctlJson(daemon_, lease + " " + std::to_string(batch.draws[1].item) + " --give-back"));
  EXPECT_EQ(2u, Stats().held);
  EXPECT_EQ(4u, Stats().items);
  EXPECT_EQ(ended(batch.lease, 1), ReplayctlJson(daemon_, lease + " " + std::to_string(batch.draws[0].item)));
  EXPECT_EQ(1u, Stats().held);
  EXPECT_EQ(3u, Stats().items) << "one was used";
  EXPECT_EQ("1 3", Ids(Value(client_.Sample("q", Count(2), 0ms)))) << "one was given back";
  EXPECT_EQ("the lease of 1 trajectories has ended\n", Replayctl(daemon_, lease));
  EXPECT_EQ(2u, Stats().items);
  EXPECT_THAT(Replayctl(daemon_, lease), HasSubstr("not_found"));
}

TEST_F(Held, WhatIsHeldComesBackWhenItsConnectionEnds) {
  CreateQueue();
  Insert(0, 2);
  auto waiting = std::async(std::launch::async, [this] {
    std::this_thread::sleep_for(100ms);
    return client_.Sample("q", Count(2), 10s);
  });
  {
    Client dies({.address = daemon_.unix_address()});
    EXPECT_EQ("0 1", Ids(Value(dies.Sample("q", Count(2), 0ms))));
    std::this_thread::sleep_for(300ms);
  }
  EXPECT_EQ("0 1", Ids(Value(waiting.get())));
  EXPECT_EQ(1u, Stats().leases);
}

TEST_F(Held, WhatIsHeldComesBackWhenItsLeaseExpires) {
  CreateQueue(200ms);
  Insert(0, 2);
  EXPECT_EQ("0 1", Ids(Value(client_.Sample("q", Count(2), 0ms))));
  EXPECT_EQ("0 1", Ids(Value(client_.Sample("q", Count(2), 10s))));
  EXPECT_GE(Stats().expired_leases, 1u);
}

TEST_F(Held, TimeBeginsWithTheBufferSoThatNothingExpiresAtOnce) {
  Value(client_.CreateBuffer("q", {.capacity_bytes = 1 << 20, .selector = "fifo", .max_age = 60s, .lease = 60s}));
  Insert(0, 2);
  Value(client_.ReserveGroup("q", {.group_id = "p", .size = 2}));
  EXPECT_EQ("0", Ids(Value(client_.Sample("q", Count(1), 0ms))));
  std::this_thread::sleep_for(1500ms);  // several ticks of the daemon's clock
  EXPECT_EQ(2u, Stats().items);
  EXPECT_EQ(1u, Stats().held);
  EXPECT_EQ(1u, Stats().reserved_groups);
}

TEST_F(Held, EachOfManyConsumersGetsItsOwnAndNothingIsLost) {
  CreateQueue();
  constexpr int kItems = 400;
  Insert(0, kItems);
  std::vector<std::future<std::vector<std::string>>> consumers;
  for (int i = 0; i < 4; ++i)
    consumers.push_back(std::async(std::launch::async, [this, i] {
      Client client({.address = daemon_.unix_address()});
      std::vector<std::string> got;
      for (int round = 0;; ++round) {
        const Result<Batch> batch = client.Sample("q", Count(1), 5s);
        if (!batch && batch.error().code == ErrorCode::kClosed) return got;
        const Batch& drawn = Value(batch).draws.empty() ? *batch : *batch;
        const bool give_back = (round + i) % 7 == 0;
        if (!give_back) got.push_back(Ids(drawn));
        Value(client.Acknowledge("q", drawn.lease, {}, give_back));
      }
    }));
  Value(client_.AlterBuffer("q", {.closed = true}));
  std::vector<std::string> all;
  for (auto& consumer : consumers)
    for (std::string& id : consumer.get()) all.push_back(std::move(id));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all.end(), std::adjacent_find(all.begin(), all.end()));
  EXPECT_EQ(static_cast<size_t>(kItems), all.size());
  EXPECT_EQ(0u, Stats().items);
}

TEST_F(Held, WhoWaitsIsToldThatTheBufferWasClosed) {
  CreateQueue();
  auto waiting = std::async(std::launch::async, [this] { return client_.Sample("q", Count(1), 10s); });
  std::this_thread::sleep_for(100ms);
  Value(client_.AlterBuffer("q", {.closed = true}));
  const Result<Batch> told = waiting.get();
  ASSERT_FALSE(told);
  EXPECT_EQ(ErrorCode::kClosed, told.error().code);
  const std::vector<Trajectory> late = {Rollout("late")};
  EXPECT_EQ(ErrorCode::kClosed, client_.Insert("q", late, 1s).error().code);
}

TEST_F(Held, ASamplerHoldsWhatItHasPrefetchedToo) {
  CreateQueue();
  Insert(0, 4);
  {
    auto sampler = client_.NewSampler("q", {.count = 1, .prefetch = 1});
    const Batch batch = Value(sampler->Next(1, 5s));
    EXPECT_EQ("0", Ids(batch));
    for (int i = 0; i < 100 && Stats().held < 2; ++i) std::this_thread::sleep_for(20ms);
    EXPECT_EQ(2u, Stats().held);
    EXPECT_EQ(1u, Value(client_.Acknowledge("q", batch.lease)));
  }
  for (int i = 0; i < 100 && Stats().held > 0; ++i) std::this_thread::sleep_for(20ms);
  EXPECT_EQ(0u, Stats().held);
  EXPECT_EQ(3u, Stats().items);
}

TEST_F(Held, AGroupComesInMemberByMemberFromSeveralClients) {
  Value(client_.CreateBuffer("g", {.capacity_bytes = 1 << 20, .selector = "uniform", .unit = "group"}));
  EXPECT_EQ(0u, Value(client_.ReserveGroup("g", {.group_id = "p7", .size = 4})).present);
  std::vector<std::future<void>> workers;
  for (uint32_t i = 0; i < 4; ++i)
    workers.push_back(std::async(std::launch::async, [this, i] {
      Client worker({.address = daemon_.unix_address()});
      const std::vector<Trajectory> member = {Member("p7", 4, i)};
      Value(worker.InsertMembers("g", member, 5s));
    }));
  const Batch batch = Value(client_.Sample("g", Count(1), 10s));
  EXPECT_EQ("p7.0 p7.1 p7.2 p7.3", Ids(batch));
  EXPECT_EQ((std::vector<uint32_t>{4}), batch.group_sizes);
  EXPECT_EQ(1u, Stats("g").groups);
}

TEST_F(Held, AGroupWhoseLastMemberNeverComesIsTold) {
  Value(client_.CreateBuffer("g", {.capacity_bytes = 1 << 20}));
  Value(client_.ReserveGroup("g", {.group_id = "p", .size = 2, .lease = 2s, .missing = MissingMembers::kRelease}));
  const std::vector<Trajectory> member = {Member("p", 2, 1)};
  EXPECT_TRUE(Value(client_.InsertMembers("g", member, 5s)).pending);
  const Result<Batch> early = client_.Sample("g", Count(1), 0ms);
  ASSERT_FALSE(early);
  EXPECT_EQ(WaitReason::kGroupIncomplete, early.error().reason);
  EXPECT_EQ(1u, Stats("g").pending);
  EXPECT_EQ(0u, Stats("g").expired_groups);
  EXPECT_EQ("p.1", Ids(Value(client_.Sample("g", Count(1), 10s))));
  EXPECT_EQ(0u, Stats("g").pending);
  EXPECT_EQ(1u, Stats("g").expired_groups);
}

TEST_F(Held, AGroupIsDroppedWithItsMembersWhenItsLeaseEnds) {
  Value(client_.CreateBuffer("g", {.capacity_bytes = 1 << 20}));
  Value(client_.ReserveGroup("g", {.group_id = "p", .size = 2, .lease = 2s, .missing = MissingMembers::kDrop}));
  const std::vector<Trajectory> member = {Member("p", 2, 0)};
  EXPECT_TRUE(Value(client_.InsertMembers("g", member, 5s)).pending);
  EXPECT_EQ(1u, Stats("g").pending);
  EXPECT_EQ(0u, Stats("g").rejected);
  for (int i = 0; i < 500 && Stats("g").reserved_groups > 0; ++i) std::this_thread::sleep_for(20ms);
  BufferStats stats = Stats("g");
  EXPECT_EQ(0u, stats.reserved_groups + stats.pending + stats.items + stats.accepted);
  EXPECT_EQ(1u, stats.rejected);
  EXPECT_EQ(1u, stats.offered);
  const std::vector<Trajectory> late = {Member("p", 2, 1)};
  const Result<InsertReceipt> refused = client_.InsertMembers("g", late, 5s);
  ASSERT_FALSE(refused);
  EXPECT_EQ(ErrorCode::kFailedPrecondition, refused.error().code) << refused.error().ToString();
  EXPECT_EQ(2u, Stats("g").rejected);
  // Reserved anew it is another group: both members may come.
  Value(client_.ReserveGroup("g", {.group_id = "p", .size = 2}));
  const std::vector<Trajectory> both = {member[0], late[0]};
  const InsertReceipt receipt = Value(client_.InsertMembers("g", both, 5s));
  EXPECT_FALSE(receipt.pending);
  EXPECT_EQ(1u, receipt.first_item);
  stats = Stats("g");
  EXPECT_EQ(2u, stats.items);
  EXPECT_EQ(4u, stats.offered);
  EXPECT_EQ(2u, stats.rejected);
}

TEST_F(Held, ReplayctlCommitsAGroupWithTheMembersThatAreThere) {
  Value(client_.CreateBuffer("g", {.capacity_bytes = 1 << 20, .selector = "fifo"}));
  const std::string reserve = "reserve g p --size 3 --lease 100ms --deadline 200ms --missing wait";
  EXPECT_EQ("reserved, 0 of 3 members are there\n", Replayctl(daemon_, reserve));
  for (const uint32_t index : {2u, 0u}) {
    const std::vector<Trajectory> member = {Member("p", 3, index)};
    EXPECT_TRUE(Value(client_.InsertMembers("g", member, 5s)).pending);
  }
  std::this_thread::sleep_for(1s);  // lease and deadline have ended, and it waits on
  EXPECT_EQ(2u, Stats("g").pending);
  EXPECT_EQ("reserved, 2 of 3 members are there\n", Replayctl(daemon_, reserve));
  EXPECT_EQ("committed with 2 of 3 members, from item 1\n", Replayctl(daemon_, "reserve g p --commit"));
  EXPECT_EQ("p.0 p.2", Ids(Value(client_.Sample("g", Count(2), 0ms))));
  EXPECT_EQ(0u, Stats("g").reserved_groups + Stats("g").pending);
}

TEST_F(Held, GenerationWaitsForAdmissionAndGoesOnWhenABatchIsUsed) {
  Value(client_.CreateBuffer(
      "q", {.capacity_bytes = 1 << 20, .selector = "fifo", .max_staleness = 0, .max_draws = 1, .lease = 60s}));
  Insert(0, 2);
  EXPECT_EQ(0, Value(client_.Admit("q", {.batch = 2})).credits);
  const Result<ReservedGroup> now = client_.ReserveGroup("q", {.group_id = "p", .size = 2, .batch = 2});
  ASSERT_FALSE(now);
  EXPECT_EQ(WaitReason::kStaleness, now.error().reason);
  EXPECT_EQ("2 trajectories wanted, 0 admitted: 2 are live and 0 reserved", now.error().message);
  auto admitted = std::async(std::launch::async,
                             [this] { return client_.ReserveGroup("q", {.group_id = "p", .size = 2, .batch = 2}, 10s); });
  std::this_thread::sleep_for(100ms);
  const auto waiters = Value(client_.Waiters("q"));
  ASSERT_EQ(1u, waiters.size());
  EXPECT_EQ("ReserveGroup", waiters[0].verb);
  const Batch batch = Value(client_.Sample("q", Count(2), 0ms));
  EXPECT_EQ(std::future_status::timeout, admitted.wait_for(100ms));  // still in use
  Value(client_.Acknowledge("q", batch.lease));
  EXPECT_EQ(2u, Value(admitted.get()).size);
  EXPECT_EQ(0, Value(client_.Admit("q", {.batch = 2})).credits);
}

TEST_F(Held, WhatNeedsNoAdmissionIsAnsweredAtOnceWhoeverWaitsForIt) {
  Value(client_.CreateBuffer("q", {.capacity_bytes = 1 << 20, .max_staleness = 0}));
  Insert(0, 2);
  const Reservation reservation{.group_id = "p", .size = 2, .batch = 4};
  Value(client_.ReserveGroup("q", reservation));
  auto waiting = std::async(std::launch::async, [this] { return client_.Admit("q", {.count = 1, .batch = 2}, 60s); });
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (Value(client_.Waiters("q")).empty() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
  ASSERT_EQ(1u, Value(client_.Waiters("q")).size());
  // Asked for again it is renewed: its members are admitted already.
  const Result<ReservedGroup> renewed = client_.ReserveGroup("q", reservation);
  EXPECT_TRUE(renewed) << renewed.error().ToString();
  // What can never be met is told so.
  const Result<ReservedGroup> empty = client_.ReserveGroup("q", {.group_id = "x", .size = 0, .batch = 100});
  ASSERT_FALSE(empty);
  EXPECT_EQ(ErrorCode::kInvalidArgument, empty.error().code) << empty.error().ToString();
  const Result<ReservedGroup> larger = client_.ReserveGroup("q", {.group_id = "x", .size = 9, .batch = 8});
  ASSERT_FALSE(larger);
  EXPECT_EQ(ErrorCode::kInvalidArgument, larger.error().code) << larger.error().ToString();
  const Result<Admission> many = client_.Admit("q", {.count = 9, .batch = 8});
  ASSERT_FALSE(many);
  EXPECT_EQ(ErrorCode::kInvalidArgument, many.error().code) << many.error().ToString();
  // What could be met waits for its turn.
  const Result<Admission> small = client_.Admit("q", {.count = 1, .batch = 100});
  ASSERT_FALSE(small);
  EXPECT_EQ("waits behind earlier calls for admission", small.error().message);
  const Result<ReservedGroup> group = client_.ReserveGroup("q", {.group_id = "x", .size = 1, .batch = 100});
  ASSERT_FALSE(group);
  EXPECT_EQ("waits behind earlier calls for admission", group.error().message);
  Value(client_.DropBuffer("q"));
  EXPECT_EQ(ErrorCode::kBufferDropped, waiting.get().error().code);
}

TEST_F(Held, ADroppedBufferEndsTheWaitForAdmission) {
  Value(client_.CreateBuffer("q", {.capacity_bytes = 1 << 20, .max_staleness = 0}));
  Insert(0, 2);
  auto waiting = std::async(std::launch::async, [this] { return client_.Admit("q", {.count = 1, .batch = 2}, 10s); });
  std::this_thread::sleep_for(100ms);
  Value(client_.DropBuffer("q"));
  EXPECT_EQ(ErrorCode::kBufferDropped, waiting.get().error().code);
}

}  // namespace
}  // namespace replay::test
