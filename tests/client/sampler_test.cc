#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>

#include "replay/client.h"
#include "tests/support/fake_server.h"

namespace replay {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;

// Remembers what was asked for: "5 6 7+2" are samples for steps 5, 6 and 7, the last giving two draws back.
class Book {
 public:
  void Note(const FakeServer::Request& request) {
    const std::lock_guard lock(mutex_);
    text_ += (text_.empty() ? "" : " ") + std::to_string(request.step) +
             (request.given_back > 0 ? "+" + std::to_string(request.given_back) : "");
    ++count_;
    changed_.notify_all();
  }
  // Waits until `count` requests have come.
  std::string After(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 10s, [&] { return count_ >= count; });
    return text_;
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  int count_ = 0;
};

void Answer(FakeServer::Request& request) {
  std::vector<Frame> frames;
  for (uint32_t i = 0; i < request.count; ++i) frames.push_back(testing::SmallFrame("t" + std::to_string(i)));
  request.Send(testing::SampleReply(request.id, request.step, frames));
}

TEST(Sampler, AsksForTheNextStepsAhead) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.count = 2, .prefetch = 2});
  for (int64_t step = 5; step < 8; ++step) {
    const auto batch = sampler->Next(step, 10s);
    ASSERT_TRUE(batch) << batch.error().ToString();
    EXPECT_EQ(batch->step, step);
    EXPECT_EQ(batch->draws.size(), 2u);
    EXPECT_EQ(book.After(static_cast<int>(step - 5) + 3).substr(0, 5), "5 6 7");
  }
  EXPECT_EQ(book.After(5), "5 6 7 8 9");
  EXPECT_EQ(sampler->progress().batches, 3u);
  EXPECT_EQ(server.connections(), 1);
}

TEST(Sampler, WithoutPrefetchAsksOnlyWhenAsked) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 0});
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(sampler->Next(step, 10s));
  EXPECT_EQ(book.After(3), "1 2 3");
}

TEST(Sampler, DropsWhatIsTooOldAndGivesItBack) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.count = 2, .prefetch = 1});
  ASSERT_TRUE(sampler->Next(5, 10s));
  ASSERT_EQ(book.After(2), "5 6");
  while (!sampler->Next(6, 10s)) {
  }
  ASSERT_EQ(book.After(3), "5 6 7");
  const auto jumped = sampler->Next(20, 10s);  // the batch for 7 is of no use any more
  ASSERT_TRUE(jumped);
  EXPECT_EQ(jumped->step, 20);
  EXPECT_EQ(sampler->progress().dropped_stale, 1u);
  const std::string asked = book.After(5);
  EXPECT_TRUE(asked == "5 6 7 20+2 21" || asked == "5 6 7 20 21+2") << asked;  // the batch for 7 may come after the jump
}

TEST(Sampler, UsesAnOlderBatchWithinItsAge) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 1, .max_prefetch_age = 3});
  ASSERT_TRUE(sampler->Next(5, 10s));
  book.After(2);
  const auto batch = sampler->Next(9, 10s);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->step, 6);
  EXPECT_EQ(sampler->Next(20, 10s)->step, 20);
}

TEST(Sampler, NeverUsesABatchMadeForALaterStep) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 1});
  ASSERT_TRUE(sampler->Next(5, 10s));
  book.After(2);
  EXPECT_EQ(sampler->Next(5, 10s)->step, 5);  // again: the batch for 6 is kept
  EXPECT_EQ(sampler->Next(6, 10s)->step, 6);
  EXPECT_EQ(sampler->Next(2, 10s)->step, 2);  // back to an earlier checkpoint
}

TEST(Sampler, ReturnsTheServersReasonAtTheDeadline) {
  FakeServer server([](FakeServer::Request& request) {
    std::this_thread::sleep_for(milliseconds(request.timeout_ms));
    request.Send(testing::ErrorReply(request.id, ErrorCode::kTimedOut, "12 of 64 items present", WaitReason::kMinSize));
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {});
  for (const milliseconds timeout : {0ms, 30ms})
    EXPECT_EQ(sampler->Next(1, timeout).error().ToString(), "timed_out (min_size): 12 of 64 items present");
}

TEST(Sampler, AsksAgainWhileNextWaits) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    if (book.count() > 2) return Answer(request);
    request.Send(testing::ErrorReply(request.id, ErrorCode::kTimedOut, "0 of 1 items present", WaitReason::kMinSize));
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 0, .wait_timeout = 1ms});
  EXPECT_TRUE(sampler->Next(4, 10s));
  EXPECT_EQ(book.After(3), "4 4 4");
}

