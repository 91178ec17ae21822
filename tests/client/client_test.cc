#include "replay/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>

#include "tests/support/fake_server.h"

namespace replay {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;

// Answers what a healthy server would.
void Answer(FakeServer::Request& request) {
  if (request.verb == "insert") {
    request.Send(
        testing::InsertReply(request.id, {.first_item = 5, .count = static_cast<uint32_t>(request.ids.size()), .live = 9}));
  } else if (request.verb == "sample") {
    request.Send(testing::SampleReply(request.id, request.step, {testing::SmallFrame("a")}));
  } else if (request.verb == "get") {
    request.Send(testing::GetReply(request.id, {testing::SmallFrame("a")}, 1));
  } else if (request.verb == "wait_version") {
    request.Send(testing::VersionReply(request.id, {.run_id = "r", .version = 4, .step = 4, .uri = "/w/4"}));
  } else {
    request.Send(testing::OkReply(request.id));
  }
}

// A door that a script waits behind until the test opens it.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(Client, CallsAndGetsValues) {
  FakeServer server(Answer, 77);
  Client client({.address = server.address()});
  const auto info = client.Ping();
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ(info->version, "fake");
  EXPECT_EQ(info->generation, 77u);
  EXPECT_GT(info->round_trip_ms, 0);
  EXPECT_TRUE(client.CreateBuffer("b", {.capacity_items = 5}));
  const std::vector<Trajectory> group = {testing::SmallTrajectory("x"), testing::SmallTrajectory("y")};
  const auto receipt = client.Insert("b", group, 1s);
  ASSERT_TRUE(receipt) << receipt.error().ToString();
  EXPECT_EQ(receipt->count, 2u);
  EXPECT_EQ(receipt->level, "memory");
  const auto batch = client.Sample("b", {.count = 1, .step = 12}, 1s);
  ASSERT_TRUE(batch) << batch.error().ToString();
  EXPECT_EQ(batch->trajectory(batch->draws[0]).trajectory_id(), "a");
  const std::vector<std::string> ids = {"a"};
  const auto stored = client.Get("b", ids);
  ASSERT_TRUE(stored) << stored.error().ToString();
  EXPECT_EQ(stored->at(0).item, 7u);
  const auto version = client.WaitVersion("r", 0, std::nullopt, 1s);
  ASSERT_TRUE(version) << version.error().ToString();
  EXPECT_EQ(version->uri, "/w/4");
  EXPECT_EQ(server.connections(), 2);  // one for calls that may wait, one for the others
}

