#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>

#include "replay/client.h"
#include "tests/support/fake_server.h"
#include "tests/support/shelf.h"

namespace replay {
namespace {

using namespace std::chrono_literals;
using testing::Describe;
using testing::FakeServer;
using testing::Group;
using testing::Quick;
using testing::Shelf;
using testing::SmallTrajectory;

TEST(Writer, BatchesWholeGroups) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", {.batch_trajectories = 8, .linger = 10'000ms});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(writer->InsertGroup(Group("g" + std::to_string(i), 3)));
  const auto done = writer->Flush(10s);
  EXPECT_TRUE(done) << done.error().ToString();
  // 3 + 3 fit into 8, a third would not.
  EXPECT_EQ(shelf.log(), "a1:6 stored, a2:6 stored, a3:3 stored");
  EXPECT_EQ(Describe(writer->progress()), "accepted=15 duplicate=0 failed=0 in_flight=0 lost=0");
}

TEST(Writer, SendsAfterLingering) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", {.linger = 5ms});
  std::promise<uint32_t> stored;
  writer->OnResult([&](const Result<InsertReceipt>& receipt) { stored.set_value(receipt->count); });
  ASSERT_TRUE(writer->Insert(SmallTrajectory("x")));
  ASSERT_TRUE(writer->Insert(SmallTrajectory("y")));
  auto future = stored.get_future();
  ASSERT_EQ(future.wait_for(10s), std::future_status::ready);  // nobody flushed
  EXPECT_EQ(future.get(), 2u);
}

TEST(Writer, ReturnsWhatIsWrongAtOnce) {
  Client client({.address = "127.0.0.1:1"});
  const auto writer = client.NewWriter("b", Quick());
  Trajectory bad = SmallTrajectory("x");
  bad.loss_mask.pop_back();
  EXPECT_EQ(writer->Insert(bad).error().ToString(),
            "invalid_argument: loss_mask has 4 entries, token_ids has 5: they must agree");
  EXPECT_EQ(client.NewWriter("no spaces", Quick())->Insert(SmallTrajectory("x")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Describe(writer->progress()), "accepted=0 duplicate=0 failed=0 in_flight=0 lost=0");
}

TEST(Writer, BlocksWhileTheWindowIsFullAndSaysWhy) {
  Shelf shelf;
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
  FakeServer server([&](FakeServer::Request& request) {
    {
      std::unique_lock lock(mutex);
      if (!open && request.sequence == 1) {
        shelf.Refuse(request, ErrorCode::kTimedOut, "balance 8 of 8", WaitReason::kPacing);
        opened.wait_for(lock, 20s, [&] { return open; });
        return;
      }
    }
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  WriterOptions options = Quick();
  options.max_in_flight = 3;
  options.batch_trajectories = 1;
  const auto writer = client.NewWriter("b", options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i)), 0ms));
  Result<Done> full = Done{};
  // The first answer must be in for its reason to be shown.
  const auto limit = std::chrono::steady_clock::now() + 10s;
  do {
    full = writer->Insert(SmallTrajectory("late"), 1ms);
    ASSERT_FALSE(full);
  } while (full.error().reason == WaitReason::kNone && std::chrono::steady_clock::now() < limit);
  EXPECT_EQ(full.error().ToString(),
            "timed_out (pacing): no room in the window: 3 requests of 3 trajectories unanswered; last: timed_out (pacing): "
            "balance 8 of 8");
  EXPECT_EQ(writer->Flush(0ms).error().code, ErrorCode::kTimedOut);
  {
    const std::lock_guard lock(mutex);
    open = true;
    opened.notify_all();
  }
  ASSERT_TRUE(writer->Insert(SmallTrajectory("late"), 10s));
  EXPECT_TRUE(writer->Flush(10s));
  std::vector<std::string> ids = shelf.ids();
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<std::string>{"late", "t0", "t1", "t2"})) << shelf.log();
}

TEST(Writer, BoundsTheBytesInFlight) {
  FakeServer server([](FakeServer::Request&) {});
  Client client({.address = server.address()});
  WriterOptions options = Quick();
  options.max_in_flight_bytes = testing::SmallFrame("t0").size() * 5 / 2;
  const auto writer = client.NewWriter("b", options);
  EXPECT_TRUE(writer->Insert(SmallTrajectory("t0"), 0ms));
  EXPECT_TRUE(writer->Insert(SmallTrajectory("t1"), 0ms));
  EXPECT_EQ(writer->Insert(SmallTrajectory("t2"), 0ms).error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(writer->progress().in_flight, 2u);
}

TEST(Writer, SplitsARefusedRequestSoThatOnlyTheBadCallFails) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) {
    if (std::find(request.ids.begin(), request.ids.end(), "g1-0") != request.ids.end())
      return shelf.Refuse(request, ErrorCode::kAlreadyExists, "trajectory \"g1-0\" is live");
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", {.linger = 10'000ms});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer->InsertGroup(Group("g" + std::to_string(i), 2)));
  EXPECT_EQ(writer->Flush(10s).error().ToString(), "already_exists: trajectory \"g1-0\" is live");
  EXPECT_TRUE(writer->Flush(10s));
  EXPECT_EQ(shelf.log(), "a1:6 already_exists, a2:2 stored, a3:2 already_exists, a4:2 stored");
  EXPECT_EQ(Describe(writer->progress()), "accepted=4 duplicate=0 failed=2 in_flight=0 lost=0");
}

TEST(Writer, LearnsHowMuchABufferTakesAtOnce) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) {
    if (request.ids.size() > 4) return shelf.Refuse(request, ErrorCode::kInvalidArgument, "max_insert is 4");
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", {.batch_trajectories = 8, .linger = 10'000ms});
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i))));
  EXPECT_TRUE(writer->Flush(10s));
  for (int i = 16; i < 20; ++i) ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i))));
  EXPECT_TRUE(writer->Flush(10s));
  EXPECT_EQ(shelf.ids().size(), 20u);
  EXPECT_TRUE(shelf.log().ends_with(":4 stored")) << shelf.log();
}

TEST(Writer, KeepsToWhatTheServerTakesAtOnce) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); });
  server.SetMaxPayload(testing::SmallFrame("g0-0").size() * 9 / 2);
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", {.linger = 10'000ms});
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(writer->InsertGroup(Group("g" + std::to_string(i), 2 * i + 1)));
  const auto done = writer->Flush(10s);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument) << done.error().ToString();
  EXPECT_EQ(shelf.log(), "a2:1 stored, a3:3 stored");  // 1, with all nine, and 4, with five, were never sent
  const std::vector<Trajectory> five = Group("g", 5);
  EXPECT_EQ(client.Insert("b", five, 1s).error().code, ErrorCode::kInvalidArgument);
}

TEST(Writer, EndsWhileTheServerIsAway) {
  std::atomic<int> failed{0};
  {
    Client client({.address = "127.0.0.1:1"});
    const auto writer = client.NewWriter("b", Quick());
    writer->OnResult([&](const Result<InsertReceipt>& result) { failed += !result; });
    ASSERT_TRUE(writer->InsertGroup(Group("g", 3)));
  }
  EXPECT_EQ(failed, 1);
}

TEST(Writer, OutlivesItsClient) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); });
  auto client = std::make_unique<Client>(ClientOptions{.address = server.address()});
  auto writer = client->NewWriter("b", Quick());
  client.reset();
  ASSERT_TRUE(writer->Insert(SmallTrajectory("t")));
  EXPECT_TRUE(writer->Flush(10s));
}

}  // namespace
}  // namespace replay
