#pragma once
// The daemon's configuration. Precedence: flags > file > default. Unknown and duplicate keys are fatal, with path and nearest name.
//
//   {
//     "server":  { "listen": ["127.0.0.1:7070", "unix:/run/replayd/replayd.sock"],
//                  "metrics_listen": "127.0.0.1:7071",       "" switches it off
//                  "io_threads": 1, "max_connections": 10000, "insecure_ok": false,
//                  "handshake_timeout": "5s", "request_timeout": "60s", "send_timeout": "30s",
//                  "no_producer_after": "30s", "drain_timeout": "5s" },
//     "memory":  { "limit": "4GiB" },                        default: 70 % of the cgroup's limit or of the machine's memory
//     "storage": { "path": "/var/lib/replayd",               default: none, nothing outlives the daemon
//                  "reserve_bytes": "1GiB" },                below so much free nothing is written; 0: 5 %, at most 1GiB
//     "limits":  { "in_flight_bytes": "1GiB", "max_buffers": 64, "max_wait": "1h", "verify_checksums": true },
//     "log":     { "level": "info" },
//     "buffers": [ { "name": "rollouts", "policy": "positive_bias", "delta": 0.25, "capacity_items": 2268,
//                    "capacity_bytes": "1GiB", "max_draws": 0, "replay_ratio": 2.0, "tolerance": 256, "min_size": 64,
//                    "max_draws_per_sample": 64, "max_insert": 8 } ]
//   }
//
// The keys of a buffer are those of BufferOptions (buffer_options.h says what each is), and "policy", a preset of retention and
// selector that they override.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schema/json_config.h"
#include "server/buffer_options.h"

namespace replay::server {

struct ServerConfig {
  std::vector<std::string> listen = {"127.0.0.1:7070"};
  std::string metrics_listen = "127.0.0.1:7071";
  int io_threads = 1;
  uint32_t max_connections = 10'000;
  bool insecure_ok = false;  // listen beyond loopback without TLS and authentication
  int64_t handshake_timeout_ms = 5'000;
  int64_t request_timeout_ms = 60'000;  // from a request's first byte to its last
  int64_t send_timeout_ms = 30'000;     // a peer that reads nothing for so long is disconnected
  int64_t no_producer_after_ms = 30'000;
  int64_t drain_timeout_ms = 5'000;
  uint64_t memory_limit_bytes = 0;     // filled in by ParseConfig
  uint64_t in_flight_bytes = 0;        // part of the memory limit, for requests and replies under way
  std::string storage_path;            // empty: nothing outlives the daemon
  uint64_t storage_reserve_bytes = 0;  // 0: by the size of the file system
  uint32_t max_buffers = 64;
  int64_t max_wait_ms = 3'600'000;  // A call that would wait longer ends as timedOut, to be made again.
  bool verify_checksums = true;
  std::string log_level = "info";
  std::vector<std::pair<std::string, BufferOptions>> buffers;
};

// Throws ConfigError. `text` is the file's content; "{}" gives the defaults.
ServerConfig ParseConfig(const std::string& text);
// Rules between keys, checked again after flags have changed some; throws ConfigError.
void CheckConfig(const ServerConfig& config);
// 70 % of the smallest of cgroup v1 limit, cgroup v2 limit and physical memory.
uint64_t DefaultMemoryLimit();

}  // namespace replay::server
