// Crashes and floods, seen through the client library: the daemon dies and comes back under a Writer and a Sampler, a writer's
// process dies in the middle of its inserts, one client sends very much ahead.
//
// REPLAY_FLOOD_REQUESTS sets how many requests the flood sends (default 100000; the acceptance run sends 1000000).

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "replay/client.h"
#include "tests/support/daemon.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitized.h"

extern char** environ;

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

std::vector<Trajectory> Group(const std::string& id, uint32_t size, uint32_t length) {
  std::vector<Trajectory> group;
  for (uint32_t i = 0; i < size; ++i) {
    Trajectory& member = group.emplace_back();
    member.trajectory_id = id + "-" + std::to_string(i);
    member.group_id = id;
    member.group_size = size;
    member.index_in_group = i;
    for (uint32_t t = 0; t < length; ++t) member.token_ids.push_back(static_cast<int32_t>(t * 7 + i));
    member.loss_mask.assign(length, 1);
    member.behaviour_logprobs.assign(length, -0.5f);
    member.version_segments = {{0, length, 1}};
  }
  return group;
}

// A generator and a trainer at work until told to stop.
struct Work {
  explicit Work(const std::string& address) : client({.address = address}) {
    writer = client.NewWriter("rollouts", {.max_in_flight = 16, .linger = milliseconds(1), .back_off_most = milliseconds(200)});
    sampler = client.NewSampler("rollouts", {.count = 8, .prefetch = 2, .wait_timeout = milliseconds(1000)});
    writing = std::thread([this] { Write(); });
    sampling = std::thread([this] { Draw(); });
  }
  ~Work() { Stop(); }
  void Stop() {
    stop = true;
    if (writing.joinable()) writing.join();
    if (sampling.joinable()) sampling.join();
  }

