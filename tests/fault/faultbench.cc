// faultbench: starts the real daemon, writes down every request and reply, breaks something, starts it again, reads everything
// back and compares. See --help, and README.md for what each injection proves.

#include <CLI/CLI.hpp>

#include <iostream>
#include <random>

#include "tests/fault/injections.h"

int main(int argc, char** argv) {
  using namespace replay::fault;
  struct Injection {
    const char* name;
    const char* description;
    int short_rounds, full_rounds;
    int (*run)(const Options&);
  };
  const Injection injections[] = {
      {"kills", "kill -9 under load (R1)", 40, 1000, RunKills},
      {"power-cuts", "ext4 that forgets what was not synced (R2); root only", 5, 200, RunPowerCuts},
      {"cut-replies", "replies that never arrive (R4); a round is a cut, which takes several", 500, 20'000, RunCutReplies},
      {"damage", "bits flipped and logs cut (R6)", 60, 500, RunDamage},
      {"disk-full", "a disk without room (R8); root only", 5, 100, RunDiskFull},
      {"locks", "two daemons, one folder; kill -9 and start (R17, R18)", 10, 100, RunLocks}};

  CLI::App app(
      "Injects faults into replayd and compares what it holds afterwards with what it had acknowledged.\n"
      "Progress goes to standard error, one line of JSON with the counts to standard output.\n"
      "Exit status: 0 as promised, 1 a violation, 2 it could not be done, 77 not possible here.");
  Options options;
  std::string binary_dir = ".";
  bool full = false;
  app.add_option("--rounds", options.rounds, "How many injections (default: few, see --full)")->check(CLI::PositiveNumber);
  app.add_flag("--full", full, "As many as the promise is made for");
  app.add_option("--seed", options.seed, "Of everything that is random here (default: another each time; it is printed)");
  app.add_option("--binary-dir", binary_dir, "Where replayd is")->check(CLI::ExistingDirectory);
  app.require_subcommand(1);
  app.fallthrough();
  for (const Injection& injection : injections) app.add_subcommand(injection.name, injection.description);
  CLI11_PARSE(app, argc, argv);

  if (options.seed == 0) options.seed = std::random_device()();
  options.replayd = binary_dir + "/replayd";
  for (const Injection& injection : injections) {
    if (!app.get_subcommand(injection.name)->parsed()) continue;
    if (options.rounds == 0) options.rounds = full ? injection.full_rounds : injection.short_rounds;
    try {
      return injection.run(options);
    } catch (const std::exception& error) {
      std::cerr << "faultbench " << injection.name << ": " << error.what() << "\n";
      return 2;
    }
  }
  return 2;
}
