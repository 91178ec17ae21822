// The Writer against servers that cut, forget, restart, refuse or stay silent.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

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

TEST(Writer, StoresOnceWhenTheReplyIsCutOff) {
  Shelf shelf;
  std::atomic<int> requests{0};
  FakeServer server([&](FakeServer::Request& request) {
    const bool cut = ++requests == 2;
    shelf.Store(request, !cut);
    if (cut) request.Close();
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i))));
  const auto done = writer->Flush(10s);
  EXPECT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(shelf.ids(), (std::vector<std::string>{"t0", "t1", "t2"})) << shelf.log();
  EXPECT_EQ(Describe(writer->progress()), "accepted=2 duplicate=1 failed=0 in_flight=0 lost=0") << shelf.log();
  EXPECT_EQ(writer->progress().reconnects, 1u);
}

TEST(Writer, SurvivesARestartThatKeptItsContent) {
  Shelf shelf;
  std::atomic<bool> silent{true};
  std::atomic<int> arrived{0};
  FakeServer server([&](FakeServer::Request& request) {
    if (silent) {
      ++arrived;
      return;  // received, neither stored nor answered
    }
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i))));
  while (arrived < 4) std::this_thread::yield();
  silent = false;
  server.Restart(1);
  EXPECT_TRUE(writer->Flush(10s));
  EXPECT_EQ(shelf.log(), "a1:1 stored, a2:1 stored, a3:1 stored, a4:1 stored");
}

TEST(Writer, SaysWhatARestartedServerLost) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); }, 1);
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  std::vector<std::string> news;
  std::mutex mutex;
  writer->OnResult([&](const Result<InsertReceipt>& result) {
    const std::lock_guard lock(mutex);
    news.push_back(result ? "stored" : std::string(ToString(result.error().code)));
  });
  ASSERT_TRUE(writer->InsertGroup(Group("g", 2)));
  ASSERT_TRUE(writer->Flush(10s));
  shelf.Empty();
  server.Restart(2);
  ASSERT_TRUE(writer->Insert(SmallTrajectory("t")));
  const auto lost = writer->Flush(10s);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().ToString(),
            "content_lost: " + server.address() + " restarted empty: 2 trajectories that it had acknowledged are gone");
  EXPECT_TRUE(writer->Flush(10s));  // said once
  EXPECT_EQ(shelf.log(), "a1:2 stored, b1:1 stored");
  EXPECT_EQ(Describe(writer->progress()), "accepted=3 duplicate=0 failed=0 in_flight=0 lost=2");
  const std::lock_guard lock(mutex);
  EXPECT_EQ(news, (std::vector<std::string>{"stored", "content_lost", "stored"}));
}