  void Write() {
    for (int i = 0; !stop; ++i) {
      const auto done = writer->InsertGroup(Group(name + std::to_string(i), 4, 20 + static_cast<uint32_t>(i % 50)), 20s);
      if (!done) ++insert_failures;
      ++groups;
      std::this_thread::sleep_for(200us);
    }
  }
  void Draw() {
    for (int64_t step = 1; !stop; ++step) {
      const auto batch = sampler->Next(step, 20s);
      if (!batch) {
        const std::lock_guard lock(mutex);
        sample_errors.push_back(batch.error().ToString());
        continue;
      }
      EXPECT_EQ(8u, batch->draws.size());
      for (const replay::Draw& draw : batch->draws) {
        const TrajectoryView& view = batch->trajectory(draw);
        EXPECT_GE(view.token_ids().size(), 20u);
        EXPECT_TRUE(FrameChecksumMatches(view.frame_bytes()));
      }
      ++batches;
    }
  }
  // False: fewer than `more` further batches came within 20 s.
  bool WaitForBatches(uint64_t more) {
    return WaitUntil([this, target = batches + more] { return batches >= target; });
  }
  // A batch may come before the acknowledgement of what is in it. False: of nothing beyond `accepted` trajectories within 20 s.
  bool WaitForAcknowledgement(uint64_t accepted) {
    return WaitUntil([&] { return writer->progress().accepted > accepted; });
  }
  static bool WaitUntil(const std::function<bool()>& done) {
    const auto deadline = steady_clock::now() + 20s;
    while (!done() && steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return done();
  }

  const std::string name = "w" + std::to_string(steady_clock::now().time_since_epoch().count()) + ".";
  Client client;
  std::unique_ptr<Writer> writer;
  std::unique_ptr<Sampler> sampler;
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> groups = 0, insert_failures = 0, batches = 0;
  std::mutex mutex;
  std::vector<std::string> sample_errors;
  std::thread writing, sampling;
};

class Recovery : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(IoThreads, Recovery, testing::Values(1, 3),
                         [](const auto& name) { return std::to_string(name.param); });

TEST_P(Recovery, WriterAndSamplerSurviveAKilledDaemonAndSayWhatIsLost) {
  Daemon daemon({.buffers = R"([{"name": "rollouts", "capacity_items": 2000}])", .io_threads = GetParam()});
  Work work(GetParam() == 1 ? daemon.address() : daemon.unix_address());
  ASSERT_TRUE(work.WaitForBatches(50));
  uint64_t lost_before = 0, accepted_before = 0;
  for (int kill_count = 1; kill_count <= 5; ++kill_count) {
    ASSERT_TRUE(work.WaitForAcknowledgement(accepted_before)) << "before kill " << kill_count;
    daemon.KillNow();
    std::this_thread::sleep_for(milliseconds(20 * kill_count));
    daemon.Start();
    ASSERT_TRUE(work.WaitForBatches(30)) << "after kill " << kill_count;
    const Writer::Progress progress = work.writer->progress();
    EXPECT_GE(progress.reconnects, static_cast<uint64_t>(kill_count));
    EXPECT_GT(progress.content_lost, lost_before) << "after kill " << kill_count;
    lost_before = progress.content_lost;
    accepted_before = progress.accepted;
  }
  work.Stop();
  // What was acknowledged and is gone is reported, once.
  const auto flushed = work.writer->Flush(20s);
  ASSERT_FALSE(flushed);
  EXPECT_EQ(ErrorCode::kContentLost, flushed.error().code) << flushed.error().ToString();
  EXPECT_TRUE(work.writer->Flush(20s));
  EXPECT_EQ(0u, work.insert_failures);
  EXPECT_GE(work.sampler->progress().reconnects, 5u);

  // Everything given to the writer was either acknowledged once or reported lost; nothing stands twice.
  const Writer::Progress progress = work.writer->progress();
  EXPECT_EQ(0u, progress.failed);
  EXPECT_EQ(0u, progress.in_flight);
  EXPECT_EQ(work.groups * 4, progress.accepted + progress.duplicate);
  RawClient client(daemon.address(), true);
  const BufferCounts counts = StatsOf(client);
  EXPECT_EQ("", counts.Violation());
  EXPECT_EQ(work.groups * 4 - progress.content_lost, counts.accepted);
  for (const std::string& error : work.sample_errors) std::printf("sampler: %s\n", error.c_str());
}

TEST_P(Recovery, ARestartOnRequestIsSurvivedToo) {
  Daemon daemon({.io_threads = GetParam()});
  Work work(daemon.unix_address());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(work.WaitForBatches(30));
    daemon.Terminate();
    daemon.Start();
  }
  ASSERT_TRUE(work.WaitForBatches(30));
  work.Stop();
  EXPECT_EQ(ErrorCode::kContentLost, work.writer->Flush(20s).error().code);
  EXPECT_TRUE(work.writer->Flush(20s));
  EXPECT_EQ(work.groups * 4, work.writer->progress().accepted + work.writer->progress().duplicate);
}

TEST(RecoveryOfCalls, ACallFindsTheDaemonThatCameBack) {
  Daemon daemon;
  Client client({.address = daemon.unix_address()});
  const auto first = client.Ping();
  ASSERT_TRUE(first) << first.error().ToString();
  daemon.KillNow();
  EXPECT_FALSE(client.Ping());
  daemon.Start();
  const auto deadline = steady_clock::now() + 20s;
  auto again = client.Ping();
  while (!again && steady_clock::now() < deadline) again = client.Ping();
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_NE(first->generation, again->generation);
}

// --- A client's process dies ---------------------------------------------------------------------------------------------------

constexpr const char* kChildAddress = "REPLAY_TEST_CHILD_ADDRESS";

