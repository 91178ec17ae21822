#include "server/config.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "schema/limits.h"
#include "schema/names.h"
#include "schema/validate.h"
#include "schema/wire.h"

namespace replay::server {
namespace {

SelectorKind SelectorOf(JsonConfig& json, SelectorKind fallback) {
  if (!json.Has("selector")) return fallback;
  const auto selector = ParseSelector(json.Text("selector", ""));
  if (!selector) json.Fail("selector", "must be one of " + JoinNames(kSelectorNames, ", "));
  return *selector;
}

ViewOptions ParseView(JsonConfig& json) {
  ViewOptions view;
  view.name = json.Text("name", "");
  view.filter = json.Text("filter", "");
  view.selector = SelectorOf(json, view.selector);
  view.priority_exponent = json.Number("priority_exponent", 1, 0, 10);
  view.staleness_decay = json.Number("staleness_decay", 0, 0, 1e15);
  json.RefuseUnknown();
  return view;
}

BufferOptions ParseBuffer(JsonConfig& json, std::string* name) {
  *name = json.Text("name", "");
  if (std::string error = ValidateBufferName(*name); !error.empty()) json.Fail("name", error);
  BufferOptions options;
  if (json.Has("policy")) {
    if (!ApplyPolicy(json.Text("policy", ""), &options)) json.Fail("policy", "must be \"uniform\" or \"positive_bias\"");
  }
  options.capacity_items = static_cast<uint64_t>(
      json.Integer("capacity_items", static_cast<int64_t>(options.capacity_items), 1, int64_t{kMaxItemsPerBuffer}));
  options.capacity_bytes = json.SizeBytes("capacity_bytes", 0);
  if (json.Has("retention")) {
    const auto retention = ParseRetention(json.Text("retention", ""));
    if (!retention) json.Fail("retention", "must be \"fifo\", \"positive_bias\" or \"best\"");
    options.retention = *retention;
  }
  options.selector = SelectorOf(json, options.selector);
  if (json.Has("delta")) {
    if (std::string error = ParseDecimal(json.Decimal("delta", "0"), &options.delta); !error.empty()) json.Fail("delta", error);
  }
  constexpr int64_t kMost32 = 0xffffffff;
  options.max_draws = static_cast<uint32_t>(json.Integer("max_draws", 0, 0, kMost32));
  if (json.Has("correct_threshold")) options.correct_threshold = json.Number("correct_threshold", 0, -1e30, 1e30);
  options.priority_exponent = json.Number("priority_exponent", 1, 0, 10);
  options.staleness_decay = json.Number("staleness_decay", 0, 0, 1e15);
  options.max_age_ms = static_cast<uint64_t>(json.DurationMs("max_age", 0));
  if (json.Has("evict_staleness")) options.evict_staleness = json.Integer("evict_staleness", 0, 0);
  if (json.Has("max_staleness")) options.max_staleness = json.Integer("max_staleness", 0, 0);
  options.replay_ratio = json.Number("replay_ratio", 0, 0, 1e6);
  options.tolerance = json.Number("tolerance", 0, 0, 1e15);
  options.min_size = static_cast<uint64_t>(json.Integer("min_size", 1, 1, int64_t{kMaxItemsPerBuffer}));
  options.max_draws_per_sample = static_cast<uint32_t>(json.Integer("max_draws_per_sample", 0, 0, kMaxSampleCount));
  options.max_insert = static_cast<uint32_t>(json.Integer("max_insert", 0, 0, kMaxTrajectoriesPerInsert));
  options.pace_draws = json.Flag("pace_draws", true);
  options.pace_inserts = json.Flag("pace_inserts", true);
  for (JsonConfig& view : json.Objects("views")) options.views.push_back(ParseView(view));
  if (json.Has("seed")) options.seed = static_cast<uint64_t>(json.Integer("seed", 0, 0));
  const auto unit = ParseUnit(json.Text("unit", "trajectory"));
  if (!unit) json.Fail("unit", "must be " + JoinNames(kUnitNames, " or "));
  options.unit = *unit;
  const auto zero_spread = ParseZeroSpread(json.Text("zero_spread", "keep"));
  if (!zero_spread) json.Fail("zero_spread", "must be " + JoinNames(kZeroSpreadNames, " or "));
  options.zero_spread = *zero_spread;
  const auto level = ParseLevel(json.Text("level", "disk"));
  if (!level) json.Fail("level", "must be " + JoinNames(kLevelNames, " or "));
  options.level = *level;
  options.closed = json.Flag("closed", false);
  options.lease_ms = static_cast<uint64_t>(json.DurationMs("lease", 0));
  options.parts = static_cast<uint32_t>(json.Integer("parts", 1, 1, kMaxPartViews));
  options.prompt_history = static_cast<uint32_t>(json.Integer("prompt_history", 0, 0, kMaxPrompts));
  json.RefuseUnknown();
  if (std::string error = CheckOptions(&options); !error.empty())
    throw ConfigError(json.Path("name") + " \"" + *name + "\": " + error);
  return options;
}

// The number in a one-line file; 0 if there is none ("max" counts as none).
uint64_t NumberInFile(const char* path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : 0;
}

bool IsLoopback(const Address& address) {
  return address.is_unix() || address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
}

}  // namespace

uint64_t DefaultMemoryLimit() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const uint64_t limit = NumberInFile(path); limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes / 10 * 7;
}

