// What other replay buffers have tripped over, each against the real daemon through the client library: the wrong value that passed,
// the wait that never ended, the item that was lost without a word.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "replay/client.h"
#include "schema/limits.h"
#include "tests/support/daemon.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitized.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

Trajectory Rollout(const std::string& id, size_t tokens = 2) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.run_id = "run";
  rollout.token_ids.assign(tokens, 7);
  rollout.loss_mask.assign(tokens, 1);
  rollout.behaviour_logprobs.assign(tokens, -0.5f);
  return rollout;
}

class Traps : public testing::Test {
 protected:
  void Create(const BufferOptions& options) { Value(client_.CreateBuffer("b", options)); }
  Result<InsertReceipt> Insert(std::vector<Trajectory> rollouts, milliseconds timeout = 10s) {
    return client_.Insert("b", rollouts, timeout);
  }
  void InsertNumbered(int first, int count) {
    std::vector<Trajectory> rollouts;
    for (int i = first; i < first + count; ++i) rollouts.push_back(Rollout(std::to_string(i)));
    Value(Insert(std::move(rollouts)));
  }
  Result<Batch> Sample(uint32_t count, milliseconds timeout = 0ms) {
    SampleOptions options;
    options.count = count;
    return client_.Sample("b", options, timeout);
  }
  BufferStats Stats() { return Value(client_.Stats("b")).buffers.at(0); }

  Daemon daemon_{{.buffers = "[]", .io_threads = 2, .server = R"("no_producer_after": "300ms")"}};
  Client client_{{.address = daemon_.unix_address()}};
};

TEST_F(Traps, NegativeNaNAndInfinitePrioritiesAreRefused) {
  Create({.selector = "prioritized"});
  InsertNumbered(0, 1);
  for (const float priority : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity(), 2e9f}) {
    Trajectory rollout = Rollout("bad");
    rollout.priority = priority;
    const Result<InsertReceipt> inserted = Insert({rollout});
    ASSERT_FALSE(inserted) << priority;
    EXPECT_THAT(inserted.error().message, HasSubstr("priority is"));
    const std::vector<ItemUpdate> updates = {{.trajectory_id = "0", .priority = priority}};
    EXPECT_FALSE(client_.Update("b", updates)) << priority;
  }
  EXPECT_EQ(1.0, Value(Sample(1)).draws[0].probability);
}

TEST_F(Traps, WeightZeroForAllWaitsForAPriorityInsteadOfDrawingAnything) {
  Create({.selector = "prioritized"});
  for (const char* id : {"0", "1"}) {
    Trajectory rollout = Rollout(id);
    rollout.priority = 0;
    Value(Insert({rollout}));
  }
  const Result<Batch> nothing = Sample(1);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(WaitReason::kFilter, nothing.error().reason) << nothing.error().ToString();
  Result<Batch> woken = Error{};
  std::thread waits([&] {
    Client other({.address = daemon_.address()});
    woken = other.Sample("b", {.count = 3}, 20s);
  });
  while (Value(client_.Waiters("b")).empty()) std::this_thread::sleep_for(1ms);
  const std::vector<ItemUpdate> updates = {{.trajectory_id = "1", .priority = 0.25f}};
  Value(client_.Update("b", updates));
  waits.join();
  ASSERT_TRUE(woken) << woken.error().ToString();
  for (const Draw& draw : woken->draws) EXPECT_EQ(2u, draw.item);
}

TEST_F(Traps, ExplicitDeletesOfUndrawnItemsAreCreditedToPacing) {
  Create({.replay_ratio = 1, .min_size = 1, .max_draws_per_sample = 4, .max_insert = 4});
  InsertNumbered(0, 1);
  int inserted = 1;
  while (Insert({Rollout(std::to_string(inserted))}, 0ms)) ++inserted;
  const std::vector<std::string> ids = {std::to_string(inserted - 1)};
  ASSERT_EQ(1u, Value(client_.Delete("b", ids)));
  EXPECT_TRUE(Insert({Rollout("after")}, 0ms)) << "what is gone again is not owed a draw";
  EXPECT_FALSE(Insert({Rollout("one more")}, 0ms));
}