// Not a test of its own: what the killed process does, see below.
TEST(RecoveryChild, DISABLED_WritesGroupsUntilItIsKilled) {
  const char* address = std::getenv(kChildAddress);
  ASSERT_NE(nullptr, address);
  Client client({.address = address});
  auto writer = client.NewWriter("rollouts", {.batch_trajectories = 16, .linger = milliseconds(0)});
  const std::string name = "child" + std::to_string(getpid()) + ".";
  for (int i = 0; i < 1'000'000; ++i) {
    if (!writer->InsertGroup(Group(name + std::to_string(i), 4, 1 + static_cast<uint32_t>(i * 37 % 3000)), 20s)) return;
  }
}

pid_t SpawnChild(const std::string& address) {
  setenv(kChildAddress, address.c_str(), 1);
  const std::string binary = "/proc/self/exe";
  char path[4096];
  const ssize_t length = readlink(binary.c_str(), path, sizeof path - 1);
  path[std::max<ssize_t>(length, 0)] = '\0';
  char filter[] = "--gtest_filter=RecoveryChild.*", disabled[] = "--gtest_also_run_disabled_tests", brief[] = "--gtest_brief=1";
  char* arguments[] = {path, filter, disabled, brief, nullptr};
  pid_t pid = -1;
  if (posix_spawn(&pid, path, nullptr, nullptr, arguments, environ) != 0) return -1;
  return pid;
}

TEST_P(Recovery, AWriterKilledInTheMiddleLeavesWholeGroupsOnly) {
  Daemon daemon(
      {.buffers = R"([{"name": "rollouts", "capacity_items": 4000, "capacity_bytes": "64MiB"}])", .io_threads = GetParam()});
  RawClient client(daemon.address(), true);
  std::mt19937 random(11);
  for (int round = 0; round < 8; ++round) {
    const uint64_t before = StatsOf(client).accepted;
    const pid_t child = SpawnChild(round % 2 ? daemon.address() : daemon.unix_address());
    ASSERT_GT(child, 0);
    // It is at work, then it is gone.
    const BufferCounts working = StatsUntil(client, [&](const auto& c) { return c.accepted > before + 100; });
    EXPECT_GT(working.accepted, before + 100);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(child, waitpid(child, &status, 0));
    const BufferCounts after = StatsUntil(client, [](const auto& c) { return c.producers == 0; });
    EXPECT_EQ(0u, after.producers);
    EXPECT_EQ("", after.Violation());
    EXPECT_EQ(0u, after.accepted % 4);
    std::map<std::string, std::set<uint32_t>> members;
    for (uint64_t last = 0, more = 1; more != 0;) {
      const RawReply page = client.Call(ScanBytes(8, "rollouts", last, 1000));
      for (const Frame& frame : page.Frames()) {
        EXPECT_TRUE(FrameChecksumMatches(frame.bytes()));
        FrameReader reader(frame.bytes());
        const auto trajectory = reader.Root<schema::Trajectory>();
        members[trajectory.getGroupId()].insert(trajectory.getIndexInGroup());
      }
      const auto items = page.get().getGet().getItems();
      more = page.get().getGet().getMore() && items.size() > 0 ? 1 : 0;
      if (items.size() > 0) last = items[items.size() - 1];
    }
    size_t broken = 0;
    for (const auto& [group, indices] : members) broken += indices.size() != 4;
    // Retention by trajectory may have evicted part of the oldest group; no other is broken.
    EXPECT_LE(broken, 1u);
    EXPECT_EQ(StatsOf(client).bytes, ServerStatsOf(client).memory_used_bytes);
  }
}

// --- A flood -------------------------------------------------------------------------------------------------------------------

uint64_t FloodRequests() {
  const char* count = std::getenv("REPLAY_FLOOD_REQUESTS");
  return count ? std::strtoull(count, nullptr, 10) : 100'000;
}

