// Garbage on the port while others work: random bytes, mutated real messages, drips, requests that lie about what follows, up to 200
// connections at a time. A good client must go on being answered, and afterwards the daemon must be as it was.
//
// REPLAY_HOSTILE_SECONDS sets how long each case lasts (default 5; the acceptance run takes 60).

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitized.h"

namespace replay::test {
namespace {

using std::chrono::steady_clock;

milliseconds HowLong() {
  const char* seconds = std::getenv("REPLAY_HOSTILE_SECONDS");
  return milliseconds(1000 * (seconds ? std::max(1, std::atoi(seconds)) : 5));
}

constexpr milliseconds kGoodClientDeadline{kSanitized ? 10'000 : 2'000};

std::vector<Bytes> RealRequests(const std::string& id) {
  return {HelloBytes(1),
          PingBytes(2),
          InsertBytes({.id = 3, .timeout_ms = 200}, MakeGroup(2, {.id = id, .length = 30, .rich = true})),
          InsertBytes({.id = 4, .timeout_ms = 200, .writer = 9, .sequence = 1}, {MakeTrajectory({.id = id, .length = 9000})}),
          SampleBytes({.id = 5, .timeout_ms = 100, .count = 4}),
          GetBytes(6, "rollouts", {id, id + "-0"}),
          ScanBytes(7, "rollouts", 0, 10),
          DeleteBytes(8, "rollouts", {id, id + "-0", id + "-1"}),
          PublishBytes(9, 1, 1),
          WaitVersionBytes(10, 100, 5),
          StatsBytes(11)};
}

// What one hostile connection does, from the socket's point of view.
void Attack(const std::string& address, std::mt19937_64& random, steady_clock::time_point end) {
  RawClient client(address, random() % 2 == 0);
  const auto send = [&](std::span<const uint8_t> bytes) { return client.Send(bytes, milliseconds(200)); };
  const std::vector<Bytes> requests = RealRequests("h" + std::to_string(random() % 1000));
  switch (random() % 6) {
    case 0: {  // random bytes
      Bytes bytes(random() % 100'000);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      send(bytes);
      break;
    }
    case 1:
    case 2:  // real requests with lying words, and now and then a lying preamble or payload
      for (int i = 0; i < 20; ++i) {
        Bytes bytes = requests[random() % requests.size()];
        std::vector<uint64_t> words(bytes.size() / 8);
        std::memcpy(words.data(), bytes.data(), bytes.size());
        const uint64_t preamble[3] = {words[0], words[1], words[2]};
        MutateWords(&words, random);
        if (words.size() < 3) words.resize(3);
        if (random() % 4 != 0) std::copy(preamble, preamble + 3, words.begin());
        if (!send({reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8})) break;
      }
      break;
    case 3: {  // a drip
      const Bytes& bytes = requests[random() % requests.size()];
      for (size_t at = 0; at < bytes.size() && steady_clock::now() < end; ++at) {
        if (!send({&bytes[at], 1})) break;
        std::this_thread::sleep_for(milliseconds(2));
      }
      break;
    }
    case 4: {  // promises of more than comes
      Bytes bytes = requests[3];
      bytes.resize(24 + random() % (bytes.size() - 24));
      send(bytes);
      std::this_thread::sleep_for(milliseconds(random() % 50));
      break;
    }
    default:  // asks for much and reads nothing
      for (int i = 0; i < 200 && send(ScanBytes(7, "rollouts", 0, 8000)); ++i) {
      }
  }
  if (random() % 3 == 0) client.Reset();
  if (random() % 3 == 0 && client.fd() >= 0) {
    client.HalfClose();
    client.WaitClosed(milliseconds(300));
  }
  // A FIN behind more bytes than the daemon's receive buffer holds does not arrive while it does not read: the one way to leave
  // that a waiting call finds out at its deadline only, which after a mutation may be limits.max_wait away (server/README.md).
  int unsent = 0;
  if (client.fd() >= 0 && ioctl(client.fd(), SIOCOUTQ, &unsent) == 0 && unsent > 0) client.Reset();
}

// Inserts, draws and pings in turn until told to stop; every answer has its deadline. Returns the number of calls.
uint64_t WorkAsAGoodClient(const std::string& address, const std::string& name, const std::atomic<bool>& stop,
                           double* worst_ms) {
  RawClient client(address, true);
  uint64_t calls = 0;
  const auto call = [&](const Bytes& request) {
    const auto before = steady_clock::now();
    EXPECT_TRUE(client.Send(request, kGoodClientDeadline));
    RawReply reply = client.Receive(kGoodClientDeadline);
    *worst_ms = std::max(*worst_ms, std::chrono::duration<double, std::milli>(steady_clock::now() - before).count());
    ++calls;
    EXPECT_TRUE(reply.ok()) << reply.ToString();
    return reply;
  };
  try {
    for (uint64_t i = 0; !stop && !testing::Test::HasFailure(); ++i) {
      const std::string id = name + std::to_string(i);
      call(InsertBytes({.buffer = "good",
                        .timeout_ms = 1000,
                        .writer = std::hash<std::string>()(name) | 1,
                        .sequence = i + 1,
                        .acknowledged_through = i},
                       // A run of its own: a mutated request may publish versions of the others'.
                       MakeGroup(4, {.id = id, .length = static_cast<uint32_t>(1 + i % 500), .run = "good"})));
      const RawReply batch = call(SampleBytes({.buffer = "good", .timeout_ms = 1000, .count = 4}));
      for (const Frame& frame : batch.Frames()) EXPECT_TRUE(FrameChecksumMatches(frame.bytes()));
      call(PingBytes(1));
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << name << " was not answered in time after " << calls << " calls: " << error.what();
  }
  return calls;
}

class Hostile : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(IoThreads, Hostile, testing::Values(1, 3),
                         [](const auto& name) { return std::to_string(name.param); });

TEST_P(Hostile, GarbageOnThePortDisturbsNobody) {
  Daemon daemon(
      {.buffers = R"([{"name": "good", "capacity_items": 400}, {"name": "rollouts", "capacity_items": 200}])",
       .io_threads = GetParam(),
       .server = R"("handshake_timeout": "1s", "request_timeout": "2s", "send_timeout": "1s", "max_connections": 1000)",
       .rest = R"("memory": {"limit": "256MiB"}, "limits": {"in_flight_bytes": "64MiB"})"});
  std::atomic<bool> stop = false;
  double worst_ms[2] = {0, 0};
  uint64_t calls[2] = {0, 0};
  std::vector<std::thread> good;
  for (int i = 0; i < 2; ++i) {
    good.emplace_back([&, i] {
      calls[i] =
          WorkAsAGoodClient(i ? daemon.address() : daemon.unix_address(), "good" + std::to_string(i), stop, &worst_ms[i]);
    });
  }
  std::this_thread::sleep_for(milliseconds(300));
  const uint64_t rss_before = daemon.rss_bytes();
  const auto end = steady_clock::now() + HowLong();
  std::atomic<uint64_t> attacks = 0;
  std::vector<std::thread> attackers;
  for (uint64_t t = 0; t < 200; ++t) {
    attackers.emplace_back([&, t] {
      std::mt19937_64 random(t);
      // However slow the machine, each attacks a few times.
      for (int attack = 0; (attack < 3 || steady_clock::now() < end) && !stop; ++attack) {
        try {
          Attack(random() % 2 ? daemon.address() : daemon.unix_address(), random, end);
        } catch (const NoReply&) {             // The daemon hung up on us: as it should.
        } catch (const std::runtime_error&) {  // Its backlog is full for a moment.
          std::this_thread::sleep_for(milliseconds(5));
        }
        ++attacks;
        std::this_thread::sleep_for(milliseconds(random() % 20));
      }
    });
  }
  for (std::thread& attacker : attackers) attacker.join();
  stop = true;
  for (std::thread& client : good) client.join();
  const uint64_t rss_after = daemon.rss_bytes();
  std::printf("%llu attacks, %llu good calls, worst %.1f ms, RSS %.1f -> %.1f MiB\n", static_cast<unsigned long long>(attacks),
              static_cast<unsigned long long>(calls[0] + calls[1]), std::max(worst_ms[0], worst_ms[1]),
              static_cast<double>(rss_before) / 1048576, static_cast<double>(rss_after) / 1048576);
  EXPECT_GE(attacks, 600u);
  EXPECT_GT(calls[0] + calls[1], 50u);

  // As before: no connection, nobody waiting, no memory beyond the live items.
  RawClient client(daemon.address(), true);
  const auto settled = [](const ServerCounts& server) {
    return server.connections == 1 && server.memory_used_bytes == server.live_bytes && server.waiting == 0;
  };
  const auto until = steady_clock::now() + kReplyDeadline;
  while (!settled(ServerStatsOf(client)) && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(20));
  const ServerCounts server = ServerStatsOf(client);
  EXPECT_EQ(1u, server.connections);
  EXPECT_EQ(0u, server.waiting);
  EXPECT_EQ(server.live_bytes, server.memory_used_bytes);
  // The other buffer may be gone: a mutated request can be a good DropBuffer.
  EXPECT_EQ("", StatsOf(client, "good").Violation());
  EXPECT_EQ(0u, StatsOf(client, "good").items % 4) << "only whole groups";
  // All that was ever under way at once was within the memory limit; a sanitizer keeps what was freed for a while.
  if (!kSanitized) {
    EXPECT_LT(rss_after, (uint64_t{256} << 20) * 11 / 10);
  }
}

// CVE-2025-21605 and the like: what a peer makes the daemon hold before it has said who it is.
TEST_P(Hostile, BeforeHelloAPeerCostsAlmostNothing) {
  Daemon daemon({.io_threads = GetParam(), .server = R"("handshake_timeout": "60s")"});
  RawClient other(daemon.address(), true);
  const uint64_t before = daemon.rss_bytes();
  std::vector<RawClient> peers;
  // 10 × 500 messages of 1 MB, as one list pointed to for ever; then 240 connections that wait inside a message.
  const Bytes megabyte = InsertBytes({}, {MakeTrajectory({.length = 110'000})});
  for (int i = 0; i < 10; ++i) {
    peers.emplace_back(daemon.address());
    for (int k = 0; k < 500 && peers.back().Send(megabyte, milliseconds(50)); ++k) {
    }
  }
  for (int i = 0; i < 240; ++i) {
    peers.emplace_back(daemon.address());
    const Bytes start = GetBytes(1, "rollouts", std::vector<std::string>(400, "0123456789"));
    peers.back().Send(std::span<const uint8_t>(start).first(start.size() / 2));
  }
  EXPECT_TRUE(other.Call(PingBytes(1)).ok());
  const uint64_t after = daemon.rss_bytes();
  if (!kSanitized) {
    EXPECT_LE(after, before + (16u << 20)) << "grew by " << ((after - before) >> 10) << " KiB";
  }
  peers.clear();
  const auto until = steady_clock::now() + kReplyDeadline;
  while (ServerStatsOf(other).connections > 1 && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(1u, ServerStatsOf(other).connections);
}

// A peer that takes its replies slowly, or not at all, is bounded by what it has asked for, and costs nobody else.
TEST_P(Hostile, PeersThatDoNotReadHoldTheirOwnRepliesOnly) {
  Daemon daemon({.buffers = R"([{"name": "rollouts", "capacity_items": 1000, "capacity_bytes": "64MiB"}])",
                 .io_threads = GetParam(),
                 .server = R"("send_timeout": "2s")"});
  RawClient other(daemon.address(), true);
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(other.Call(InsertBytes({}, {MakeTrajectory({.id = std::to_string(i), .length = 80'000})})).ok());
  const uint64_t before = daemon.rss_bytes();
  std::vector<RawClient> slow;
  for (int i = 0; i < 32; ++i) {
    slow.emplace_back(daemon.address(), true);
    for (int k = 0; k < 20; ++k) slow.back().Send(SampleBytes({.count = 64}), milliseconds(20));
  }
  double worst_ms = 0;
  for (int i = 0; i < 300; ++i) {
    const auto start = steady_clock::now();
    ASSERT_TRUE(other.Call(PingBytes(1)).ok());
    worst_ms = std::max(worst_ms, std::chrono::duration<double, std::milli>(steady_clock::now() - start).count());
  }
  EXPECT_LT(worst_ms, kSanitized ? 5'000 : 500);
  // The replies' frames are the stored ones: 32 × 20 × 64 draws of 0.7 MB cost no copies.
  if (!kSanitized) {
    EXPECT_LT(daemon.rss_bytes(), before + (64u << 20));
  }
  const auto until = steady_clock::now() + kReplyDeadline;
  while (ServerStatsOf(other).connections > 1 && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(1u, ServerStatsOf(other).connections) << "send_timeout ends them";
  EXPECT_EQ(StatsOf(other).bytes, ServerStatsOf(other).memory_used_bytes);
}

// slowhttptest's figures in small: many half-sent requests on the metrics port, which must go on answering.
TEST_P(Hostile, TheMetricsPortSurvivesSlowAndBrokenRequests) {
  Daemon daemon({.io_threads = GetParam()});
  std::vector<RawClient> slow;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(daemon.metrics_address());
    std::string part = "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: " + std::string(random() % 200, 'a');
    if (i % 4 == 0) {
      for (char& c : part) c = static_cast<char>(random());
    }
    slow.back().Send({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  }
  for (int i = 0; i < 20; ++i) {
    const auto before = steady_clock::now();
    EXPECT_TRUE(HttpGet(daemon.metrics_address(), "/metrics").starts_with("HTTP/1.1 200"));
    EXPECT_LT(steady_clock::now() - before, kGoodClientDeadline);
  }
  // They are let go at the port's own deadline, 5 s.
  for (RawClient& client : slow) ASSERT_TRUE(client.WaitClosed(milliseconds(15'000)));
  RawClient client(daemon.address(), true);
  EXPECT_TRUE(client.Call(PingBytes(1)).ok());
}

}  // namespace
}  // namespace replay::test
