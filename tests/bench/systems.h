#pragma once
// The servers that are compared: replayd itself, a blocking stand-in that only moves the bytes, and Redis.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/connection.h"
#include "tests/bench/process.h"

namespace replay::bench {

inline constexpr int kServerCore = 0;

// replayd as a child process with a configuration of its own.
struct DaemonOptions {
  std::string binary;
  std::vector<std::string> wrapper;  // e.g. valgrind and its flags
  bool verify_checksums = true;
  std::string memory_limit = "8GiB";
  std::string in_flight = "1GiB";
  int core = kServerCore;
};

class Daemon {
 public:
  Daemon(const DaemonOptions& options, const ScratchDirectory& scratch);
  const Endpoint& endpoint() const { return endpoint_; }
  Process& process() { return process_; }
  Stream Connect(Transport transport) { return Greet(endpoint_, transport); }
  void CreateBuffer(const BufferSpec& spec);
  void DropBuffer(const std::string& name);

  struct BufferCounts {
    uint64_t items, bytes, index_bytes, waiting_samples;
  };
  BufferCounts Stats(const std::string& buffer);
  // SIGTERM; fails if it does not end by itself.
  void Stop();

 private:
  Endpoint endpoint_;
  Process process_;
  Stream control_;
};

// Blocking, one thread for each connection. It answers two requests, told apart by their first four bytes:
//   an Insert of the wire protocol: reads header and body (into the next place of a large ring), acknowledges it
//   a BlockRequest: writev of that many blocks, chosen at random from a pool larger than any cache
// What a byte can cost at least on a socket of this machine.
struct BlockRequest {
  static constexpr uint32_t kMagic = 0x4b4c4253;
  uint32_t magic = kMagic;
  uint32_t count = 0;
  uint32_t block_bytes = 0;
  uint32_t padding[13] = {};
};
static_assert(sizeof(BlockRequest) == 64);

class BlockingServer {
 public:
  BlockingServer(uint64_t pool_bytes, const ScratchDirectory& scratch);
  const Endpoint& endpoint() const { return endpoint_; }
  Process& process() { return process_; }

 private:
  Endpoint endpoint_;
  Process process_;
};

// redis-server of the distribution, Unix socket only, nothing persisted.
class RedisServer {
 public:
  explicit RedisServer(const ScratchDirectory& scratch);
  const Endpoint& endpoint() const { return endpoint_; }
  Process& process() { return process_; }
  void FlushAll();

 private:
  Endpoint endpoint_;
  Process process_;
};

}  // namespace replay::bench