TEST(Client, ReturnsErrorsOfTheArgumentsAtOnce) {
  Client client({.address = "127.0.0.1:1"});
  EXPECT_EQ(client.CreateBuffer("no spaces", {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.CreateBuffer("b", {.retention = "lru"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.Insert("b", {}, 1s).error().ToString(), "invalid_argument: an insert holds at least one trajectory");
  Client nowhere({.address = "nowhere"});
  EXPECT_EQ(nowhere.Ping().error().code, ErrorCode::kInvalidArgument);
}

TEST(Client, AWaitingCallHoldsUpNoOther) {
  Gate gate;
  FakeServer server([&](FakeServer::Request& request) {
    if (request.verb == "sample") gate.Pass();
    Answer(request);
  });
  Client client({.address = server.address()});
  std::vector<std::future<Result<Batch>>> samples;
  for (int i = 0; i < 3; ++i) samples.push_back(std::async(std::launch::async, [&] { return client.Sample("b", {}, 20s); }));
  while (server.connections() < 3) std::this_thread::yield();
  EXPECT_TRUE(client.Ping());
  const std::vector<Trajectory> one = {testing::SmallTrajectory("x")};
  EXPECT_TRUE(client.Insert("b", one, 1s));
  gate.Open();
  for (auto& sample : samples) EXPECT_TRUE(sample.get());
}

TEST(Client, PassesOnTheReasonOfATimeout) {
  FakeServer server([](FakeServer::Request& request) {
    EXPECT_EQ(request.timeout_ms, 250u);
    request.Send(testing::ErrorReply(request.id, ErrorCode::kTimedOut, "12 of 64 items present", WaitReason::kMinSize));
  });
  Client client({.address = server.address()});
  EXPECT_EQ(client.Sample("b", {.count = 64}, 250ms).error().ToString(), "timed_out (min_size): 12 of 64 items present");
}

TEST(Client, ReadsAreRepeatedOnceWritesAreNot) {
  std::atomic<int> pings{0}, drops{0}, samples{0};
  FakeServer server([&](FakeServer::Request& request) {
    if (request.verb == "ping" && ++pings % 2 == 1) return request.Close();
    if (request.verb == "other" && ++drops) return request.Close();
    if (request.verb == "sample" && ++samples) return request.Close();
    Answer(request);
  });
  Client client({.address = server.address()});
  EXPECT_TRUE(client.Ping());
  EXPECT_EQ(pings, 2);
  EXPECT_EQ(client.DropBuffer("b").error().code, ErrorCode::kOutcomeUnknown);
  EXPECT_EQ(drops, 1);
  EXPECT_EQ(client.Sample("b", {}, 1s).error().code, ErrorCode::kOutcomeUnknown);
  EXPECT_EQ(samples, 1);
}

TEST(Client, FindsAnIdleConnectionDeadBeforeItSends) {
  FakeServer server(Answer);
  Client client({.address = server.address()});
  EXPECT_TRUE(client.DropBuffer("b"));
  server.Restart(2);
  EXPECT_TRUE(client.DropBuffer("b"));  // would be kOutcomeUnknown had it been sent
  server.GoAway();
  const auto refused = client.DropBuffer("b");
  EXPECT_EQ(refused.error().ToString(), "unavailable: not connected to " + server.address() + ": Connection refused");
}

TEST(Client, GivesUpOnASilentServer) {
  FakeServer server([](FakeServer::Request&) {});
  Client client({.address = server.address(), .call_timeout = 300ms});
  EXPECT_EQ(client.Ping().error().ToString(), "timed_out: " + server.address() + " did not answer in time");
  EXPECT_EQ(client.DropBuffer("b").error().code, ErrorCode::kOutcomeUnknown);
  EXPECT_EQ(client.Sample("b", {}, 0ms).error().code, ErrorCode::kOutcomeUnknown);
}

TEST(Client, ReportsADamagedTrajectoryAndGoesOn) {
  std::atomic<int> samples{0};
  FakeServer server([&](FakeServer::Request& request) {
    auto bytes = testing::SampleReply(request.id, 1, {testing::SmallFrame("a")});
    if (++samples == 1) bytes[bytes.size() - 30] ^= 4;
    request.Send(bytes);
  });
  Client client({.address = server.address()});
  EXPECT_EQ(client.Sample("b", {}, 1s).error().code, ErrorCode::kCorrupted);
  EXPECT_TRUE(client.Sample("b", {}, 1s));
  EXPECT_EQ(server.connections(), 1);
}

TEST(Client, EndsAsynchronousCallsWhenItIsDestroyed) {
  Gate gate;
  FakeServer server([&](FakeServer::Request&) { gate.Pass(); });
  std::vector<ErrorCode> codes;
  std::mutex mutex;
  {
    Client client({.address = server.address()});
    for (int i = 0; i < 20; ++i) {
      client.SampleAsync("b", {}, 20s, [&](Result<Batch> batch) {
        const std::lock_guard lock(mutex);
        codes.push_back(batch.error().code);
      });
    }
  }
  gate.Open();
  ASSERT_EQ(codes.size(), 20u);
  for (const ErrorCode code : codes) EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kOutcomeUnknown);
}

TEST(Client, RefusesABlockingCallWithinACallback) {
  FakeServer server(Answer);
  Client client({.address = server.address()});
  std::promise<Error> seen;
  client.SampleAsync("b", {}, 1s, [&](Result<Batch> batch) {
    EXPECT_TRUE(batch);
    seen.set_value(client.Ping().error());
  });
  auto future = seen.get_future();
  ASSERT_EQ(future.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(future.get().code, ErrorCode::kFailedPrecondition);
}

TEST(Client, MayBeDestroyedByItsOwnCallback) {
  Gate gate;  // until this thread has let go of the client
  FakeServer server([&](FakeServer::Request& request) {
    gate.Pass();
    Answer(request);
  });
  auto client = std::make_unique<Client>(ClientOptions{.address = server.address()});
  std::promise<void> gone;
  client->SampleAsync("b", {}, 1s, [&](Result<Batch>) {
    client.reset();
    gone.set_value();
  });
  gate.Open();
  EXPECT_EQ(gone.get_future().wait_for(10s), std::future_status::ready);
}

TEST(Client, QueuesBeyondItsConnections) {
  // 300 samples at once: at most 256 connections, the others take their turn.
  Gate gate;
  FakeServer server([&](FakeServer::Request& request) {
    gate.Pass();
    Answer(request);
  });
  std::atomic<int> good{0}, ended{0};
  {
    Client client({.address = server.address()});
    for (int i = 0; i < 300; ++i)
      client.SampleAsync("b", {}, 20s, [&](Result<Batch> batch) {
        good += static_cast<bool>(batch);
        ++ended;
      });
    while (server.connections() < 256) std::this_thread::yield();
    gate.Open();
    const auto limit = std::chrono::steady_clock::now() + 30s;
    while (ended < 300 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(good, 300);
  EXPECT_EQ(server.connections(), 256);
}

TEST(Client, IsUsedByManyThreads) {
  FakeServer server(Answer);
  Client client({.address = server.address()});
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::vector<Trajectory> one = {testing::SmallTrajectory(std::to_string(t) + "-" + std::to_string(i))};
        good += client.Insert("b", one, 5s) && client.Ping() && client.Sample("b", {}, 5s);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 200);
}

}  // namespace
}  // namespace replay
