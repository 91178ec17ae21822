#include "tests/bench/costs.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <iostream>
#include <random>

#include "tests/bench/load.h"
#include "tests/bench/systems.h"

namespace replay::bench {
namespace {

// --- Instructions ----------------------------------------------------------------------------------------------------------

// "totals: 12345" of a callgrind output.
double CallgrindTotal(const std::string& path) {
  const std::string text = ReadFile(path);
  for (const char* key : {"\ntotals: ", "\nsummary: "})
    if (const size_t at = text.rfind(key); at != std::string::npos)
      return std::strtod(text.c_str() + at + std::strlen(key), nullptr);
  Fail("callgrind wrote no totals to " + path);
}

double InstructionsOf(const std::string& replayd, uint32_t inserts, bool verify_checksums, bool receipts) {
  constexpr uint32_t kDepth = 128, kRing = 2048;
  const ScratchDirectory scratch;
  const std::string output = scratch.File("callgrind.out");
  DaemonOptions options{
      replayd, {"valgrind", "--tool=callgrind", "--quiet", "--callgrind-out-file=" + output}, verify_checksums};
  options.core = -1;
  Daemon daemon(options, scratch);
  daemon.CreateBuffer({"insert", kRing / 2, 1 << 30});
  {
    RequestRing ring = MakeInsertRing({"insert", 4096, kRing, 0, receipts});
    Stream stream = daemon.Connect(Transport::kUnix);
    RunPipeline(stream, ring, CountReplies, {kDepth, 4096, 0, inserts});
  }
  daemon.Stop();
  return CallgrindTotal(output);
}

double InstructionsPerInsert(const std::string& replayd, bool quick, bool verify_checksums, bool receipts) {
  const uint32_t few = 4096, many = quick ? 14'096 : 44'096;
  const double difference =
      InstructionsOf(replayd, many, verify_checksums, receipts) - InstructionsOf(replayd, few, verify_checksums, receipts);
  return difference / (many - few);
}

// --- Memory ----------------------------------------------------------------------------------------------------------------

// Sends inserts of frames of changing sizes, 16 under way, each with an id of its own.
class ChurningWriter {
 public:
  ChurningWriter(Stream stream, std::string buffer, uint32_t least_bytes, uint32_t most_bytes, size_t template_count)
      : stream_(std::move(stream)), buffer_(std::move(buffer)) {
    std::uniform_real_distribution<double> log_size(std::log(least_bytes), std::log(most_bytes));
    for (size_t i = 0; i < template_count; ++i)
      templates_.emplace_back(static_cast<uint32_t>(std::exp(log_size(random_))) / 8 * 8);
  }

  void Write(uint64_t total_bytes) {
    uint64_t written = 0;
    while (written < total_bytes) {
      const FrameTemplate& frame = templates_[random_() % templates_.size()];
      const uint32_t sizes[] = {frame.bytes()};
      Bytes request = InsertRequest(buffer_, 0, 0, sizes);
      const size_t control_bytes = request.size();
      request.resize(control_bytes + frame.bytes());
      frame.Write(next_id_++, request.data() + control_bytes);
      if (under_way_ == kDepth) Await(1);
      stream_.Send(request);
      ++under_way_;
      written += frame.bytes();
    }
    Await(under_way_);
  }

 private:
  static constexpr uint32_t kDepth = 16;

  void Await(uint32_t count) {
    const uint32_t target = under_way_ - count;
    while (under_way_ > target) {
      held_ += stream_.Receive(std::span(replies_).subspan(held_));
      uint32_t got = 0;
      const size_t used = CountReplies(std::span(replies_).first(held_), &got);
      std::memmove(replies_.data(), replies_.data() + used, held_ - used);
      held_ -= used;
      under_way_ -= got;
    }
  }

  Stream stream_;
  const std::string buffer_;
  std::mt19937 random_{11};
  std::vector<FrameTemplate> templates_;
  Bytes replies_ = Bytes(64 << 10);
  size_t held_ = 0;
  uint32_t under_way_ = 0;
  uint64_t next_id_ = 1;
};

struct Growth {
  int64_t rss_bytes;
  Daemon::BufferCounts counts;
};

Growth Churn(const std::string& replayd, const BufferSpec& spec, uint32_t least_bytes, uint32_t most_bytes,
             uint64_t total_bytes) {
  const ScratchDirectory scratch;
  Daemon daemon({replayd, {}}, scratch);
  const int64_t empty = daemon.process().RssBytes();
  daemon.CreateBuffer(spec);
  ChurningWriter(daemon.Connect(Transport::kUnix), spec.name, least_bytes, most_bytes, 256).Write(total_bytes);
  const Growth growth{daemon.process().RssBytes() - empty, daemon.Stats(spec.name)};
  daemon.Stop();
  return growth;
}

}  // namespace

nlohmann::json MeasureInstructions(const std::string& replayd, bool quick) {
  nlohmann::json results;
  results["per_insert"] = InstructionsPerInsert(replayd, quick, true, true);
  results["per_insert_without_checksum"] = InstructionsPerInsert(replayd, quick, false, true);
  if (!quick) results["per_insert_without_receipts"] = InstructionsPerInsert(replayd, quick, true, false);
  std::cerr << "instructions: " << results.dump() << "\n";
  return results;
}

nlohmann::json MeasureMemory(const std::string& replayd, bool quick) {
  const uint64_t capacity = quick ? 512ull << 20 : 2ull << 30;
  // Filled once, then replaced three times.
  const Growth churn = Churn(replayd, {"churn", 1'000'000, capacity}, 4 << 10, 512 << 10, 4 * capacity);
  const double ratio = static_cast<double>(churn.rss_bytes) / static_cast<double>(churn.counts.bytes);

  // Small frames, so that what is not frame shows. A block of the allocator and its count cost 32 bytes more; they are index.
  const uint64_t items = quick ? 200'000 : 1'000'000;
  const Growth small = Churn(replayd, {"small", items, 4ull << 30}, 512, 520, items * 512);
  const double beyond = static_cast<double>(small.rss_bytes - static_cast<int64_t>(small.counts.bytes));

  const auto live = static_cast<double>(small.counts.items);
  nlohmann::json results = {{"rss_over_live", ratio},
                            {"live_bytes", churn.counts.bytes},
                            {"live_items", churn.counts.items},
                            {"small_items", small.counts.items},
                            {"rss_beyond_frames_per_item", beyond / live},
                            {"index_bytes_per_item", static_cast<double>(small.counts.index_bytes) / live}};
  std::cerr << "memory: " << results.dump() << "\n";
  return results;
}

}  // namespace replay::bench
