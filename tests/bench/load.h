#pragma once
// The load generators. One rule for every system: the client receives as much as there is into one large buffer, counts the
// replies, and then refills its window for all of them with one send.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/bench/connection.h"
#include "tests/bench/requests.h"

namespace replay::bench {

// Microseconds in buckets 6 % wide.
class LatencyHistogram {
 public:
  void Add(double microseconds, uint64_t count = 1);
  void Merge(const LatencyHistogram& other);
  double Percentile(double fraction) const;  // 0 when empty
  double worst() const { return worst_; }
  uint64_t count() const { return count_; }

 private:
  static constexpr int kPerOctave = 12;
  static constexpr int kOctaves = 26;  // 0.1 us … 6.7 s
  std::array<uint64_t, kPerOctave * kOctaves> buckets_{};
  uint64_t count_ = 0;
  double worst_ = 0;
};

struct Load {
  uint64_t operations = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;
  double client_cpu_seconds = 0;  // filled by RunClients
  LatencyHistogram latency;
  void Merge(const Load& other);  // of a client that ran at the same time
};

using ReplyCounter = std::function<size_t(std::span<const uint8_t>, uint32_t*)>;

struct PipelineOptions {
  uint32_t depth = 1;
  uint32_t payload_bytes = 0;  // of one request
  double seconds = 0;          // 0: until max_operations
  uint64_t max_operations = UINT64_MAX;
};
// The window that all pipelining clients keep. `send` sends up to so many requests and returns how many; `receive` waits for
// replies and returns how many came.
Load KeepWindow(const PipelineOptions& options, const std::function<uint32_t(uint32_t)>& send,
                const std::function<uint32_t()>& receive);
// Sends the ring's requests with `depth` under way until time or count is up, then waits for the outstanding replies.
Load RunPipeline(Stream& stream, RequestRing& ring, const ReplyCounter& count_replies, const PipelineOptions& options);

// The same against Redis through hiredis: commands are formatted by the library, replies are its objects. The values are the
// last payload_bytes of the ring's requests.
Load RunHiredisSet(const std::string& unix_path, RequestRing& values, uint32_t key_count, const PipelineOptions& options);

// One request, one large reply, and again.
struct SampleOptions {
  std::vector<Bytes> requests;  // taken in turn
  double seconds = 0;
  uint64_t reply_bytes_most = 0;   // size of the receive buffer
  uint32_t expected_draws = 0;     // 0: the reply is not a SampleReply
  uint64_t redis_reply_bytes = 0;  // > 0: a Redis reply of this size, only drained
  uint64_t payload_bytes = 0;      // of a Redis reply
};
Load RunSample(Stream& stream, const SampleOptions& options);
Load RunHiredisMget(const std::string& unix_path, const SampleOptions& options);

// Runs `one` in `clients` threads pinned to `core` and merges their loads.
Load RunClients(uint32_t clients, int core, const std::function<Load(uint32_t client)>& one);

}  // namespace replay::bench