TEST_F(Traps, ACapacitySmallerThanMinSizeIsRefusedAtCreationAndWhenAltered) {
  const Result<Done> created = client_.CreateBuffer("b", {.capacity_items = 4, .min_size = 5});
  ASSERT_FALSE(created);
  EXPECT_THAT(created.error().message, HasSubstr("min_size is 5: it must not exceed the 4 fresh items"));
  Create({.capacity_items = 8, .min_size = 5});
  EXPECT_FALSE(client_.AlterBuffer("b", {.capacity_items = 4}));
  EXPECT_EQ(8u, *Stats().options.capacity_items);
}

TEST_F(Traps, TimeoutZeroMeansNow) {
  Create({.max_staleness = 0, .replay_ratio = 1, .min_size = 1, .max_draws_per_sample = 1, .max_insert = 2});
  // Each by itself: one that waited for a second would be lost among those that do not.
  const auto now = [](const char* what, auto call) {
    const auto begin = std::chrono::steady_clock::now();
    auto result = call();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s) << what;
    return result;
  };
  EXPECT_EQ(ErrorCode::kTimedOut, now("Sample", [&] { return Sample(1); }).error().code);
  int inserted = 0;
  while (now("Insert", [&] { return Insert({Rollout(std::to_string(inserted))}, 0ms); })) ++inserted;
  const Result<InsertReceipt> refused = now("Insert", [&] { return Insert({Rollout("x")}, 0ms); });
  EXPECT_EQ(ErrorCode::kTimedOut, refused.error().code);
  EXPECT_EQ(WaitReason::kPacing, refused.error().reason);
  EXPECT_EQ(ErrorCode::kTimedOut, now("WaitVersion", [&] { return client_.WaitVersion("run", 0, {}, 0ms); }).error().code);

  const Result<Admission> admission = now("Admit", [&] { return client_.Admit("b", {.count = 1, .batch = 1}, 0ms); });
  ASSERT_FALSE(admission);
  EXPECT_EQ(WaitReason::kStaleness, admission.error().reason) << admission.error().ToString();
  const Result<ReservedGroup> reserved =
      now("ReserveGroup", [&] { return client_.ReserveGroup("b", {.group_id = "g", .size = 2, .batch = 2}, 0ms); });
  ASSERT_FALSE(reserved);
  EXPECT_EQ(WaitReason::kStaleness, reserved.error().reason) << reserved.error().ToString();

  // Without a batch it needs no admission; only the member that completes the group waits for pacing.
  Value(now("ReserveGroup", [&] { return client_.ReserveGroup("b", {.group_id = "g", .size = 2}, 0ms); }));
  const auto insert_member = [&](uint32_t index) {
    Trajectory member = Rollout("g-" + std::to_string(index));
    member.group_id = "g";
    member.group_size = 2;
    member.index_in_group = index;
    return now("InsertMembers", [&] { return client_.InsertMembers("b", {&member, 1}, 0ms); });
  };
  EXPECT_TRUE(Value(insert_member(0)).pending);
  const Result<InsertReceipt> last = insert_member(1);
  ASSERT_FALSE(last);
  EXPECT_EQ(ErrorCode::kTimedOut, last.error().code);
  EXPECT_EQ(WaitReason::kPacing, last.error().reason) << last.error().ToString();
  EXPECT_EQ(1u, Stats().pending) << "the group waits for it still";
}

