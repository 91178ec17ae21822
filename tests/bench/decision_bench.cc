// decision_bench: what a decision of Buffer costs, and what an item costs beyond its frame, for each selector and retention at
// 10^3 to 10^7 items. See --help.
//
//   ns per draw      of a trajectory in a batch of 256, all bookkeeping and frame references included
//   ns per insert    of a trajectory in a request of its own (or its group's) into a full buffer, the eviction it causes included
//   bytes per item   what the index says of itself, and the header of the frame
//   heap per item    what the allocator says that the whole buffer takes, without the 64 bytes of each frame. Its own overhead,
//                    which is small for frames of a real size, counts in both.
//
// Each cell is a buffer that has lived with its selector and retention: filled, then replaced in part, then drawn from and
// inserted into in turns, four draws an insert. Its items are of about 100 policy versions, half of them correct, with random
// priorities where the selector weighs by them, and with rewards that rise as training goes on, so that also what the highest
// rewards are changes at a steady rate. Beside items, a view (`correct = yes`, half of them, by a selector of its own) and
// groups of 8 are drawn, with retention fifo unless asked otherwise. Every item has a frame of its own, of 64 bytes, so that the
// caches see what they would see in a server. positive_bias and best keep a quarter for older items.
//
// Two baselines say what the machine takes for memory of such a size, whatever the decision:
//
//   ns per read      of a cache line at random among 256 bytes for each item, each read waiting for the one before
//   ns per touch     for the least a draw has to do, 256 of them overlapping: position, row, a reference to the frame
//
// Times are CPU times of this thread, medians of 9 slices. Other load slows memory and processor down for seconds at a time, so
// each slice of a cell measures the baselines too, and all of it also at 1,000 items: growth with the number of items is told
// within a cell (the JSON has its "few" for this), never between cells. Takes 8 GB at 10^7 items.

#include <malloc.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "schema/names.h"
#include "server/check.h"
#include "server/heap.h"
#include "server/item_table.h"
#include "server/random.h"
#include "storage/segmented_array.h"
#include "storage/store.h"
#include "tests/bench/lived_buffer.h"

namespace replay::bench {
namespace {

constexpr size_t kSlices = 9;          // odd
constexpr uint64_t kFewItems = 1'000;  // what all others are compared with

// Calls `slice`, which fills in as many measurements, kSlices times; the median of each.
template <size_t kCount, typename Slice>
std::array<double, kCount> Medians(const Slice& slice) {
  std::array<std::array<double, kSlices>, kCount> values{};
  for (size_t i = 0; i < kSlices; ++i) {
    const std::array<double, kCount> measured = slice();
    for (size_t what = 0; what < kCount; ++what) values[what][i] = measured[what];
  }
  std::array<double, kCount> medians{};
  for (size_t what = 0; what < kCount; ++what) {
    std::nth_element(values[what].begin(), values[what].begin() + kSlices / 2, values[what].end());
    medians[what] = values[what][kSlices / 2];
  }
  return medians;
}

// ns for one of `operations`, done again and again for about so many seconds.
template <typename Round>
double Repeat(double seconds, uint64_t operations, const Round& round) {
  uint64_t rounds = 0;
  const double start = CpuSeconds();
  double taken = 0;
  do {
    round();
    ++rounds;
    taken = CpuSeconds() - start;
  } while (taken < seconds);
  return taken * 1e9 / static_cast<double>(rounds * operations);
}

// --- Baselines -----------------------------------------------------------------------------------------------------------

class Reads {
 public:
  explicit Reads(uint64_t items) : lines_(static_cast<uint32_t>(items * 4)), array_(nullptr, &std::free), random_(1) {
    constexpr uint64_t kHugePage = 2u << 20;
    const uint64_t bytes = (lines_ * sizeof(Line) + kHugePage - 1) / kHugePage * kHugePage;
    array_.reset(static_cast<Line*>(std::aligned_alloc(kHugePage, bytes)));
    CHECK(array_ != nullptr) << bytes << " bytes";
    madvise(array_.get(), bytes, MADV_HUGEPAGE);  // as the tables of the buffer
    std::fill_n(array_.get(), lines_, Line());
  }
  // ns for a read.
  double Run(double seconds) {
    constexpr uint64_t kReads = 4'096;
    return Repeat(seconds, kReads, [&] {
      uint32_t zero = 0;
      for (uint64_t i = 0; i < kReads; ++i) {
        zero = array_[random_.Below(lines_) + zero].zero;
        asm volatile("" : "+r"(zero));  // the next address depends on it, as far as the compiler knows
      }
    });
  }

