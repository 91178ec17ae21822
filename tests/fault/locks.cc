// One folder, one daemon: a second one says who has it and ends, and a lock left behind by a dead one blocks nobody (R17, R18).

#include <filesystem>
#include <fstream>

#include "tests/fault/daemon_process.h"
#include "tests/fault/injections.h"

namespace replay::fault {
namespace {

constexpr int kLocked = 75, kFormat = 76, kConfig = 78;

// It ends with this status and one line that has `words` in it.
void ExpectRefused(DaemonProcess* daemon, int status, const std::string& words, Report* report) {
  const Ended ended = daemon->Start();
  const bool said = ended.lines.size() == 1 && ended.lines[0].find(words) != std::string::npos;
  report->Require(ended.status == status && said, "wrong_refusals",
                  "expected " + std::to_string(status) + " and \"" + words + "\": " + ended.ToString());
  report->Add("refused_starts");
}

}  // namespace

int RunLocks(const Options& options) {
  Report report("locks", options);
  report.Declare({"starts", "failed_starts", "refused_starts", "wrong_refusals"});
  const Scratch scratch;
  const nlohmann::json buffers = {{{"name", "rollouts"}, {"capacity_items", 1000}}};
  const DaemonConfig config{.data = scratch / "data", .buffers = buffers};
  std::filesystem::create_directories(scratch / "second");
  DaemonProcess daemon(options.replayd, scratch.path(), config), second(options.replayd, scratch / "second", config);
  for (int round = 0; round < options.rounds; ++round) {
    const Ended ended = daemon.Start();
    report.Add("starts");
    report.Require(ended.status == Ended::kRunning, "failed_starts", ended.ToString());
    if (ended.status != Ended::kRunning) break;
    ExpectRefused(&second, kLocked, "is in use by process " + std::to_string(daemon.pid()), &report);
    const Ended died = daemon.Kill();
    report.Require(died.status == Ended::kRunning, "crashes", "before it was killed: " + died.ToString());
  }
  // What else it must not open, and is told from.
  std::ofstream(scratch / "data" + "/FORMAT") << "replayd data 2\n";
  ExpectRefused(&second, kFormat, "written by a newer replayd", &report);
  std::ofstream(scratch / "data" + "/FORMAT") << "replayd data 1\n";
  std::filesystem::create_directories(scratch / "third");
  DaemonProcess wrong(options.replayd, scratch / "third", {.data = scratch / "data", .buffers = {{{"name", "no name"}}}});
  ExpectRefused(&wrong, kConfig, "no name", &report);
  const Ended ended = daemon.Start();
  report.Require(ended.status == Ended::kRunning, "failed_starts", "after it was refused: " + ended.ToString());
  return report.Finish();
}

}  // namespace replay::fault