// Two processes that took one writer id, e.g. from a checkpoint of one machine. What one of them has inserted is no receipt for
// what the other one sends.
TEST_F(Traps, TwoClientsWithOneWriterIdAreToldAndLoseNothing) {
  Create({});
  RawClient a(daemon_.address(), /*hello=*/true), b(daemon_.address(), /*hello=*/true);  // on an I/O thread each
  const auto insert = [](RawClient& client, const std::string& id, uint64_t sequence, uint64_t acknowledged_through) {
    const RawReply reply = client.Call(
        InsertBytes({.buffer = "b", .writer = 7, .sequence = sequence, .acknowledged_through = acknowledged_through},
                    {MakeTrajectory({.id = id})}));
    return CodeName(reply.code()) + (reply.ok() && reply.get().getInsert().getDuplicate() ? " duplicate" : "");
  };
  EXPECT_EQ("ok", insert(a, "a1", 1, 0));
  EXPECT_EQ("failedPrecondition", insert(b, "b1", 1, 0));
  EXPECT_EQ("ok duplicate", insert(b, "a1", 1, 0)) << "a repeat by the same writer is one, whatever connection it comes over";
  EXPECT_EQ("ok", insert(b, "b2", 2, 0));
  EXPECT_EQ("failedPrecondition", insert(a, "a2", 2, 0));
  EXPECT_EQ("ok", insert(a, "a3", 3, 0));
  EXPECT_EQ("ok", insert(a, "a4", 4, 3));
  EXPECT_EQ("writerExpired", insert(b, "b2", 2, 0));
  EXPECT_EQ("writerExpired", insert(b, "b3", 3, 0));

  std::vector<std::string> stored;
  for (const StoredTrajectory& each : Value(client_.Scan("b", 0, 100))) stored.emplace_back(each.trajectory.trajectory_id());
  EXPECT_THAT(stored, testing::ElementsAre("a1", "b2", "a3", "a4"));
  const BufferCounts counts = StatsOf(a, "b");
  EXPECT_EQ("", counts.Violation());
  EXPECT_EQ(9u, counts.offered);
  EXPECT_EQ(4u, counts.accepted);
  EXPECT_EQ(1u, counts.duplicate);
  EXPECT_EQ(4u, counts.rejected);
}

TEST_F(Traps, OfTwoClientsThatRaceWithOneWriterIdOneStoresEachNumber) {
  Create({});
  constexpr uint64_t kRequests = 200;
  const auto race = [this](const std::string& name, std::set<std::string>* stored) {
    RawClient client(daemon_.address(), /*hello=*/true);
    Bytes ahead;
    for (uint64_t sequence = 1; sequence <= kRequests; ++sequence) {
      const Bytes request = InsertBytes({.id = sequence, .buffer = "b", .writer = 7, .sequence = sequence},
                                        {MakeTrajectory({.id = name + std::to_string(sequence)})});
      ahead.insert(ahead.end(), request.begin(), request.end());
    }
    client.Send(ahead);
    for (uint64_t sequence = 1; sequence <= kRequests; ++sequence) {
      const RawReply reply = client.Receive();
      if (reply.ok()) {
        EXPECT_FALSE(reply.get().getInsert().getDuplicate());
        stored->insert(name + std::to_string(sequence));
      } else {
        EXPECT_EQ("failedPrecondition", CodeName(reply.code())) << reply.ToString();
      }
    }
  };
  std::set<std::string> of_a, of_b;
  std::thread other([&] { race("a", &of_a); });
  race("b", &of_b);
  other.join();

  std::set<std::string> told = of_a;
  told.insert(of_b.begin(), of_b.end());
  EXPECT_EQ(kRequests, told.size());
  std::set<std::string> stored;
  for (const StoredTrajectory& each : Value(client_.Scan("b", 0, 1000))) stored.emplace(each.trajectory.trajectory_id());
  EXPECT_EQ(told, stored) << "what a client was told is stored, and nothing else";
  const BufferStats stats = Stats();
  EXPECT_EQ(kRequests, stats.accepted);
  EXPECT_EQ(kRequests, stats.rejected);
}