TEST_P(Recovery, AFloodOfRequestsSentAheadDelaysNobodyElse) {
  Daemon daemon({.buffers = R"([{"name": "rollouts", "capacity_items": 1000}])", .io_threads = GetParam()});
  RawClient flooding(daemon.unix_address(), true), other(daemon.unix_address(), true);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(other.Call(InsertBytes({}, {MakeTrajectory({.id = "s" + std::to_string(i)})})).ok());
  const uint64_t count = FloodRequests();
  const uint64_t rss_before = daemon.rss_bytes();
  std::atomic<bool> done = false;
  std::thread sender([&] {
    // Mostly small requests, as fast as they are taken; some that carry bytes and some whose replies do.
    Bytes burst;
    for (uint64_t i = 0; i < count; ++i) {
      Bytes request = PingBytes(i);
      if (i % 64 == 1) request = SampleBytes({.id = i, .count = 4});
      if (i % 64 == 2) request = InsertBytes({.id = i}, {MakeTrajectory({.id = "f" + std::to_string(i)})});
      burst.insert(burst.end(), request.begin(), request.end());
      if (burst.size() < 60'000 && i + 1 < count) continue;
      if (!flooding.Send(burst, 60s)) break;
      burst.clear();
    }
  });
  std::thread receiver([&] {
    try {
      for (uint64_t i = 0; i < count; ++i) {
        const RawReply reply = flooding.Receive(60s);
        if (reply.id() != i || !reply.ok()) {
          ADD_FAILURE() << "request " << i << " was answered with " << reply.ToString();
          break;
        }
      }
    } catch (const NoReply& none) {
      ADD_FAILURE() << "the flood was not answered: " << none.what();
    }
    done = true;
  });
  std::vector<double> pings_ms;
  uint64_t most_rss = rss_before;
  while (!done) {
    const auto before = steady_clock::now();
    EXPECT_TRUE(other.Call(PingBytes(1)).ok());
    pings_ms.push_back(std::chrono::duration<double, std::milli>(steady_clock::now() - before).count());
    if (pings_ms.size() % 64 == 0) most_rss = std::max(most_rss, daemon.rss_bytes());
    std::this_thread::sleep_for(500us);
  }
  sender.join();
  receiver.join();
  std::sort(pings_ms.begin(), pings_ms.end());
  ASSERT_FALSE(pings_ms.empty());
  std::printf("%llu requests, %zu pings meanwhile: median %.3f ms, worst %.3f ms, RSS +%.1f MiB\n",
              static_cast<unsigned long long>(count), pings_ms.size(), pings_ms[pings_ms.size() / 2], pings_ms.back(),
              static_cast<double>(most_rss - rss_before) / 1048576);
  EXPECT_LT(pings_ms.back(), kSanitized ? 2'000 : 250);
  if (!kSanitized) {
    EXPECT_LT(most_rss, rss_before + (64u << 20));
  }
}

// The client sends ahead and never reads: the daemon stops reading it, holds a bounded amount, and lets it go in the end.
TEST_P(Recovery, AFloodThatNeverReadsItsRepliesIsStoppedAndEnded) {
  Daemon daemon({.io_threads = GetParam(), .server = R"("send_timeout": "1s")"});
  RawClient other(daemon.unix_address(), true);
  const uint64_t rss_before = daemon.rss_bytes();
  RawClient flooding(daemon.address(), true);
  Bytes burst;
  for (uint64_t i = 0; i < 2000; ++i) {
    const Bytes stats = StatsBytes(i);
    burst.insert(burst.end(), stats.begin(), stats.end());
  }
  bool refused = false;
  for (int i = 0; i < 1000 && !refused; ++i) refused = !flooding.Send(burst, 500ms);
  EXPECT_TRUE(refused);
  EXPECT_TRUE(other.Call(PingBytes(1)).ok());
  if (!kSanitized) {
    EXPECT_LT(daemon.rss_bytes(), rss_before + (32u << 20));
  }
  const auto until = steady_clock::now() + 20s;
  while (ServerStatsOf(other).connections > 1 && steady_clock::now() < until) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(1u, ServerStatsOf(other).connections);
}

}  // namespace
}  // namespace replay::test
