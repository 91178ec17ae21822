#include "tests/bench/throughput.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "tests/bench/report.h"
#include "tests/bench/systems.h"

namespace replay::bench {
namespace {

constexpr uint32_t kFewestRequests = 64;    // in the ring of one client
constexpr uint64_t kFillBytes = 128 << 20;  // sent at a time to fill what samples draw from
constexpr uint32_t kPayloadsKib[] = {4, 18, 64, 256};
constexpr uint32_t kDepths[] = {1, 16, 128};
constexpr uint32_t kBatches[] = {1, 64, 256};

Transport TransportOf(const Case& what) { return what.transport == "unix" ? Transport::kUnix : Transport::kTcp; }

std::vector<Case> FigureCases() {
  std::vector<Case> cases;
  for (uint32_t depth : {1u, 16u, 128u})
    cases.push_back({.kind = "insert", .transport = "unix", .same_core = true, .payload_kib = 4, .depth = depth});
  cases.push_back({.kind = "insert", .transport = "tcp", .same_core = true, .payload_kib = 4, .depth = 1});
  for (bool same_core : {true, false})
    cases.push_back({.kind = "insert", .transport = "unix", .same_core = same_core, .payload_kib = 64, .depth = 16});
  for (const char* transport : {"unix", "tcp"})
    cases.push_back({.kind = "sample", .transport = transport, .same_core = false, .payload_kib = 64, .batch = 256});
  cases.push_back({.kind = "sample", .transport = "unix", .same_core = true, .payload_kib = 64, .batch = 256});
  return cases;
}

// Small requests on one core, where their cost shows; large ones on two, as the bandwidth a user sees.
std::vector<Case> AllCases() {
  std::vector<Case> cases = FigureCases();
  for (uint32_t payload : kPayloadsKib) {
    const bool same_core = payload < 64;
    for (const char* transport : {"unix", "tcp"}) {
      for (uint32_t clients : {1u, 8u}) {
        for (uint32_t depth : kDepths) cases.push_back({"insert", transport, same_core, payload, depth, 0, clients});
        for (uint32_t batch : kBatches) cases.push_back({"sample", transport, same_core, payload, 1, batch, clients});
      }
    }
  }
  // What samples draw from is filled once for each payload, and inserts would empty Redis in between.
  std::stable_sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) {
    return std::tie(a.kind, a.payload_kib) < std::tie(b.kind, b.payload_kib);
  });
  return cases;
}

class Runner {
 public:
  explicit Runner(const ThroughputOptions& options)
      : options_(options), blocking_(options.pool_bytes, scratch_), redis_(scratch_) {
    if (!options.replayd.empty()) daemon_.emplace(DaemonOptions{options.replayd, {}}, scratch_);
  }

  nlohmann::json Run() {
    nlohmann::json contests = nlohmann::json::array();
    std::cerr << Contest::TableHeader();
    std::vector<std::string> done;
    for (const Case& what : options_.all ? AllCases() : FigureCases()) {
      if (what.Name().find(options_.only) == std::string::npos) continue;
      if (std::find(done.begin(), done.end(), what.Name()) != done.end()) continue;
      done.push_back(what.Name());
      Contest contest(what);
      what.kind == "insert" ? Insert(what, &contest) : Sample(what, &contest);
      std::cerr << contest.TableLines();
      contests.push_back(contest.ToJson());
    }
    return contests;
  }

 private:
  // One slice: `clients` threads of `one`, with the CPU time the server spent meanwhile.
  Slice Measure(const Case& what, const Process& server, const std::function<Load(uint32_t)>& one) {
    const double before = server.CpuSeconds();
    Slice slice;
    slice.load = RunClients(what.clients, what.same_core ? kServerCore : kServerCore + 1, one);
    slice.server_cpu_seconds = server.CpuSeconds() - before;
    return slice;
  }