TEST_F(Traps, ASamplerThatPrefetchesDoesNotMoveTheRatio) {
  Create({.replay_ratio = 1, .tolerance = 64, .min_size = 1, .max_draws_per_sample = 4, .max_insert = 4});
  InsertNumbered(0, 4);
  constexpr int kRounds = 60;
  int64_t used = 0;
  auto sampler = client_.NewSampler("b", {.count = 4, .prefetch = 4, .wait_timeout = 10s});
  for (int64_t step = 1; step <= kRounds; ++step) {
    Value(Insert({Rollout("s" + std::to_string(step))}));
    // Every step is newer than what was prefetched, so each batch ahead is dropped and given back.
    if (step % 4 == 0) used += static_cast<int64_t>(Value(sampler->Next(step * 2, 10s)).draws.size());
  }
  // Those under way are the only draws that pacing counts and nobody used.
  EXPECT_EQ(kRounds, used);
  EXPECT_GE(Stats().pacing_balance, kRounds - used - 5 * 4);
}

TEST_F(Traps, RanksThatPrefetchAndLagStillShareOneDrawEachStep) {
  Create({.capacity_items = 100, .selector = "uniform_distinct"});
  InsertNumbered(0, 100);
  constexpr int64_t kSteps = 12;
  std::vector<std::set<uint64_t>> items(kSteps + 1);
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (uint32_t rank = 0; rank < 2; ++rank)
    samplers.push_back(
        client_.NewSampler("b", {.count = 8, .consumer = "trainer", .rank = rank, .world_size = 2, .prefetch = 3}));
  const auto next = [&](size_t rank, int64_t step) {
    for (const Draw& draw : Value(samplers[rank]->Next(step, 10s)).draws) items[step].insert(draw.item);
  };
  for (int64_t step = 1; step <= kSteps; ++step) {
    next(0, step);
    if (step > 2) next(1, step - 2);
  }
  for (int64_t step = 1; step <= kSteps - 2; ++step) EXPECT_EQ(16u, items[step].size()) << "step " << step;
  // A step more where rank 0 has prefetched; each counted once.
  EXPECT_LE(Stats().drawn, (kSteps + 1) * 16u);
}

TEST_F(Traps, AGroupWhoseLastMemberNeverComesIsNotStored) {
  Create({});
  std::vector<Trajectory> members;
  for (uint32_t i = 0; i < 3; ++i) {
    Trajectory& member = members.emplace_back(Rollout("g-" + std::to_string(i)));
    member.group_id = "g";
    member.group_size = 4;
    member.index_in_group = i;
  }
  const Result<InsertReceipt> inserted = Insert(members);
  ASSERT_FALSE(inserted);
  EXPECT_EQ(ErrorCode::kInvalidArgument, inserted.error().code);
  EXPECT_EQ(0u, Stats().items);
}

TEST_F(Traps, WaitersAreToldThatNoProducerIsLeft) {
  Create({.min_size = 8});
  {
    Client producer({.address = daemon_.address()});
    const std::vector<Trajectory> rollouts = {Rollout("0")};
    Value(producer.Insert("b", rollouts, 5s));
  }
  const Result<Batch> batch = Sample(1, 1s);
  ASSERT_FALSE(batch);
  EXPECT_EQ(WaitReason::kNoProducer, batch.error().reason) << batch.error().ToString();
  EXPECT_THAT(batch.error().message, HasSubstr("1 of 8 items present"));
  EXPECT_THAT(batch.error().message, HasSubstr("no connection has inserted for"));
}

TEST_F(Traps, WhoHoldsAReservationIsAProducerThatIsLeft) {
  Create({.min_size = 8});
  Client producer({.address = daemon_.address()});
  Value(producer.ReserveGroup("b", {.group_id = "g", .size = 4, .lease = 10s}));
  const Result<Batch> held = Sample(1, 1s);
  ASSERT_FALSE(held);
  EXPECT_EQ(WaitReason::kMinSize, held.error().reason) << held.error().ToString();
  EXPECT_THAT(held.error().message, Not(HasSubstr("no connection has inserted")));
  Value(producer.DropGroup("b", "g"));
  const Result<Batch> dropped = Sample(1, 1s);
  ASSERT_FALSE(dropped);
  EXPECT_EQ(WaitReason::kNoProducer, dropped.error().reason) << dropped.error().ToString();
}

