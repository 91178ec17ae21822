#include "generator/config.h"

#include "schema/json_config.h"

namespace replay {

GeneratorConfig ParseGeneratorConfig(const std::string& text) {
  JsonConfig file = JsonConfig::Parse(text);
  GeneratorConfig config;
  config.address = file.Text("address", config.address);
  config.buffer = file.Text("buffer", config.buffer);
  config.run_id = file.Text("run_id", config.run_id);
  config.seed = static_cast<uint64_t>(file.Integer("seed", 0, 0));
  config.threads = static_cast<int>(file.Integer("threads", 1, 1, 1'024));
  JsonConfig task = file.Object("task");
  config.task = MakeTask(task);
  config.group_size = static_cast<uint32_t>(file.Integer("group_size", config.group_size, 1, 4'096));
  config.rows = file.Integer("rows", std::max<int64_t>(config.rows, config.group_size), 1, 1 << 20);
  if (config.rows < config.group_size) file.Fail("rows", "must be at least group_size, " + std::to_string(config.group_size));
  config.temperature = file.Number("temperature", config.temperature, 0, 100);
  config.top_p = file.Number("top_p", config.top_p, 1e-6, 1);
  config.max_answer_tokens = file.Integer("max_answer_tokens", 0, 0, 1 << 24);
  if (config.max_answer_tokens == 0) config.max_answer_tokens = config.task->max_answer_tokens();
  const std::string equal = file.Text("equal_rewards", "keep");
  if (equal != "keep" && equal != "skip") file.Fail("equal_rewards", "must be \"keep\" or \"skip\"");
  config.skip_equal_rewards = equal == "skip";
  config.groups_in_flight = static_cast<uint32_t>(file.Integer("groups_in_flight", config.groups_in_flight, 1, 4'096));
  config.max_groups = static_cast<uint64_t>(file.Integer("max_groups", 0, 0));
  file.RefuseUnknown();
  return config;
}

}  // namespace replay