 private:
  struct alignas(64) Line {
    uint32_t zero = 0;
  };
  const uint32_t lines_;
  std::unique_ptr<Line[], decltype(&std::free)> array_;
  server::Random random_;
};

class Touches {
 public:
  explicit Touches(uint64_t items) : items_(static_cast<uint32_t>(items)), random_(1) {
    slots_.Reserve(items_);
    rows_.Reserve(items_);
    taken_.reserve(LivedBuffer::kBatch);
    for (uint32_t i = 0; i < items_; ++i) {
      slots_[i] = i;
      store_.Put(&rows_[i].place, Frame::Allocate(LivedBuffer::kFrameBytes));
    }
  }
  // ns for an item.
  double Run(double seconds) {
    return Repeat(seconds, LivedBuffer::kBatchesPerRound * LivedBuffer::kBatch, [&] {
      for (size_t i = 0; i < LivedBuffer::kBatchesPerRound; ++i) TouchBatch();
    });
  }

 private:
  void TouchBatch() {
    taken_.clear();
    for (uint32_t& pick : picks_) {
      pick = random_.Below(items_);
      __builtin_prefetch(&slots_[pick]);
    }
    for (uint32_t& pick : picks_) {
      pick = slots_[pick];
      __builtin_prefetch(&rows_[pick], 1);
    }
    for (const uint32_t slot : picks_) {
      ++rows_[slot].draws;
      store_.Find(rows_[slot].place).Prefetch();
    }
    for (const uint32_t slot : picks_) taken_.push_back(store_.Find(rows_[slot].place));
  }

  const uint32_t items_;
  SegmentedArray<uint32_t, 4096> slots_;
  SegmentedArray<server::Item, 1024> rows_;
  Store store_;
  server::Random random_;
  std::array<uint32_t, LivedBuffer::kBatch> picks_{};
  std::vector<Frame> taken_;
};

struct Baselines {
  explicit Baselines(uint64_t items) : reads(items), touches(items) {}
  Reads reads;
  Touches touches;
};

// --- A cell --------------------------------------------------------------------------------------------------------------

struct Cell {
  double draw, insert, read, touch;  // ns
  double bytes_per_item, heap_per_item;
  double few_draw, few_insert, few_read, few_touch;  // ns, at kFewItems
};

Cell MeasureCell(const Kind& kind, uint64_t items, double seconds, Baselines* baselines, Baselines* few_baselines) {
  LivedBuffer few(kind, kFewItems);
  const size_t heap_before = mallinfo2().uordblks;
  LivedBuffer buffer(kind, items);
  const double part = seconds / kSlices / 10;
  const std::array medians = Medians<8>([&] {
    const LivedBuffer::Costs costs = buffer.Run(part * 5), few_costs = few.Run(part);
    const double read = baselines->reads.Run(part), few_read = few_baselines->reads.Run(part);
    const double touch = baselines->touches.Run(part), few_touch = few_baselines->touches.Run(part);
    return std::array{costs.draw, costs.insert, read, touch, few_costs.draw, few_costs.insert, few_read, few_touch};
  });
  few.DropScratch();
  buffer.DropScratch();
  const double heap = static_cast<double>(mallinfo2().uordblks - heap_before) / static_cast<double>(buffer.live());
  return {.draw = medians[0],
          .insert = medians[1],
          .read = medians[2],
          .touch = medians[3],
          .bytes_per_item = buffer.BytesPerItem(),
          .heap_per_item = heap - double{LivedBuffer::kFrameBytes},
          .few_draw = medians[4],
          .few_insert = medians[5],
          .few_read = medians[6],
          .few_touch = medians[7]};
}

// --- The table -----------------------------------------------------------------------------------------------------------

struct Options {
  std::vector<uint64_t> items;
  double seconds = 0.5;
  std::vector<std::string> selectors, retentions, drawn;
  std::string json_path;
};

std::vector<Kind> KindsOf(const Options& options) {
  std::vector<Kind> kinds;
  for (const std::string& name : options.drawn) {
    const auto drawn = static_cast<Drawn>(std::find(kDrawnNames.begin(), kDrawnNames.end(), name) - kDrawnNames.begin());
    std::vector<std::string> retentions = options.retentions;
    if (retentions.empty() && drawn == Drawn::kItems) retentions.assign(kRetentionNames.begin(), kRetentionNames.end());
    if (retentions.empty()) retentions = {"fifo"};
    for (const std::string& retention : retentions)
      for (const std::string& selector : options.selectors)
        kinds.push_back(
            {.selector = *server::ParseSelector(selector), .retention = *server::ParseRetention(retention), .drawn = drawn});
  }
  return kinds;
}

void Run(const Options& options) {
  nlohmann::json result = nlohmann::json::array();
  std::printf("%-8s %-17s %-14s %9s %12s %14s %15s %14s %12s %13s\n", "drawn", "selector", "retention", "N", "ns per draw",
              "ns per insert", "bytes per item", "heap per item", "ns per read", "ns per touch");
  Baselines few_baselines(kFewItems);
  for (const uint64_t items : options.items) {
    Baselines baselines(items);
    for (const Kind& kind : KindsOf(options)) {
      const Cell cell = MeasureCell(kind, items, options.seconds, &baselines, &few_baselines);
      const std::string drawn(kDrawnNames[static_cast<size_t>(kind.drawn)]), selector(server::ToString(kind.selector)),
          retention(server::ToString(kind.retention));
      std::printf("%-8s %-17s %-14s %9lu %12.1f %14.1f %15.1f %14.1f %12.1f %13.1f\n", drawn.c_str(), selector.c_str(),
                  retention.c_str(), items, cell.draw, cell.insert, cell.bytes_per_item, cell.heap_per_item, cell.read,
                  cell.touch);
      std::fflush(stdout);
      const nlohmann::json few = {{"items", kFewItems},
                                  {"ns_per_draw", cell.few_draw},
                                  {"ns_per_insert", cell.few_insert},
                                  {"ns_per_read", cell.few_read},
                                  {"ns_per_touch", cell.few_touch}};
      result.push_back({{"drawn", drawn},
                        {"selector", selector},
                        {"retention", retention},
                        {"items", items},
                        {"ns_per_draw", cell.draw},
                        {"ns_per_insert", cell.insert},
                        {"ns_per_read", cell.read},
                        {"ns_per_touch", cell.touch},
                        {"bytes_per_item", cell.bytes_per_item},
                        {"heap_per_item", cell.heap_per_item},
                        {"few", few}});
    }
  }
  if (options.json_path.empty()) return;
  std::ofstream file(options.json_path);
  file << result.dump(2) << "\n";
  file.close();
  CHECK(file.good()) << "cannot write " << options.json_path;
}

}  // namespace
}  // namespace replay::bench

