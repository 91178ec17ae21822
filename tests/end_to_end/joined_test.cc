// Prompts that are remembered, parts of a buffer for each rank, and batches from several buffers: against the real daemon on two I/O
// threads, through the client library.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "replay/client.h"
#include "tests/support/chi_square.h"
#include "tests/support/daemon.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

Trajectory Rollout(const std::string& id, int64_t index = -1, Correctness correct = Correctness::kUnknown) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.token_ids = {7, 7};
  rollout.loss_mask = {0, 1};
  rollout.source = "math";
  rollout.dataset_index = index;
  rollout.correct = correct;
  rollout.reward = correct == Correctness::kYes ? 1 : 0;
  return rollout;
}

class Joined : public testing::Test {
 protected:
  // Homes are given in turn: of two buffers one lives on each thread.
  Joined() {
    Value(client_.CreateBuffer("live", {.capacity_items = 1000}));
    Value(client_.CreateBuffer("frozen", {.capacity_items = 1000, .selector = "uniform_distinct"}));
  }
  void Insert(const std::string& buffer, int first, int count) {
    std::vector<Trajectory> rollouts;
    for (int i = first; i < first + count; ++i) rollouts.push_back(Rollout(buffer + "-" + std::to_string(i)));
    Value(client_.Insert(buffer, rollouts, 10s));
  }
  static SampleOptions Parts(std::vector<SamplePart> parts) {
    SampleOptions options;
    options.parts = std::move(parts);
    return options;
  }
  // "0 live, 0 live, 1 frozen": the part of each draw and the buffer that its trajectory was inserted into.
  static std::string Describe(const Batch& batch) {
    std::string text;
    for (const Draw& draw : batch.draws) {
      const std::string id(batch.trajectory(draw).trajectory_id());
      EXPECT_EQ(std::to_string(draw.item - 1), id.substr(id.find('-') + 1));
      text += (text.empty() ? "" : ", ") + std::to_string(draw.part) + " " + id.substr(0, id.find('-'));
    }
    return text;
  }
  BufferStats Stats(const std::string& buffer) { return Value(client_.Stats(buffer)).buffers.at(0); }

  Daemon daemon_{{.buffers = "[]", .io_threads = 2}};
  Client client_{{.address = daemon_.unix_address()}};
};

TEST_F(Joined, ABatchHasTheItemsOfEachPartFromItsBufferInTheirOrder) {
  Insert("live", 0, 10);
  Insert("frozen", 0, 3);
  const SampleOptions options = Parts({{.count = 2}, {.count = 3, .buffer = "frozen"}, {.count = 1, .buffer = "live"}});
  for (int i = 0; i < 20; ++i) {  // over several connections, dealt to both threads
    Client other({.address = daemon_.address()});
    const Batch batch = Value(other.Sample("live", options, 10s));
    EXPECT_EQ("0 live, 0 live, 1 frozen, 1 frozen, 1 frozen, 2 live", Describe(batch));
    for (const Draw& draw : batch.draws) EXPECT_EQ(draw.part == 1 ? 1 / 3.0 : 0.1, draw.probability);
  }
  EXPECT_EQ(60u, Stats("live").drawn);
  EXPECT_EQ(60u, Stats("frozen").drawn);
}

TEST_F(Joined, AllPartsMayBeOfAnotherBufferThanTheSamples) {
  Insert("frozen", 0, 2);
  EXPECT_EQ("0 frozen", Describe(Value(client_.Sample("live", Parts({{.count = 1, .buffer = "frozen"}}), 0ms))));
  EXPECT_EQ(0u, Stats("live").drawn);
}

TEST_F(Joined, ASamplerDrawsFromSeveralBuffersToo) {
  Insert("live", 0, 10);
  Insert("frozen", 0, 3);
  SamplerOptions options;
  options.parts = {{.count = 1, .buffer = "frozen"}, {.count = 2}};
  auto sampler = client_.NewSampler("live", options);
  for (int64_t step = 0; step < 50; ++step) EXPECT_EQ("0 frozen, 1 live, 1 live", Describe(Value(sampler->Next(step, 10s))));
}