TEST_F(Traps, AReservationWithoutItsLeaseIsNoProducer) {
  Create({.min_size = 8});
  Value(client_.ReserveGroup("b", {.group_id = "g", .size = 4, .lease = 200ms, .missing = MissingMembers::kWait}));
  const Result<Batch> batch = Sample(1, 2s);
  ASSERT_FALSE(batch);
  EXPECT_EQ(WaitReason::kNoProducer, batch.error().reason) << batch.error().ToString();
}

TEST_F(Traps, AVersionThatGoesBackNeedsANewEpoch) {
  Value(client_.PublishVersion({.run_id = "run", .version = 10, .step = 10}));
  const Result<PolicyVersion> back = client_.PublishVersion({.run_id = "run", .version = 9, .step = 9});
  ASSERT_FALSE(back);
  EXPECT_EQ(ErrorCode::kFailedPrecondition, back.error().code) << back.error().ToString();
  EXPECT_TRUE(client_.PublishVersion({.run_id = "run", .epoch = 1, .version = 9, .step = 9}));
}

TEST_F(Traps, AlteringTheCapacityBelowTheLiveCountEvictsTheOldest) {
  Create({.capacity_items = 10});
  InsertNumbered(0, 10);
  Value(client_.AlterBuffer("b", {.capacity_items = 3}));
  const std::vector<StoredTrajectory> left = Value(client_.Scan("b", 0, 100));
  ASSERT_EQ(3u, left.size());
  EXPECT_EQ(8u, left[0].item);
  EXPECT_THAT(Stats().removed, testing::Contains(testing::Pair("capacity", 7u)));
}

TEST_F(Traps, DroppingABufferEndsTheCallsThatWaitOnIt) {
  Create({});
  Result<Batch> ended = Error{};
  std::thread waits([&] {
    Client other({.address = daemon_.address()});
    ended = other.Sample("b", {.count = 1}, 20s);
  });
  while (Value(client_.Waiters("b")).empty()) std::this_thread::sleep_for(1ms);
  Value(client_.DropBuffer("b"));
  waits.join();
  EXPECT_EQ(ErrorCode::kBufferDropped, ended.error().code) << ended.error().ToString();
}

TEST_F(Traps, AMillionTrajectoriesOfOneTokenAreKept) {
  const uint64_t count = kSanitized ? 50'000 : 1'000'000;
  Create({.capacity_items = count});
  auto writer = client_.NewWriter("b", {.batch_trajectories = 1024});
  for (uint64_t i = 0; i < count; ++i) ASSERT_TRUE(writer->Insert(Rollout("r" + std::to_string(i), 1)));
  Value(writer->Flush(120s));
  const BufferStats stats = Stats();
  EXPECT_EQ(count, stats.items);
  EXPECT_EQ(count, stats.tokens);
  EXPECT_LT(static_cast<double>(stats.index_bytes) / static_cast<double>(count), 200 - 48);
  EXPECT_EQ(1'000u, Value(Sample(1'000)).draws.size());
}

TEST_F(Traps, ATrajectoryAtTheSizeLimitIsKeptAndOneBeyondItRefused) {
  Create({.capacity_bytes = 256u << 20});
  Trajectory largest = Rollout("largest", kMaxTokens);
  largest.token_ids.back() = 41;
  Value(Insert({largest}, 60s));
  const Batch batch = Value(Sample(1, 60s));
  ASSERT_EQ(kMaxTokens, batch.trajectories[0].token_ids().size());
  EXPECT_EQ(41, batch.trajectories[0].token_ids()[kMaxTokens - 1]);
  const Result<InsertReceipt> beyond = Insert({Rollout("beyond", kMaxTokens + 1)}, 60s);
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message, HasSubstr("token_ids has 4194305 entries: at most 4194304 are allowed"));
}

}  // namespace
}  // namespace replay::test
