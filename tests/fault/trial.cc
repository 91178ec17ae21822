#include "tests/fault/trial.h"

namespace replay::fault {
namespace {

constexpr uint64_t kWindow = 64;  // capacity of the buffer that evicts

nlohmann::json BuffersOf(const std::string& level) {
  return {{{"name", "rollouts"}, {"capacity_items", 200'000}, {"selector", "prioritized"}, {"level", level}, {"seed", 1}},
          {{"name", "window"}, {"capacity_items", kWindow}, {"level", level}, {"seed", 2}}};
}

}  // namespace

Trial::Trial(const Options& options, Report* report, const TrialOptions& trial, uint64_t seed)
    : options_(trial),
      report_(*report),
      chance_(seed),
      daemon_(options.replayd, trial.folder,
              {.data = trial.data, .buffers = BuffersOf(trial.buffer_level), .io_threads = trial.io_threads}),
      oracle_(report, trial.buffer_level, trial.durable) {
  for (int i = 0; i < 4; ++i) {
    const bool evicts = i == 3;
    writings_.push_back({.name = "w" + std::to_string(i),
                         .buffer = evicts ? "window" : "rollouts",
                         .writer = chance_() | 1,
                         .evicts = evicts,
                         .requests = {}});
  }
  sampling_.buffer = "rollouts";
}

bool Trial::Start() {
  const Ended ended = daemon_.Start();
  report_.Require(ended.status == Ended::kRunning, "failed_starts", ended.ToString());
  return ended.status == Ended::kRunning;
}

void Trial::RunLoad(double ms, const std::function<void()>& inject, bool sharp) {
  const uint64_t batches = sampling_.batches;
  Load load({.address = daemon_.address(),
             .seed = chance_(),
             .changes = options_.buffer_level == "disk",
             .levels = options_.levels,
             .may_refuse = options_.may_refuse},
            &writings_, &sampling_, &report_);
  SleepMs(ms);
  if (sharp) load.IgnoreAnswers();
  inject();
  load.Stop();
  report_.Add("acknowledged", load.acknowledged());
  report_.Add("batches", static_cast<int64_t>(sampling_.batches - batches));
}

void Trial::Compare() {
  Client client({.address = daemon_.address()});
  const Found rollouts = ScanAll(client, "rollouts", &report_);
  oracle_.Compare(writings_, "rollouts", rollouts);
  oracle_.CompareNewest(writings_, "window", ScanAll(client, "window", &report_), kWindow);
  report_.Add("items_compared", static_cast<int64_t>(rollouts.items.size()));
}

bool Trial::Restart() {
  const int64_t before = report_.violations();
  if (!Start()) return false;
  Compare();
  if (report_.violations() > before) return false;  // What is sent again would say the same, many times.
  Client client({.address = daemon_.address()});
  if (options_.buffer_level == "disk") CheckPlan(client, sampling_, &report_);
  Resend(daemon_.address(), &writings_, &report_);
  Compare();
  return true;
}

}  // namespace replay::fault
