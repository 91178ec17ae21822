// kill -9 under load: what was acknowledged is there, once, and the daemon comes up (R1).

#include <signal.h>

#include <filesystem>
#include <random>

#include "tests/fault/injections.h"
#include "tests/fault/trial.h"

namespace replay::fault {
namespace {

// A folder that holds more takes longer to compare than to kill.
constexpr int kRoundsOfAFolder = 20;
// One kill in so many falls into a stop that was asked for, in which the buffers' states are written.
constexpr uint64_t kStopsEach = 4;

}  // namespace

int RunKills(const Options& options) {
  Report report("kills", options);
  report.Declare({"acknowledged", "lost", "duplicates", "failed_starts", "updates_lost", "deleted_came_back", "stored_twice"});
  std::mt19937_64 chance(options.seed);
  for (int round = 0; round < options.rounds;) {
    const Scratch scratch;
    Trial trial(options, &report,
                {.folder = scratch.path(),
                 .data = scratch / "data",
                 .io_threads = 1 + static_cast<int>(chance() % 2),
                 .levels = {"", "", "disk", "process"},
                 .durable = {"disk", "process"}},
                chance());
    if (!trial.Start()) break;
    for (int i = 0; i < kRoundsOfAFolder && round < options.rounds; ++i, ++round) {
      const double after_ms = 5 + static_cast<double>(chance() % 55'000) / 1000;
      const bool stops = chance() % kStopsEach == 0;
      const double then_ms = static_cast<double>(chance() % 60'000) / 1000;
      const auto kill_it = [&] {
        const Ended ended = trial.daemon().Kill();
        const bool may_have_ended = ended.status == Ended::kRunning || (stops && ended.status == 0);
        report.Require(may_have_ended, "crashes", "before it was killed: " + ended.ToString());
        report.Add(ended.status == Ended::kRunning ? "kills" : "stops");
      };
      if (stops) {
        trial.RunLoad(after_ms, [&] { trial.daemon().Signal(SIGTERM); });
        SleepMs(then_ms);  // It has no clients any more, and saves.
        kill_it();
      } else {
        trial.RunLoad(after_ms, kill_it);
      }
      if (!trial.Restart()) return report.Finish();
    }
    if (round % 100 == 0 || round == options.rounds)
      Say("kills: " + std::to_string(round) + ", acknowledged " + std::to_string(report.count("acknowledged")));
  }
  report.Require(report.count("acknowledged") >= options.rounds, "void", "less than one insert a kill was acknowledged");
  return report.Finish();
}

}  // namespace replay::fault
