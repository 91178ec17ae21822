// Power cuts: an ext4 in a file is shut down under load, so that it forgets what was not synced, and is mounted again (R2).
//
// EXT4_IOC_SHUTDOWN without flushing the journal: from then on nothing reaches the file. It drops what was not synced; it makes no
// half-written pages, those are in damage.cc. While it is being shut down, Linux 6 answers now and then an fdatasync with success
// whose bytes are gone (a bare write and fdatasync: 2 of 2,961 in 150 cuts, none before): so what is answered after the ioctl has
// begun counts as not answered.

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/fault/injections.h"
#include "tests/fault/trial.h"

namespace replay::fault {
namespace {

constexpr int kRoundsOfAFolder = 20;
constexpr unsigned long kExt4Shutdown = _IOR('X', 125, uint32_t);
constexpr uint32_t kNoLogFlush = 2;

void CutPower(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  uint32_t flags = kNoLogFlush;
  const int result = fd < 0 ? -1 : ioctl(fd, kExt4Shutdown, &flags);
  if (fd >= 0) close(fd);
  if (result != 0) FailErrno("cannot shut down the file system at " + path);
}

// "" or why it cannot be done here.
std::string WhyNot(const Scratch& scratch) {
  if (std::string why = WhyNoMount(); !why.empty()) return why;
  const std::string image = scratch / "disk";
  if (RunCommand("truncate -s 256M " + image + " && mkfs.ext4 -q -F " + image) != 0) return "there is no mkfs.ext4";
  std::filesystem::create_directories(scratch / "disk.d");
  if (RunCommand("mount -o loop " + image + " " + (scratch / "disk.d")) != 0) return "a loop device cannot be mounted here";
  RunCommand("umount " + (scratch / "disk.d"));
  return "";
}

// `rounds` cuts with buffers at this level. False: the daemon did not come up again.
bool Cut(const Options& options, Report* report, Mounted* disk, const std::string& folder, const std::string& level, int rounds,
         std::mt19937_64* chance) {
  const bool control = level != "disk";
  const std::string data = disk->path() + "/data";
  for (int round = 0; round < rounds;) {
    std::filesystem::remove_all(data);
    const std::vector<std::string> levels =
        control ? std::vector<std::string>{""} : std::vector<std::string>{"", "", "disk", "process"};
    Trial trial(options, report,
                {.folder = folder,
                 .data = data,
                 .io_threads = 1 + static_cast<int>((*chance)() % 2),
                 .buffer_level = level,
                 .levels = levels,
                 .durable = {"disk"},
                 .may_refuse = true},
                (*chance)());
    if (!trial.Start()) return false;
    for (int i = 0; i < (control ? 1 : kRoundsOfAFolder) && round < rounds; ++i, ++round) {
      const auto cut = [&] {
        CutPower(disk->path());
        SleepMs(static_cast<double>((*chance)() % 10));
        const Ended ended = trial.daemon().Kill();
        if (ended.status == Ended::kRunning) return;
        if (report->count("ended_by_itself") == 0) Say("power-cuts: at a disk that refuses everything: " + ended.ToString());
        report->Add("ended_by_itself");
      };
      trial.RunLoad(15 + static_cast<double>((*chance)() % 60'000) / 1000, cut, /*sharp=*/true);
      disk->Unmount();
      disk->Mount();
      report->Add(control ? "control_cuts" : "cuts");
      if (!trial.Restart()) return false;
    }
    trial.daemon().Kill();
  }
  return true;
}

}  // namespace

int RunPowerCuts(const Options& options) {
  const Scratch scratch;
  if (const std::string why = WhyNot(scratch); !why.empty()) {
    Say("power-cuts: skipped, " + why);
    return kSkipped;
  }
  Report report("power-cuts", options);
  report.Declare({"acknowledged", "lost", "duplicates", "failed_starts", "updates_lost", "deleted_came_back",
                  "lost_at_lower_level", "ended_by_itself"});
  std::mt19937_64 chance(options.seed);
  Mounted disk("mount -o loop " + (scratch / "disk"), scratch / "disk.d");
  if (!Cut(options, &report, &disk, scratch.path(), "disk", options.rounds, &chance)) return report.Finish();
  report.Require(report.count("acknowledged") >= options.rounds, "void", "less than one insert a cut was acknowledged");

  // The control: at a level that does not wait for the disk something is lost, or nothing was cut.
  Report control("power-cuts, control", options);
  Cut(options, &control, &disk, scratch.path(), "memory", std::max(5, options.rounds / 10), &chance);
  const int64_t lost = control.count("lost_at_lower_level");
  report.Set("control_cuts", control.count("control_cuts"));
  report.Set("control_acknowledged", control.count("acknowledged"));
  report.Set("control_lost", lost);
  report.Require(control.violations() == 0, "control_violations", "see above");
  report.Require(lost > 0, "void", "nothing was lost at level memory: the cuts cut nothing");
  return report.Finish();
}

}  // namespace replay::fault
