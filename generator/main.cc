// generator: answers prompts with the newest published weights and inserts the scored rollouts into a replayd.
//
// Exit codes, from sysexits: 0 done or stopped as asked, 64 usage, 70 internal, 78 configuration.

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <iostream>
#include <optional>
#include <utility>

#include "generator/config.h"
#include "generator/worker.h"
#include "schema/json_config.h"
#include "trainer/model/stop_on_signals.h"

namespace {

using replay::ConfigError;

constexpr int kUsage = 64, kInternal = 70, kConfig = 78;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"generator: generates rollouts with the newest policy version and inserts them into replayd"};
  std::string config_path, address, buffer, run_id;
  std::optional<uint64_t> seed;
  bool check_config = false;
  app.add_option("-c,--config", config_path, "JSON configuration file; its keys are described in generator/config.h")
      ->required();
  app.add_flag("--check-config", check_config, "Check the configuration, say what is wrong, exit 0 or 78");
  app.add_option("--address", address, "Overrides the file's, as do the next three");
  app.add_option("--buffer", buffer);
  app.add_option("--run-id", run_id);
  app.add_option("--seed", seed, "Two generators of one run need different ones");
  app.set_version_flag("--version", std::string("generator ") + REPLAY_VERSION);
  app.footer("Example:\n  generator --config generator.json --seed 1 &\n  generator --config generator.json --seed 2 &");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_color_st("generator"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %n %^%l%$ %v");

  replay::GeneratorConfig config;
  try {
    config = replay::ParseGeneratorConfig(replay::ReadConfigFile(config_path));
  } catch (const ConfigError& error) {
    std::cerr << "generator: " << config_path << ": " << error.what() << "\n";
    return kConfig;
  }
  for (const auto& [flag, key] : {std::pair{&address, &config.address}, {&buffer, &config.buffer}, {&run_id, &config.run_id}})
    if (!flag->empty()) *key = *flag;
  if (seed) config.seed = *seed;
  if (check_config) {
    std::cout << "configuration ok\n";
    return 0;
  }

  const std::atomic<bool>& stop = replay::model::StopOnSignals();
  at::set_num_threads(config.threads);
  try {
    replay::Worker worker(config, stop);
    worker.Loop();
  } catch (const c10::Error& error) {
    spdlog::error("{}", error.what_without_backtrace());
    return kInternal;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return kInternal;
  }
  return 0;
}
