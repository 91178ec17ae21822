// replay_bench: what the daemon reaches, beside what else could move the same bytes. See --help.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <string>
#include <tuple>

#include "tests/bench/connection.h"
#include "tests/bench/costs.h"
#include "tests/bench/crowd.h"
#include "tests/bench/process.h"
#include "tests/bench/throughput.h"

int main(int argc, char** argv) {
  using namespace replay::bench;
  CLI::App app(
      "Measures replayd beside a blocking server, memcpy and Redis. Servers run on core 0, clients on core 0 or 1.\n"
      "A table goes to standard error, the same as JSON to --json.");
  std::string replayd, json_path;
  app.add_option("--replayd", replayd, "The daemon to measure")->check(CLI::ExistingFile);
  app.add_option("--json", json_path, "Writes the results to this file");
  app.require_subcommand(1, 0);

  ThroughputOptions throughput;
  CLI::App* throughput_command = app.add_subcommand("throughput", "Insert and sample, all systems in turns");
  throughput_command->add_flag("--all", throughput.all, "Every payload, depth, batch, transport and number of clients");
  throughput_command->add_option("--repeats", throughput.repeats, "Slices of each system")->capture_default_str();
  throughput_command->add_option("--slice", throughput.slice_seconds, "Seconds of one slice")->capture_default_str();
  throughput_command->add_option("--pool", throughput.pool_bytes, "Bytes that samples draw from")->capture_default_str();
  throughput_command->add_option("--ring", throughput.ring_bytes, "Bytes of pre-built inserts")->capture_default_str();
  throughput_command->add_option("--only", throughput.only, "Only cases whose name contains this");

  // The others need the daemon.
  using Measurement = nlohmann::json (*)(const std::string& replayd, bool quick);
  const std::tuple<const char*, const char*, Measurement> measurements[] = {
      {"instructions", "User instructions for each 4 KB insert, counted by callgrind", MeasureInstructions},
      {"memory", "Resident memory over live bytes after the buffer was replaced three times", MeasureMemory},
      {"waiters", "1,000 clients blocked in Sample", MeasureWaiters},
      {"flood", "A ping's latency while another client sends a million requests ahead", MeasureFlood}};
  bool quick = false;
  for (const auto& [name, description, measure] : measurements)
    app.add_subcommand(name, description)->add_flag("--quick", quick, "Shorter, to see that it runs");
  CLI11_PARSE(app, argc, argv);

  try {
    CheckFastReader();
    nlohmann::json results;
    throughput.replayd = replayd;
    if (throughput_command->parsed()) results["throughput"] = RunThroughput(throughput);
    for (const auto& [name, description, measure] : measurements) {
      if (!app.get_subcommand(name)->parsed()) continue;
      if (replayd.empty()) Fail(std::string(name) + " needs --replayd");
      results[name] = measure(replayd, quick);
    }
    if (!json_path.empty()) WriteFile(json_path, results.dump(2) + "\n");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "replay_bench: " << error.what() << "\n";
    return 1;
  }
}
