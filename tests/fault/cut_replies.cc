// Replies that never arrive: the Writer sends again and each item is stored once, also across kill -9 and when the item has been
// evicted meanwhile (R4).

#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "tests/fault/daemon_process.h"
#include "tests/fault/injections.h"
#include "tests/fault/oracle.h"
#include "tests/fault/proxy.h"

namespace replay::fault {
namespace {

constexpr uint64_t kOdds = 8;          // one reply of so many begins a cut
constexpr uint64_t kWindow = 32;       // capacity of the buffer that evicts
constexpr int64_t kCutsOfALife = 250;  // between one kill and the next
constexpr milliseconds kPatience{60'000};

struct Stream {
  std::string name, buffer;
  uint64_t inserted = 0;  // trajectories, each under its own id
  std::string error{};
  Writer::Progress progress{};
};

Trajectory Rollout(const std::string& id) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.token_ids = {1, 15, 9, 204, 2, 7};
  rollout.loss_mask = {0, 0, 1, 1, 1, 1};
  return rollout;
}

void Insert(const std::string& address, Stream* stream, const std::atomic<bool>& stop) {
  Client client({.address = address});
  const auto writer = client.NewWriter(stream->buffer, {.max_in_flight = 16,
                                                        .batch_trajectories = 2,
                                                        .linger = milliseconds(0),
                                                        .give_up_after = kPatience,
                                                        .back_off_first = milliseconds(1),
                                                        .back_off_most = milliseconds(20)});
  while (!stop && stream->error.empty()) {
    const auto done = writer->Insert(Rollout(stream->name + "-" + std::to_string(++stream->inserted)), kPatience);
    if (!done) stream->error = done.error().ToString();
  }
  if (const auto done = writer->Flush(kPatience); !done && stream->error.empty()) stream->error = done.error().ToString();
  stream->progress = writer->progress();
}

const BufferStats* Find(const ServerStats& stats, const std::string& buffer) {
  for (const BufferStats& each : stats.buffers)
    if (each.name == buffer) return &each;
  Fail("there is no buffer " + buffer);
}

void CheckBuffer(Client& client, const std::string& buffer, std::span<const Stream> streams, bool evicts, Report* report) {
  const auto stats = client.Stats();
  if (!stats) Fail("cannot read the statistics: " + stats.error().ToString());
  const BufferStats& counts = *Find(*stats, buffer);
  const Found found = ScanAll(client, buffer, report);
  uint64_t inserted = 0;
  for (const Stream& stream : streams) {
    if (stream.buffer != buffer) continue;
    inserted += stream.inserted;
    for (uint64_t i = 1; i <= stream.inserted && !evicts; ++i) {
      const std::string id = stream.name + "-" + std::to_string(i);
      report->Require(found.items.contains(id), "lost", id + " was acknowledged and is not there");
    }
  }
  const std::string what = buffer + " has offered " + std::to_string(counts.offered) + ", accepted " +
                           std::to_string(counts.accepted) + ", duplicate " + std::to_string(counts.duplicate) + ", rejected " +
                           std::to_string(counts.rejected) + ", items " + std::to_string(counts.items) + "; " +
                           std::to_string(inserted) + " were inserted";
  Say("cut-replies: " + what);
  report->Require(counts.accepted >= inserted, "lost", what);
  report->Require(counts.accepted <= inserted, "stored_twice", what);
  report->Require(counts.offered == counts.accepted + counts.duplicate + counts.rejected, "counters_disagree", what);
  report->Require(counts.rejected == 0, "counters_disagree", what);
  report->Require(counts.items == found.items.size() && counts.items == (evicts ? std::min(inserted, kWindow) : inserted),
                  "counters_disagree", what + ", " + std::to_string(found.items.size()) + " were found");
  report->Set(buffer + "_duplicate", counts.duplicate);
}

}  // namespace

int RunCutReplies(const Options& options) {
  Report report("cut-replies", options);
  report.Declare({"lost", "duplicates", "stored_twice", "counters_disagree", "writer_failures", "failed_starts"});
  const Scratch scratch;
  std::mt19937_64 chance(options.seed);
  DaemonProcess daemon(
      options.replayd, scratch.path(),
      {.data = scratch / "data",
       .buffers = {{{"name", "rollouts"}, {"capacity_items", 1'000'000}}, {{"name", "window"}, {"capacity_items", kWindow}}}});
  const auto start = [&] {
    const Ended ended = daemon.Start();
    report.Require(ended.status == Ended::kRunning, "failed_starts", ended.ToString());
    return ended.status == Ended::kRunning;
  };
  if (!start()) return report.Finish();
  Proxy proxy(scratch / "proxy.sock", scratch / "replayd.sock", kOdds, chance());
  std::vector<Stream> streams = {{"a", "rollouts"}, {"b", "rollouts"}, {"c", "rollouts"}, {"d", "window"}};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (Stream& stream : streams) threads.emplace_back([&] { Insert(proxy.address(), &stream, stop); });

  int64_t next_kill = std::min<int64_t>(kCutsOfALife, options.rounds / 2);
  bool is_up = true;
  auto last_progress = steady_clock::now();
  for (int64_t seen = 0; is_up && proxy.cuts() < options.rounds; SleepMs(5)) {
    if (proxy.cuts() > seen) last_progress = steady_clock::now();
    seen = proxy.cuts();
    if (steady_clock::now() - last_progress > kPatience) {
      report.Violation("writer_failures", "nothing to cut for " + std::to_string(kPatience.count()) + " ms");
      break;
    }
    if (seen < next_kill) continue;
    next_kill += kCutsOfALife;
    const Ended ended = daemon.Kill();
    report.Require(ended.status == Ended::kRunning, "crashes", "before it was killed: " + ended.ToString());
    report.Add("kills");
    is_up = start();
    Say("cut-replies: " + std::to_string(seen));
  }
  proxy.PassEverything();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (!is_up) return report.Finish();

  for (const Stream& stream : streams) {
    report.Add("inserted", static_cast<int64_t>(stream.inserted));
    report.Add("reconnects", static_cast<int64_t>(stream.progress.reconnects));
    report.Add("told_duplicate", static_cast<int64_t>(stream.progress.duplicate));
    const bool fine = stream.error.empty() && stream.progress.failed == 0 && stream.progress.content_lost == 0 &&
                      stream.progress.accepted + stream.progress.duplicate == stream.inserted;
    report.Require(fine, "writer_failures",
                   stream.name + ": " + (stream.error.empty() ? "its counts do not add up" : stream.error) + ", accepted " +
                       std::to_string(stream.progress.accepted) + ", duplicate " + std::to_string(stream.progress.duplicate) +
                       ", failed " + std::to_string(stream.progress.failed) + ", lost " +
                       std::to_string(stream.progress.content_lost) + " of " + std::to_string(stream.inserted));
  }
  report.Set("cut_replies", proxy.cut_replies());
  report.Set("cuts", proxy.cuts());
  for (const bool restarted : {false, true}) {
    if (restarted) daemon.Kill();
    if (restarted && !start()) break;
    Client client({.address = daemon.address()});
    CheckBuffer(client, "rollouts", streams, /*evicts=*/false, &report);
    CheckBuffer(client, "window", streams, /*evicts=*/true, &report);
  }
  report.Require(report.count("told_duplicate") > 0, "void", "no Writer was told of a duplicate: nothing was cut");
  return report.Finish();
}

}  // namespace replay::fault