TEST_F(Joined, AWaitIsShownWhereItIsAndEndsWhenItsBufferHasWhatItNeeds) {
  Insert("live", 0, 4);
  Insert("frozen", 0, 1);
  const SampleOptions options = Parts({{.count = 2}, {.count = 2, .buffer = "frozen"}});
  Result<Batch> woken = Error{};
  std::thread waits([&] {
    Client other({.address = daemon_.address()});
    woken = other.Sample("live", options, 20s);
  });
  while (Value(client_.Waiters("frozen")).empty()) std::this_thread::sleep_for(1ms);
  const std::vector<WaiterInfo> waiters = Value(client_.Waiters());
  ASSERT_EQ(1u, waiters.size());
  EXPECT_EQ("frozen", waiters[0].buffer);
  EXPECT_EQ("1 of 2 items present", waiters[0].detail);
  Insert("frozen", 1, 1);
  waits.join();
  EXPECT_EQ("0 live, 0 live, 1 frozen, 1 frozen", Describe(Value(std::move(woken))));
}

TEST_F(Joined, WhatWasDrawnIsCreditedWhenALaterBufferHasNotEnough) {
  Value(client_.CreateBuffer("paced", {.replay_ratio = 1, .max_draws_per_sample = 4, .max_insert = 4}));
  Insert("paced", 0, 4);
  Insert("paced", 4, 4);
  const double before = Stats("paced").pacing_balance;
  for (int i = 0; i < 100; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Result<Batch> none =
        client_.Sample("live", Parts({{.count = 4, .buffer = "paced"}, {.count = 2, .buffer = "frozen"}}), i % 10 ? 0ms : 20ms);
    ASSERT_FALSE(none);
    EXPECT_EQ(ErrorCode::kTimedOut, none.error().code);
    EXPECT_EQ(WaitReason::kMinSize, none.error().reason);
    EXPECT_THAT(none.error().message, HasSubstr("buffer \"frozen\": 0 of 1 items present"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  }
  EXPECT_EQ(before, Stats("paced").pacing_balance);
  Insert("frozen", 0, 2);
  Value(client_.Sample("live", Parts({{.count = 4, .buffer = "paced"}, {.count = 2, .buffer = "frozen"}}), 0ms));
  EXPECT_EQ(before - 4, Stats("paced").pacing_balance);
}

TEST_F(Joined, APeerThatLeavesWhileALaterBufferWaitsCostsNothing) {
  Value(client_.CreateBuffer("paced", {.replay_ratio = 1, .max_draws_per_sample = 4, .max_insert = 4}));
  Insert("paced", 0, 4);
  const double before = Stats("paced").pacing_balance;
  {
    Client leaves({.address = daemon_.address()});
    leaves.SampleAsync("live", Parts({{.count = 2, .buffer = "paced"}, {.count = 2, .buffer = "frozen"}}), 20s,
                       [](const Result<Batch>&) {});
    while (Value(client_.Waiters("frozen")).empty()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(before - 2, Stats("paced").pacing_balance);
  }
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (Stats("paced").pacing_balance != before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(before, Stats("paced").pacing_balance);
}

TEST_F(Joined, AKeyGivesTheSameBatchOfEachBufferAlsoWhenOneFailedBefore) {
  Insert("live", 0, 100);
  SampleOptions options = Parts({{.count = 4}, {.count = 2, .buffer = "frozen"}});
  options.consumer = "trainer";
  options.step = 1;
  options.world_size = 2;
  ASSERT_FALSE(client_.Sample("live", options, 0ms));
  EXPECT_EQ(8u, Stats("live").drawn) << "its plan is kept";
  Insert("frozen", 0, 10);
  std::map<uint32_t, std::vector<uint64_t>> items;
  for (int again = 0; again < 2; ++again) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      options.rank = rank;
      const Batch batch = Value(client_.Sample("live", options, 0ms));
      EXPECT_EQ("0 live, 0 live, 0 live, 0 live, 1 frozen, 1 frozen", Describe(batch));
      EXPECT_EQ(again == 1 || rank == 1, batch.planned);
      std::vector<uint64_t> drawn;
      for (const Draw& draw : batch.draws) drawn.push_back(draw.item);
      if (again == 0) items[rank] = drawn;
      EXPECT_EQ(items[rank], drawn);
    }
  }
  EXPECT_EQ(8u, Stats("live").drawn);
  EXPECT_EQ(4u, Stats("frozen").drawn);
}

// Priorities 1, 2, 3 and 4, the odd ones correct, and one of priority 0 that cannot be drawn.
TEST_F(Joined, ImportanceWeightsAreExactWithinEachPartAlsoOfAPlan) {
  Value(client_.CreateBuffer("weighed", {.capacity_items = 10,
                                         .selector = "prioritized",
                                         .views = {{{.name = "odd", .filter = "correct = yes", .selector = "prioritized"}}}}));
  std::vector<Trajectory> rollouts;
  for (const int priority : {1, 2, 3, 4, 0}) {
    rollouts.push_back(Rollout(std::to_string(priority), -1, priority % 2 ? Correctness::kYes : Correctness::kNo));
    rollouts.back().priority = static_cast<float>(priority);
  }
  Value(client_.Insert("weighed", rollouts, 10s));
  Insert("frozen", 0, 49);
  const auto check = [](const Batch& batch, const Draw& draw, double sum, double n) {
    const double priority = static_cast<double>(draw.item);
    EXPECT_NEAR(sum / (n * priority), batch.importance_weight(draw), 1e-12);
    EXPECT_NEAR(std::pow(sum / (n * priority), 0.4), batch.importance_weight(draw, 0.4), 1e-12);
  };
  const Batch plain = Value(client_.Sample("weighed", {.count = 200}, 0ms));
  EXPECT_THAT(plain.candidates, ElementsAre(4));
  for (const Draw& draw : plain.draws) check(plain, draw, 10, 4);

  SampleOptions options = Parts({{.count = 50, .view = "odd"}, {.count = 20, .buffer = "frozen"}, {.count = 50}});
  const auto check_parts = [&] {
    const Batch batch = Value(client_.Sample("weighed", options, 0ms));
    EXPECT_THAT(batch.candidates, ElementsAre(2, 49, 4));
    for (const Draw& draw : batch.draws) {
      if (draw.part == 1)
        EXPECT_EQ(1, batch.importance_weight(draw));
      else
        check(batch, draw, draw.part == 0 ? 4 : 10, draw.part == 0 ? 2 : 4);
    }
  };
  check_parts();
  options.parts[1].count = 10;
  options.consumer = "trainer";
  options.step = 1;
  check_parts();
  Insert("frozen", 49, 10);
  check_parts();  // as it was planned
}

TEST_F(Joined, WhatCannotBeJoinedIsRefusedByName) {
  Insert("live", 0, 4);
  Insert("frozen", 0, 4);
  const auto error = [&](std::vector<SamplePart> parts) {
    const Result<Batch> refused = client_.Sample("live", Parts(std::move(parts)), 0ms);
    return refused ? "drawn" : refused.error().ToString();
  };
  EXPECT_EQ("not_found: parts[1].buffer: there is no buffer \"other\"", error({{.count = 1}, {.count = 1, .buffer = "other"}}));
  EXPECT_THAT(error({{.count = 1, .or_next = true}, {.count = 1, .buffer = "frozen"}}),
              HasSubstr("invalid_argument: parts[0].or_next is set: the part behind it is of buffer \"frozen\""));
  EXPECT_THAT(error({{.count = 1}, {.count = 1}, {.count = 1, .view = "good", .buffer = "frozen"}}),
              HasSubstr("buffer \"frozen\": parts[2].view is \"good\": the buffer declares no view"));
  Value(client_.CreateBuffer("groups", {.unit = "group"}));
  EXPECT_EQ("invalid_argument: parts[1].buffer is \"groups\": its unit is group, that of \"live\" is trajectory",
            error({{.count = 1}, {.count = 1, .buffer = "groups"}}));
  Value(client_.CreateBuffer("held", {.selector = "fifo", .lease = 1s}));
  EXPECT_THAT(error({{.count = 1}, {.count = 1, .buffer = "held"}}), HasSubstr("parts[1].buffer is \"held\": it has leases"));
  EXPECT_EQ(0u, Stats("live").drawn);
}

TEST_F(Joined, ABufferDroppedMeanwhileEndsTheWait) {
  Insert("live", 0, 4);
  Result<Batch> ended = Error{};
  std::thread waits([&] {
    Client other({.address = daemon_.address()});
    ended = other.Sample("live", Parts({{.count = 1}, {.count = 1, .buffer = "frozen"}}), 20s);
  });
  while (Value(client_.Waiters("frozen")).empty()) std::this_thread::sleep_for(1ms);
  Value(client_.DropBuffer("frozen"));
  waits.join();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ErrorCode::kBufferDropped, ended.error().code);
}

// The sharded buffer of the paper: N items over T ranks.
TEST_F(Joined, EachRankDrawsItsOwnPartOfABufferAndUniformlyWithinIt) {
  constexpr uint32_t kRanks = 4, kItems = 64, kDraws = 8'000;
  Value(client_.CreateBuffer("sharded", {.capacity_items = kItems, .seed = 11, .parts = kRanks}));
  for (int i = 0; i < 200; i += 4) Insert("sharded", i, 4);
  EXPECT_THAT(Stats("sharded").views,
              ElementsAre(Pair("part 0", 16), Pair("part 1", 16), Pair("part 2", 16), Pair("part 3", 16)));
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    SampleOptions options;
    options.count = kDraws;
    options.rank = rank;
    options.world_size = kRanks;
    std::map<uint64_t, double> counts;
    for (const Draw& draw : Value(client_.Sample("sharded", options, 0ms)).draws) {
      ASSERT_EQ(rank, draw.item % kRanks);
      ASSERT_GT(draw.item, 200 - kItems);
      ASSERT_EQ(1.0 / 16, draw.probability);
      ++counts[draw.item];
    }
    EXPECT_EQ(kItems / kRanks, counts.size());
    double statistic = 0;
    for (const auto& [item, count] : counts) statistic += (count - kDraws / 16.0) * (count - kDraws / 16.0) / (kDraws / 16.0);
    EXPECT_GT(ChiSquareTail(statistic, 15), 1e-4) << "rank " << rank << ", chi-square " << statistic;
  }
  const Result<Batch> nobody = client_.Sample("sharded", {.count = 1}, 0ms);
  ASSERT_FALSE(nobody);
  EXPECT_THAT(nobody.error().message, HasSubstr("the buffer has parts = 4"));
}