TEST(Writer, OffersAgainWhatADrainingServerRefused) {
  Shelf shelf;
  std::atomic<int> requests{0};
  FakeServer server([&](FakeServer::Request& request) {
    if (++requests <= 2) return shelf.Refuse(request, ErrorCode::kUnavailable, "draining", WaitReason::kDraining);
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  ASSERT_TRUE(writer->Insert(SmallTrajectory("t")));
  EXPECT_TRUE(writer->Flush(10s));
  EXPECT_EQ(shelf.log(), "a1:1 unavailable, a1:1 unavailable, a1:1 stored");
}

TEST(Writer, TakesANewIdWhenTheServerForgotItAndRisksNoDuplicate) {
  Shelf shelf;
  std::atomic<int> requests{0};
  std::atomic<uint64_t> first_writer{0};
  FakeServer server([&](FakeServer::Request& request) {
    if (first_writer == 0) first_writer = request.writer;
    const int number = ++requests;
    if (number == 1) return shelf.Store(request);
    if (number == 2) {  // stored or not: nobody will know
      shelf.Store(request, false);
      return request.Close();
    }
    if (request.writer == first_writer) return shelf.Refuse(request, ErrorCode::kWriterExpired, "unknown writer");
    shelf.Store(request);
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(writer->Insert(SmallTrajectory("t" + std::to_string(i))));
    if (i == 0) {
      ASSERT_TRUE(writer->Flush(10s));
    }
  }
  const auto done = writer->Flush(10s);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kOutcomeUnknown) << done.error().ToString();
  const auto progress = writer->progress();
  EXPECT_EQ(progress.accepted + progress.failed, 4u) << shelf.log();
  EXPECT_GE(progress.failed, 1u) << shelf.log();
  std::vector<std::string> ids = shelf.ids();
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << "stored twice: " << shelf.log();
}

TEST(Writer, GivesUpWithoutAServer) {
  std::atomic<bool> arrived{false};
  FakeServer server([&](FakeServer::Request&) { arrived = true; });
  Client client({.address = server.address()});
  WriterOptions options = Quick();
  options.give_up_after = 60ms;
  const auto sent = client.NewWriter("b", options);
  ASSERT_TRUE(sent->Insert(SmallTrajectory("sent")));
  while (!arrived) std::this_thread::yield();
  EXPECT_EQ(sent->Flush(0ms).error().code, ErrorCode::kTimedOut);
  server.GoAway();
  EXPECT_EQ(sent->Flush(10s).error().code, ErrorCode::kOutcomeUnknown);
  const auto unsent = client.NewWriter("b", options);
  ASSERT_TRUE(unsent->Insert(SmallTrajectory("unsent")));
  const auto done = unsent->Flush(10s);
  EXPECT_EQ(done.error().ToString(),
            "unavailable: not connected to " + server.address() + ": Connection refused: it was not stored");
}

TEST(Writer, PatienceBeginsAnewAfterIdling) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) { shelf.Store(request); });
  Client client({.address = server.address()});
  WriterOptions options = Quick();
  options.give_up_after = 2s;
  const auto writer = client.NewWriter("b", options);
  ASSERT_TRUE(writer->Insert(SmallTrajectory("before")));
  ASSERT_TRUE(writer->Flush(10s));
  server.GoAway();  // The connection breaks while nothing is to be sent.
  std::this_thread::sleep_for(options.give_up_after + 100ms);
  ASSERT_TRUE(writer->Insert(SmallTrajectory("after")));
  EXPECT_EQ(writer->Flush(500ms).error().code, ErrorCode::kTimedOut) << "given up at once";
}

TEST(Writer, BreaksWithASilentServerAndSendsAgain) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) {
    if (request.connection > 1) shelf.Store(request);
  });
  Client client({.address = server.address(), .call_timeout = 20ms});
  WriterOptions options = Quick();
  options.insert_timeout = 20ms;
  const auto writer = client.NewWriter("b", options);
  ASSERT_TRUE(writer->Insert(SmallTrajectory("t")));
  EXPECT_TRUE(writer->Flush(10s));
  EXPECT_EQ(shelf.ids(), std::vector<std::string>{"t"}) << shelf.log();
}

TEST(Writer, SurvivesRepliesNobodyAskedFor) {
  Shelf shelf;
  FakeServer server([&](FakeServer::Request& request) {
    shelf.Store(request);
    if (request.connection == 1) request.Send(testing::InsertReply(request.id + 1, {.count = 1}));
  });
  Client client({.address = server.address()});
  const auto writer = client.NewWriter("b", Quick());
  ASSERT_TRUE(writer->Insert(SmallTrajectory("t0")));
  ASSERT_TRUE(writer->Flush(10s));
  while (writer->progress().reconnects == 0) {
    ASSERT_TRUE(writer->Insert(SmallTrajectory("")));
    ASSERT_TRUE(writer->Flush(10s));
  }
  EXPECT_EQ(writer->progress().failed, 0u);
}

// Connections cut at random while 2,000 trajectories go through: each is stored exactly once.
TEST(Writer, StoresExactlyOnceOnABadLine) {
  Shelf shelf;
  std::atomic<uint32_t> random{12345};
  FakeServer server([&](FakeServer::Request& request) {
    const uint32_t dice = (random = random * 1664525u + 1013904223u) >> 24;
    if (dice < 20) return request.Close();  // before it is stored
    shelf.Store(request, dice >= 40);       // or after
    if (dice < 40) request.Close();
  });
  Client client({.address = server.address()});
  WriterOptions options = Quick();
  options.batch_trajectories = 7;
  options.max_in_flight = 16;
  const auto writer = client.NewWriter("b", options);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(writer->InsertGroup(Group("g" + std::to_string(i), 2), 20s));
  const auto done = writer->Flush(60s);
  EXPECT_TRUE(done) << done.error().ToString();
  std::vector<std::string> ids = shelf.ids();
  EXPECT_EQ(ids.size(), 2000u);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
  const auto progress = writer->progress();
  EXPECT_EQ(progress.accepted + progress.duplicate, 2000u);
  EXPECT_GT(progress.reconnects, 0u);
}

}  // namespace
}  // namespace replay