TEST(Sampler, ReturnsAnErrorOnceAndTriesAgainAtTheNextCall) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    if (book.count() == 1) return request.Send(testing::ErrorReply(request.id, ErrorCode::kNotFound, "no buffer \"b\""));
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 0});
  EXPECT_EQ(sampler->Next(1, 10s).error().ToString(), "not_found: no buffer \"b\"");
  EXPECT_TRUE(sampler->Next(1, 10s));
}

TEST(Sampler, ReconnectsAndKeepsWhatItHas) {
  Book book;
  FakeServer server(
      [&](FakeServer::Request& request) {
        book.Note(request);
        Answer(request);
      },
      1);
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 1});
  ASSERT_TRUE(sampler->Next(5, 10s));
  ASSERT_EQ(book.After(2), "5 6");
  ASSERT_TRUE(sampler->Next(6, 10s));
  ASSERT_EQ(book.After(3), "5 6 7");
  server.Restart(2);
  ASSERT_TRUE(sampler->Next(7, 10s));
  ASSERT_TRUE(sampler->Next(8, 10s));
  EXPECT_EQ(sampler->progress().reconnects, 1u);
}

TEST(Sampler, AsksAnewWhenAReplyIsCutOff) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    if (book.count() == 1) return request.Close();
    Answer(request);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 0});
  EXPECT_TRUE(sampler->Next(1, 10s));
  EXPECT_EQ(book.After(2), "1 1");
}

TEST(Sampler, SaysThatThereIsNoServer) {
  FakeServer server(Answer);
  server.GoAway();
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(sampler->Next(1, milliseconds(i)).error().ToString(),
              "unavailable: not connected to " + server.address() + ": Connection refused");
}

TEST(Sampler, ReportsADamagedBatch) {
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    auto bytes = testing::SampleReply(request.id, request.step, {testing::SmallFrame("a")});
    if (book.count() == 1) bytes[bytes.size() - 30] ^= 4;
    request.Send(bytes);
  });
  Client client({.address = server.address()});
  const auto sampler = client.NewSampler("b", {.prefetch = 0});
  EXPECT_EQ(sampler->Next(1, 10s).error().code, ErrorCode::kCorrupted);
  EXPECT_TRUE(sampler->Next(2, 10s));
  EXPECT_EQ(book.After(2), "1 2+1");
}

TEST(Sampler, EndsWhileARequestWaits) {
  std::mutex mutex;
  std::condition_variable over;
  bool done = false;
  Book book;
  FakeServer server([&](FakeServer::Request& request) {
    book.Note(request);
    std::unique_lock lock(mutex);
    over.wait_for(lock, 20s, [&] { return done; });
  });
  {
    Client client({.address = server.address(), .call_timeout = 50ms});
    const auto sampler = client.NewSampler("b", {});
    EXPECT_EQ(sampler->Next(1, 0ms).error().code, ErrorCode::kTimedOut);
    book.After(1);
  }
  const std::lock_guard lock(mutex);
  done = true;
  over.notify_all();
}

// A reply for which there is no memory is one more trouble that may pass: said, tried again, and in nobody's way at the end.
TEST(Sampler, OutlivesMemoryThatRanOut) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves more addresses than a limit can leave";
#else
  rlimit before{};
  ASSERT_EQ(0, getrlimit(RLIMIT_AS, &before));
  Frame large = Frame::Allocate(kMaxFrameBytes);
  std::memset(large.mutable_data(), 0, large.size());
  FakeServer server([&](FakeServer::Request& request) {
    if (request.connection > 1) {
      setrlimit(RLIMIT_AS, &before);
      return Answer(request);
    }
    const std::vector<uint8_t> reply = testing::SampleReply(request.id, request.step, {large});
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (24u << 20);
    setrlimit(RLIMIT_AS, &limit);
    request.Send(reply);
  });
  {
    Client client({.address = server.address()});
    const auto sampler = client.NewSampler("b", {.count = 2, .prefetch = 0});
    const auto batch = sampler->Next(7, 30s);
    EXPECT_TRUE(batch) << batch.error().ToString();
    EXPECT_EQ(1u, sampler->progress().reconnects);
  }
  setrlimit(RLIMIT_AS, &before);
#endif
}

}  // namespace
}  // namespace replay