TEST_F(Joined, TheHistoryOfPromptsIsToldInPagesAndDecidesWhoIsDrawn) {
  BufferOptions options;
  options.prompt_history = 100;
  options.views = std::vector<ViewOptions>{{.name = "learnable", .filter = "success >= 0.2, success <= 0.8"}};
  Value(client_.CreateBuffer("prompts", options));
  const auto insert = [&](const std::string& id, int64_t index, Correctness correct) {
    Value(client_.Insert("prompts", std::vector<Trajectory>{Rollout(id, index, correct)}, 10s));
  };
  for (int64_t index = 0; index < 3; ++index) {
    insert("a" + std::to_string(index), index, Correctness::kYes);
    insert("b" + std::to_string(index), index, index == 1 ? Correctness::kNo : Correctness::kYes);
  }
  const HistoryPage first = Value(client_.History("prompts", "math", -1, 2));
  ASSERT_EQ(2u, first.prompts.size());
  EXPECT_TRUE(first.more);
  EXPECT_EQ(1, first.prompts[1].dataset_index);
  EXPECT_EQ(2u, first.prompts[1].rollouts);
  EXPECT_EQ(2u, first.prompts[1].scored);
  EXPECT_EQ(1u, first.prompts[1].correct);
  EXPECT_EQ(1.0, first.prompts[1].reward_sum);
  const HistoryPage second = Value(client_.History("prompts", "math", 1, 2));
  EXPECT_EQ(1u, second.prompts.size());
  EXPECT_FALSE(second.more);
  SampleOptions learnable;
  learnable.count = 40;
  learnable.view = "learnable";
  for (const Draw& draw : Value(client_.Sample("prompts", learnable, 0ms)).draws)
    EXPECT_THAT(draw.item, testing::AnyOf(3u, 4u));
  const std::vector<ItemUpdate> updates = {{.trajectory_id = "b2", .correct = Correctness::kNo}};
  Value(client_.Update("prompts", updates));
  EXPECT_EQ(1u, Value(client_.History("prompts", "math", 1)).prompts.at(0).correct);
  EXPECT_THAT(Stats("prompts").views, ElementsAre(Pair("learnable", 4)));
  EXPECT_EQ(3u, Stats("prompts").prompts);

  EXPECT_THAT(client_.History("live", "math").error().ToString(),
              HasSubstr("failed_precondition: prompt_history of buffer \"live\" is 0"));
  EXPECT_EQ(ErrorCode::kNotFound, client_.History("nowhere", "math").error().code);
  EXPECT_THAT(client_.History("prompts", "math", -1, 0).error().message, HasSubstr("limit is 0: it must be at least 1"));
  EXPECT_THAT(client_.AlterBuffer("prompts", {.prompt_history = 0}).error().message, HasSubstr("but prompt_history is 0"));
}

}  // namespace
}  // namespace replay::test