ServerConfig ParseConfig(const std::string& text) {
  ServerConfig config;
  JsonConfig root = JsonConfig::Parse(text);

  JsonConfig server = root.Object("server");
  if (server.Has("listen")) config.listen = server.Texts("listen");
  config.metrics_listen = server.Text("metrics_listen", config.metrics_listen);
  config.io_threads = static_cast<int>(server.Integer("io_threads", config.io_threads, 1, 256));
  config.max_connections = static_cast<uint32_t>(server.Integer("max_connections", config.max_connections, 1, 1'000'000));
  config.insecure_ok = server.Flag("insecure_ok", false);
  config.handshake_timeout_ms = server.DurationMs("handshake_timeout", config.handshake_timeout_ms);
  config.request_timeout_ms = server.DurationMs("request_timeout", config.request_timeout_ms);
  config.send_timeout_ms = server.DurationMs("send_timeout", config.send_timeout_ms);
  config.no_producer_after_ms = server.DurationMs("no_producer_after", config.no_producer_after_ms);
  config.drain_timeout_ms = server.DurationMs("drain_timeout", config.drain_timeout_ms);
  server.RefuseUnknown();

  JsonConfig memory = root.Object("memory");
  config.memory_limit_bytes = memory.SizeBytes("limit", DefaultMemoryLimit());
  memory.RefuseUnknown();

  JsonConfig storage = root.Object("storage");
  config.storage_path = storage.Text("path", "");
  config.storage_reserve_bytes = storage.SizeBytes("reserve_bytes", 0);
  storage.RefuseUnknown();

  JsonConfig limits = root.Object("limits");
  config.in_flight_bytes = limits.SizeBytes("in_flight_bytes", std::min<uint64_t>(1ull << 30, config.memory_limit_bytes / 4));
  config.max_buffers = static_cast<uint32_t>(limits.Integer("max_buffers", config.max_buffers, 1, kMaxBuffers));
  config.max_wait_ms = limits.DurationMs("max_wait", config.max_wait_ms);
  config.verify_checksums = limits.Flag("verify_checksums", true);
  limits.RefuseUnknown();

  JsonConfig log = root.Object("log");
  config.log_level = log.Text("level", config.log_level);
  static const std::set<std::string> kLevels = {"debug", "info", "warning", "error"};
  if (!kLevels.contains(config.log_level)) log.Fail("level", "must be \"debug\", \"info\", \"warning\" or \"error\"");
  log.RefuseUnknown();

  for (JsonConfig& buffer : root.Objects("buffers")) {
    std::string name;
    BufferOptions options = ParseBuffer(buffer, &name);
    config.buffers.emplace_back(std::move(name), std::move(options));
  }
  root.RefuseUnknown();
  CheckConfig(config);
  return config;
}

