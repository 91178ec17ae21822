#pragma once
// A data folder's life under load: load, injection, restart, comparison, and again, until the folder is left for a fresh one.
//
//   Trial trial(options, &report, {.folder = scratch.path(), .data = scratch / "data"}, seed);
//   trial.RunLoad(30, [&] { trial.daemon().Kill(); });
//   trial.Restart();                                // compares, sends again what was not answered, compares

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/fault/daemon_process.h"
#include "tests/fault/load.h"

namespace replay::fault {

struct TrialOptions {
  std::string folder, data;
  int io_threads = 1;
  std::string buffer_level = "disk";
  std::vector<std::string> levels = {""};       // of the requests
  std::vector<std::string> durable = {"disk"};  // what the injection is to be survived at
  bool may_refuse = false;
};

class Trial {
 public:
  Trial(const Options& options, Report* report, const TrialOptions& trial, uint64_t seed);

  DaemonProcess& daemon() { return daemon_; }
  std::vector<Writing>& writings() { return writings_; }
  // Started anew. False, and a violation, if it does not come up.
  bool Start();
  // `inject` is called `ms` after the load has begun, and ends the daemon. `sharp`: what is answered from then on is ignored.
  void RunLoad(double ms, const std::function<void()>& inject, bool sharp = false);
  // What it was asked for and answered before against what is there. False: do not go on.
  bool Restart();
  // The same, without sending anything again.
  void Compare();

 private:
  const TrialOptions options_;
  Report& report_;
  std::mt19937_64 chance_;
  DaemonProcess daemon_;
  Oracle oracle_;
  std::vector<Writing> writings_;
  Sampling sampling_;
};

}  // namespace replay::fault