int main(int argc, char** argv) {
  using namespace replay;
  CLI::App app(
      "Measures what draws and inserts of a buffer cost, and what an item takes beyond its frame, for each selector and\n"
      "retention at 10^3 to 10^7 items. A table goes to standard output, the same and more as JSON to --json.");
  bench::Options options;
  bool quick = false;
  app.add_option("--json", options.json_path, "Writes the results to this file");
  app.add_flag("--quick", quick, "Up to 100,000 items, and at most 0.1 seconds a cell");
  app.add_option("--seconds", options.seconds, "CPU time of a cell, beside filling the buffer")->capture_default_str();
  app.add_option("--items", options.items, "Only these sizes")->check(CLI::Range(1'000, 10'000'000));
  const auto among = [](const auto& names) { return CLI::IsMember(std::vector<std::string>(names.begin(), names.end())); };
  app.add_option("--selector", options.selectors, "Only these")->check(among(kSelectorNames));
  app.add_option("--retention", options.retentions, "Only these")->check(among(kRetentionNames));
  app.add_option("--drawn", options.drawn, "Only these")->check(among(bench::kDrawnNames));
  CLI11_PARSE(app, argc, argv);
  if (options.items.empty()) options.items = {1'000, 10'000, 100'000, 1'000'000, 10'000'000};
  if (options.selectors.empty()) options.selectors.assign(kSelectorNames.begin(), kSelectorNames.end());
  if (options.drawn.empty()) options.drawn.assign(bench::kDrawnNames.begin(), bench::kDrawnNames.end());
  if (quick) {
    std::erase_if(options.items, [](uint64_t items) { return items > 100'000; });
    options.seconds = std::min(options.seconds, 0.1);
  }
  server::ConfigureHeap();  // as the daemon
  bench::Run(options);
}
