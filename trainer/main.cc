// trainer: learns from what generators put into a replayd, and publishes what it has learned.
//
// Exit codes, from sysexits: 0 done or stopped as asked, 64 usage, 70 internal, 74 files cannot be read or written,
// 76 training diverged, 78 configuration.

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "schema/json_config.h"
#include "trainer/config.h"
#include "trainer/model/checkpoint.h"
#include "trainer/model/keep_freed_memory.h"
#include "trainer/model/stop_on_signals.h"
#include "trainer/run.h"
#include "trainer/warm_start.h"

namespace {

using namespace std::chrono_literals;
using replay::ConfigError;
using replay::model::CheckpointError;
using replay::trainer::TrainerConfig;

constexpr int kUsage = 64, kInternal = 70, kFiles = 74, kDiverged = 76, kConfig = 78;

// Trains config.model on demonstrations, and says how good it is.
int WarmStart(const TrainerConfig& config, const std::atomic<bool>& stop) {
  if (std::filesystem::exists(config.model)) {
    spdlog::info("{} is there already: nothing to do", config.model);
    return 0;
  }
  const auto began = std::chrono::steady_clock::now();
  auto shown = began;
  const replay::model::Transformer trained = replay::trainer::WarmStart(config, [&](int64_t step, double loss) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown > 5s || step == config.warm_start.steps) {
      shown = now;
      spdlog::info("warm start: step {} of {}, loss {:.3f}, {:.0f} s", step, config.warm_start.steps, loss,
                   std::chrono::duration<double>(now - began).count());
    }
    return !stop;
  });
  if (stop) return kInternal;
  replay::model::SaveModel(config.model, trained);
  const auto prompts = config.task->HeldOutPrompts(config.evaluation.options.prompts);
  const auto evaluation = replay::trainer::Evaluate(trained, *config.task, prompts, config.evaluation.options);
  spdlog::info("warm start: {} parameters, held-out accuracy {:.3f}, entropy {:.2f}, saved as {}", trained.parameter_count(),
               evaluation.accuracy, evaluation.entropy, config.model);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"trainer: samples rollouts from replayd, takes gradient steps, publishes weights"};
  std::string config_path, address, buffer, run_id, weights, output;
  std::optional<uint64_t> seed;
  bool warm_start = false, resume = false, check_config = false;
  app.add_option("-c,--config", config_path, "JSON configuration file; its keys are described in trainer/config.h")->required();
  app.add_flag("--warm-start", warm_start, "Train the model on the task's demonstrations, save it, and end");
  app.add_flag("--resume", resume, "Go on from the newest checkpoint in the output folder, if there is one");
  app.add_flag("--check-config", check_config, "Check the configuration, say what is wrong, exit 0 or 78");
  app.add_option("--address", address, "Overrides the file's, as do the next five");
  app.add_option("--buffer", buffer);
  app.add_option("--run-id", run_id);
  app.add_option("--weights", weights);
  app.add_option("--output", output);
  app.add_option("--seed", seed);
  app.set_version_flag("--version", std::string("trainer ") + REPLAY_VERSION);
  app.footer("Example:\n  trainer --config trainer.json --warm-start\n  trainer --config trainer.json");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_color_st("trainer"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %n %^%l%$ %v");

  TrainerConfig config;
  try {
    config = replay::trainer::ParseTrainerConfig(replay::ReadConfigFile(config_path));
  } catch (const ConfigError& error) {
    std::cerr << "trainer: " << config_path << ": " << error.what() << "\n";
    return kConfig;
  }
  for (const auto& [flag, key] : {std::pair{&address, &config.address},
                                  {&buffer, &config.buffer},
                                  {&run_id, &config.run_id},
                                  {&weights, &config.weights},
                                  {&output, &config.output}})
    if (!flag->empty()) *key = *flag;
  if (seed) config.seed = *seed;
  if (check_config) {
    std::cout << "configuration ok\n";
    return 0;
  }

  const std::atomic<bool>& stop = replay::model::StopOnSignals();
  at::set_num_threads(config.threads);
  replay::model::KeepFreedMemory();
  try {
    if (warm_start) return WarmStart(config, stop);
    replay::trainer::Run run(config, resume, stop);
    return run.Loop() == replay::trainer::Run::End::kDiverged ? kDiverged : 0;
  } catch (const ConfigError& error) {
    spdlog::error("{}", error.what());
    return kConfig;
  } catch (const CheckpointError& error) {
    spdlog::error("{}", error.what());
    return kFiles;
  } catch (const c10::Error& error) {
    spdlog::error("{}", error.what_without_backtrace());
    return kInternal;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return kInternal;
  }
}