  // Blocks from all over a cold gigabyte into the same 16 MB, as a reply is received.
  Slice MeasureMemcpy(uint64_t block_bytes) {
    static const std::vector<uint8_t> source(options_.pool_bytes, 1);
    std::vector<uint8_t> target(16 << 20);
    Slice slice;
    slice.load = RunClients(1, kServerCore, [&](uint32_t) {
      Load load;
      std::minstd_rand random;
      uint64_t at = 0;
      const auto begin = std::chrono::steady_clock::now();
      while (load.seconds < options_.slice_seconds / 3) {
        for (uint64_t bytes = 0; bytes < target.size() / 4; bytes += block_bytes) {
          std::memcpy(target.data() + at, source.data() + random() % (source.size() / block_bytes) * block_bytes, block_bytes);
          at = at + 2 * block_bytes <= target.size() ? at + block_bytes : 0;
          load.payload_bytes += block_bytes;
          ++load.operations;
        }
        load.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
      return load;
    });
    slice.server_cpu_seconds = slice.load.seconds;
    return slice;
  }

  void Insert(const Case& what, Contest* contest) {
    const uint32_t payload_bytes = what.payload_kib << 10;
    const auto ring_count =
        std::max(kFewestRequests, static_cast<uint32_t>(options_.ring_bytes / what.clients / payload_bytes));
    // An id comes back only after it has been evicted: even if one client did all the inserts.
    const uint32_t live = ring_count / 2;
    std::vector<RequestRing> ours, plain, redis;  // a ring for each server: each sees every id in turn
    for (uint32_t i = 0; i < what.clients; ++i) {
      ours.push_back(MakeInsertRing({"insert", payload_bytes, ring_count, uint64_t{i} << 32}));
      plain.push_back(MakeInsertRing({"insert", payload_bytes, ring_count, uint64_t{i} << 32}));
      redis.push_back(MakeRedisSetRing(payload_bytes, ring_count, live));
    }
    if (daemon_) daemon_->CreateBuffer({"insert", live, 2ull << 30});
    const PipelineOptions pipeline{what.depth, payload_bytes, options_.slice_seconds};
    const Transport transport = TransportOf(what);
    const auto Pipeline = [&](Stream stream, RequestRing& ring, const ReplyCounter& counter) {
      return RunPipeline(stream, ring, counter, pipeline);
    };
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {  // the first fills the buffers and is not counted
      const auto Keep = [&](const char* system, Slice slice) {
        if (repeat >= 0) contest->Add(system, std::move(slice));
      };
      if (daemon_)
        Keep("replayd", Measure(what, daemon_->process(),
                                [&](uint32_t i) { return Pipeline(daemon_->Connect(transport), ours[i], CountReplies); }));
      Keep("blocking", Measure(what, blocking_.process(), [&](uint32_t i) {
             return Pipeline(Stream::Connect(blocking_.endpoint(), transport), plain[i], CountReplies);
           }));
      Keep("memcpy", MeasureMemcpy(payload_bytes));
      if (transport != Transport::kUnix) continue;  // Redis' congestion control cannot be chosen
      Keep("redis raw", Measure(what, redis_.process(), [&](uint32_t i) {
             return Pipeline(Stream::Connect(redis_.endpoint(), Transport::kUnix), redis[i], CountRedisOk);
           }));
      Keep("redis hiredis", Measure(what, redis_.process(), [&](uint32_t i) {
             return RunHiredisSet(redis_.endpoint().unix_path, plain[i], live, pipeline);
           }));
    }
    if (daemon_) daemon_->DropBuffer("insert");
    redis_.FlushAll();
  }

  // Fills replayd and Redis with the same values. Kept while only batch, clients and transport change.
  void Fill(uint32_t payload_kib) {
    if (filled_kib_ == payload_kib) return;
    const uint32_t payload_bytes = payload_kib << 10;
    if (daemon_ && filled_kib_ > 0) daemon_->DropBuffer("sample");
    redis_.FlushAll();
    filled_items_ = options_.pool_bytes / payload_bytes;
    filled_kib_ = payload_kib;
    if (daemon_) daemon_->CreateBuffer({"sample", filled_items_, 2 * options_.pool_bytes});
    for (uint64_t first = 0; first < filled_items_;) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(filled_items_ - first, kFillBytes / payload_bytes));
      const PipelineOptions once{16, payload_bytes, 0, count};
      if (daemon_) {
        RequestRing ring = MakeInsertRing({"sample", payload_bytes, count, first});
        Stream stream = daemon_->Connect(Transport::kUnix);
        RunPipeline(stream, ring, CountReplies, once);
      }
      RequestRing ring = MakeRedisSetRing(payload_bytes, count, count, first);
      Stream stream = Stream::Connect(redis_.endpoint(), Transport::kUnix);
      RunPipeline(stream, ring, CountRedisOk, once);
      first += count;
    }
  }

  SampleOptions RedisSamples(uint32_t batch, uint32_t payload_bytes) {
    SampleOptions sample{.requests = {}, .seconds = options_.slice_seconds};
    std::mt19937_64 random(1);
    for (int i = 0; i < 64; ++i) {
      std::vector<uint64_t> keys(batch);
      for (uint64_t& key : keys) key = random() % filled_items_;
      sample.requests.push_back(RedisMget(keys));
    }
    sample.payload_bytes = uint64_t{batch} * payload_bytes;
    const uint64_t one = ("$" + std::to_string(payload_bytes) + "\r\n").size() + payload_bytes + 2;
    sample.reply_bytes_most = sample.redis_reply_bytes = ("*" + std::to_string(batch) + "\r\n").size() + batch * one;
    return sample;
  }

  void Sample(const Case& what, Contest* contest) {
    Fill(what.payload_kib);
    const uint32_t payload_bytes = what.payload_kib << 10;
    const Transport transport = TransportOf(what);
    const uint64_t reply_bytes_most = uint64_t{what.batch} * (payload_bytes + 64) + 4096;
    const SampleOptions ours{
        {SampleRequest("sample", what.batch, 10'000)}, options_.slice_seconds, reply_bytes_most, what.batch};
    const BlockRequest blocks{.count = what.batch, .block_bytes = payload_bytes};
    const auto* block_bytes = reinterpret_cast<const uint8_t*>(&blocks);
    const SampleOptions plain{{Bytes(block_bytes, block_bytes + sizeof blocks)}, options_.slice_seconds, reply_bytes_most};
    const SampleOptions redis = RedisSamples(what.batch, payload_bytes);
    const auto Draw = [&](Stream stream, const SampleOptions& sample) { return RunSample(stream, sample); };
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      const auto Keep = [&](const char* system, Slice slice) {
        if (repeat >= 0) contest->Add(system, std::move(slice));
      };
      if (daemon_)
        Keep("replayd", Measure(what, daemon_->process(), [&](uint32_t) { return Draw(daemon_->Connect(transport), ours); }));
      Keep("blocking", Measure(what, blocking_.process(),
                               [&](uint32_t) { return Draw(Stream::Connect(blocking_.endpoint(), transport), plain); }));
      Keep("memcpy", MeasureMemcpy(payload_bytes));
      if (transport != Transport::kUnix) continue;
      Keep("redis drained", Measure(what, redis_.process(), [&](uint32_t) {
             return Draw(Stream::Connect(redis_.endpoint(), Transport::kUnix), redis);
           }));
      Keep("redis hiredis",
           Measure(what, redis_.process(), [&](uint32_t) { return RunHiredisMget(redis_.endpoint().unix_path, redis); }));
    }
  }

  const ThroughputOptions options_;
  ScratchDirectory scratch_;
  BlockingServer blocking_;  // forked before anything has threads
  RedisServer redis_;
  std::optional<Daemon> daemon_;
  uint32_t filled_kib_ = 0;
  uint64_t filled_items_ = 0;
};

}  // namespace

nlohmann::json RunThroughput(const ThroughputOptions& options) { return Runner(options).Run(); }

}  // namespace replay::bench