void CheckConfig(const ServerConfig& config) {
  if (config.listen.empty()) throw ConfigError("server.listen is empty: the daemon must listen somewhere");
  if (config.storage_reserve_bytes > 0 && config.storage_path.empty())
    throw ConfigError("storage.reserve_bytes is " + std::to_string(config.storage_reserve_bytes) +
                      ": it needs storage.path, without which nothing is kept");
  std::vector<std::pair<const char*, std::string>> addresses;
  for (const std::string& text : config.listen) addresses.emplace_back("server.listen", text);
  if (!config.metrics_listen.empty()) addresses.emplace_back("server.metrics_listen", config.metrics_listen);
  for (const auto& [key, text] : addresses) {
    Address address;
    if (std::string error = ParseAddress(text, &address); !error.empty()) throw ConfigError(std::string(key) + ": " + error);
    if (!IsLoopback(address) && !config.insecure_ok)
      throw ConfigError(std::string(key) + " has \"" + text +
                        "\": beyond loopback anybody could read and write; set server.insecure_ok to true to accept that");
  }
  if (config.memory_limit_bytes < (16ull << 20))
    throw ConfigError("memory.limit is " + std::to_string(config.memory_limit_bytes) + ": must be at least 16MiB");
  if (config.in_flight_bytes < (1ull << 20) || config.in_flight_bytes > config.memory_limit_bytes / 2)
    throw ConfigError("limits.in_flight_bytes is " + std::to_string(config.in_flight_bytes) +
                      ": must be from 1MiB to half of memory.limit, " + std::to_string(config.memory_limit_bytes / 2));
  const auto at_least = [](const char* name, int64_t value_ms, int64_t least_ms) {
    if (value_ms < least_ms)
      throw ConfigError(std::string(name) + " is " + std::to_string(value_ms) + "ms: must be at least " +
                        std::to_string(least_ms) + "ms");
  };
  at_least("server.handshake_timeout", config.handshake_timeout_ms, 100);
  at_least("server.request_timeout", config.request_timeout_ms, 100);
  at_least("server.send_timeout", config.send_timeout_ms, 100);
  at_least("limits.max_wait", config.max_wait_ms, 1'000);
  if (config.buffers.size() > config.max_buffers)
    throw ConfigError("buffers has " + std::to_string(config.buffers.size()) +
                      " entries: at most limits.max_buffers = " + std::to_string(config.max_buffers));
  const uint64_t assignable = config.memory_limit_bytes - config.in_flight_bytes;
  std::set<std::string> names;
  uint64_t assigned = 0, without_bound = 0;
  for (const auto& [name, options] : config.buffers) {
    if (!names.insert(name).second) throw ConfigError("buffers: the name \"" + name + "\" stands twice");
    assigned += options.capacity_bytes;
    without_bound += options.capacity_bytes == 0;
  }
  if (assigned > assignable && config.storage_path.empty())
    throw ConfigError("buffers: capacity_bytes add up to " + std::to_string(assigned) +
                      ": memory.limit - limits.in_flight_bytes leaves " + std::to_string(assignable));
  // A buffer without one gets a quarter of what is left.
  if (without_bound > 0 && config.storage_path.empty() && assignable - assigned < (without_bound << 20))
    throw ConfigError("buffers: capacity_bytes add up to " + std::to_string(assigned) + " and leave " +
                      std::to_string(assignable - assigned) + " for " + std::to_string(without_bound) +
                      " buffers that give none");
}

}  // namespace replay::server
