// A disk without room: inserts are refused, draws go on, and inserts go on by themselves once there is room (R8).
//
// A tmpfs and a file of ballast in it. One cycle in two leaves what the daemon wants for draws and what is under way, in the other
// another program takes all there is.

#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "tests/fault/daemon_process.h"
#include "tests/fault/injections.h"
#include "tests/fault/oracle.h"

namespace replay::fault {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kReserve = 8 << 20;
constexpr uint64_t kForDraws = 16 << 20;  // server/storage_thread.cc: inserts are refused below this above the reserve
constexpr uint64_t kRoomLeft = 1 << 20;   // until inserts are refused
constexpr uint64_t kNothing = 256 << 10;  // less, and the file system refuses the ballast
constexpr int kCyclesOfAFolder = 5;
constexpr int kIo = 74;
constexpr milliseconds kMostWait{5'000};  // until inserts go on
constexpr milliseconds kDrawPatience{2'000};
constexpr size_t kPayloadBytes = 16 << 10;

struct Disk {
  std::string path, data, ballast;
  uint64_t Free() const {
    struct statvfs status {};
    if (statvfs(path.c_str(), &status) != 0) FailErrno("statvfs " + path);
    return uint64_t{status.f_bavail} * status.f_frsize;
  }
  void LeaveFree(uint64_t bytes) const {
    const uint64_t free = Free(), has = fs::exists(ballast) ? fs::file_size(ballast) : 0;
    if (free <= bytes) return;
    const int fd = open(ballast.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int error = posix_fallocate(fd, 0, static_cast<off_t>(has + free - bytes));
    close(fd);
    if (error != 0) Fail("cannot fill " + path);
  }
  void MakeRoom() const { fs::remove(ballast); }
};

// Whoever inserts and draws, and what came of it.
class Traffic {
 public:
  Traffic(std::string address, Report* report) : address_(std::move(address)), report_(*report) {
    samplers_[0] = std::thread([this] { Draw(); });
    samplers_[1] = std::thread([this] { DrawPlanned(); });
  }
  ~Traffic() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& sampler : samplers_)
      if (sampler.joinable()) sampler.join();
  }
  int64_t draws() const { return draws_; }
  int64_t planned_draws() const { return planned_draws_; }
  // One Insert: whether it was accepted. Anything but storage_full is a violation.
  bool Insert(Client* client, const std::string& id, std::set<std::string>* acknowledged) {
    Trajectory rollout;
    rollout.trajectory_id = id;
    rollout.token_ids = {1, 15, 9, 204};
    rollout.loss_mask = {0, 0, 1, 1};
    rollout.opaque.assign(kPayloadBytes, static_cast<uint8_t>(id.back()));
    const auto receipt = client->Insert("rollouts", {&rollout, 1}, kMostWait);
    if (receipt) {
      acknowledged->insert(id);
      report_.Add("acknowledged");
      return true;
    }
    report_.Add("refused");
    report_.Require(receipt.error().code == ErrorCode::kStorageFull, "wrong_refusals", receipt.error().ToString());
    return false;
  }

 private:
  void Draw() {
    Client client({.address = address_, .call_timeout = kDrawPatience});
    while (!stop_) {
      const auto batch = client.Sample("rollouts", {.count = 4}, milliseconds(100));
      if (batch)
        ++draws_;
      else if (batch.error().code != ErrorCode::kTimedOut || has_drawn())
        report_.Violation("draw_errors", batch.error().ToString());
      SleepMs(1);
    }
  }
  // Batches that can be asked for again: each is answered once its plan survives.
  void DrawPlanned() {
    Client client({.address = address_, .call_timeout = milliseconds(60'000)});
    for (int64_t step = 1; !stop_; SleepMs(1)) {
      const auto batch = client.Sample("rollouts", {.count = 4, .step = step, .consumer = "trainer"}, milliseconds(100));
      if (batch)
        ++planned_draws_, ++step;
      else if (batch.error().code != ErrorCode::kTimedOut || has_drawn())
        report_.Violation("draw_errors", "with a consumer: " + batch.error().ToString());
    }
  }
  bool has_drawn() const { return draws_ > 0; }

  const std::string address_;
  Report& report_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> draws_{0}, planned_draws_{0};
  std::thread samplers_[2];
};

std::vector<std::pair<std::string, std::string>> BytesOf(const std::string& data) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(data)) {
    if (!entry.is_regular_file() || entry.path().filename() == "LOCK") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    files.emplace_back(entry.path(), std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

void RunCycle(const Disk& disk, const std::string& address, const std::string& name, bool takes_all, Traffic* traffic,
              std::set<std::string>* acknowledged, Report* report) {
  Client client({.address = address});
  disk.LeaveFree(kReserve + kForDraws + kRoomLeft);
  int number = 0;
  const auto next = [&] { return name + "-" + std::to_string(++number); };
  const auto give_up = steady_clock::now() + milliseconds(20'000);
  while (traffic->Insert(&client, next(), acknowledged) && steady_clock::now() < give_up) {
  }
  report->Require(steady_clock::now() < give_up, "never_refused", std::to_string(disk.Free()) + " bytes are free");
  if (takes_all) disk.LeaveFree(kNothing);
  const int64_t draws = traffic->draws(), planned = traffic->planned_draws();
  SleepMs(200);
  for (int i = 0; i < 5; ++i)
    report->Require(!traffic->Insert(&client, next(), acknowledged), "accepted_while_full",
                    std::to_string(disk.Free()) + " bytes are free");
  report->Add(takes_all ? "draws_while_all_is_taken" : "draws_while_full", traffic->draws() - draws);
  report->Require(
      traffic->draws() - draws >= 10, takes_all ? "no_draws_while_all_is_taken" : "no_draws_while_full",
      std::to_string(traffic->draws() - draws) + " draws in 200 ms, " + std::to_string(disk.Free()) + " bytes are free");
  const int64_t more = traffic->planned_draws() - planned;
  report->Add(takes_all ? "planned_draws_while_all_is_taken" : "planned_draws_while_full", more);
  // Where all is taken a plan cannot be kept: its draw waits.
  if (!takes_all) report->Require(more > 0, "no_draws_while_full", std::to_string(more) + " planned draws");
  disk.MakeRoom();
  const auto began = steady_clock::now();
  bool accepted = false;
  while (!accepted && steady_clock::now() - began < kMostWait) {
    accepted = traffic->Insert(&client, next(), acknowledged);
    if (!accepted) SleepMs(20);
  }
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began);
  report->Require(accepted, "not_accepted_again", std::to_string(disk.Free()) + " bytes are free");
  if (took.count() > report->count("slowest_recovery_ms"))
    report->Add("slowest_recovery_ms", took.count() - report->count("slowest_recovery_ms"));
}

void CheckContents(const std::string& address, const std::set<std::string>& acknowledged, Report* report) {
  Client client({.address = address});
  const Found found = ScanAll(client, "rollouts", report);
  for (const std::string& id : acknowledged)
    report->Require(found.items.contains(id), "lost", id + " was acknowledged and is not there");
}

// On a disk that is full: it says so and ends, with everything as it was.
void StartOnFull(const Disk& disk, DaemonProcess* daemon, Report* report) {
  disk.LeaveFree(kReserve / 2);
  const auto before = BytesOf(disk.data);
  const Ended ended = daemon->Start();
  report->Require(ended.status == kIo && ended.lines.size() == 1, "wrong_starts_on_full", ended.ToString());
  report->Require(BytesOf(disk.data) == before, "touched_on_full", "files of the data folder have changed");
  report->Add("starts_on_full");
  daemon->Kill();
  disk.MakeRoom();
}

}  // namespace

int RunDiskFull(const Options& options) {
  if (const std::string why = WhyNoMount(); !why.empty()) {
    Say("disk-full: skipped, " + why);
    return kSkipped;
  }
  Report report("disk-full", options);
  report.Declare({"acknowledged", "lost", "aborts", "draw_errors", "not_accepted_again", "wrong_refusals",
                  "slowest_recovery_ms", "no_draws_while_full", "no_draws_while_all_is_taken", "failed_starts"});
  const Scratch scratch;
  const Mounted mounted("mount -t tmpfs -o size=64m tmpfs", scratch / "disk");
  const Disk disk{mounted.path(), mounted.path() + "/data", mounted.path() + "/ballast"};
  for (int cycle = 0; cycle < options.rounds;) {
    fs::remove_all(disk.data);
    DaemonProcess daemon(
        options.replayd, scratch.path(),
        {.data = disk.data, .reserve_bytes = kReserve, .buffers = {{{"name", "rollouts"}, {"capacity_items", 100'000}}}});
    const auto start = [&] {
      const Ended ended = daemon.Start();
      report.Require(ended.status == Ended::kRunning, "failed_starts", ended.ToString());
      return ended.status == Ended::kRunning;
    };
    std::set<std::string> acknowledged;
    if (!start()) break;
    {
      Traffic traffic(daemon.address(), &report);
      for (int i = 0; i < kCyclesOfAFolder && cycle < options.rounds; ++i, ++cycle) {
        RunCycle(disk, daemon.address(), "c" + std::to_string(cycle), cycle % 2 == 1, &traffic, &acknowledged, &report);
        report.Add("cycles");
      }
    }
    const Ended ended = daemon.Kill();
    report.Require(ended.status == Ended::kRunning, "aborts", "before it was killed: " + ended.ToString());
    StartOnFull(disk, &daemon, &report);
    if (!start()) break;
    CheckContents(daemon.address(), acknowledged, &report);
    daemon.Kill();
    if (cycle % 20 == 0 || cycle >= options.rounds) Say("disk-full: " + std::to_string(cycle));
  }
  return report.Finish();
}

}  // namespace replay::fault
