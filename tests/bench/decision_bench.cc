// What a decision costs, and what an item costs beyond its frame, at 10^3 to 10^7 items.
//
//   draw/<selector>/<items>      ns per draw of a batch of 256, all bookkeeping and frame references included
//   touch/<items>                ns per item for the least a draw has to do with the same memory: position, row, a reference to
//                                the frame. What it costs at 10^7 items more than at 10^3 are cache misses and page walks.
//   insert/<items>               ns per trajectory inserted into a full buffer, the eviction it causes included
//   bytes_per_item               index and header of the frame; the frame's own bytes are not counted
//
// Every item has a frame of its own, of 64 bytes, so that the caches see what they would see in a server.

#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "server/check.h"
#include "server/heap.h"
#include "server/item_table.h"
#include "server/random.h"
#include "storage/segmented_array.h"
#include "storage/store.h"

namespace replay::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kBatch = 256;
constexpr uint64_t kFrameBytes = 64;

TrajectoryFacts FactsOf(uint64_t number) {
  TrajectoryFacts facts;
  facts.id = HashId(std::to_string(number));
  facts.run = {1, 1};
  facts.min_version = facts.max_version = static_cast<int64_t>(number / 4096);
  facts.token_count = 1000;
  facts.correct = number % 3 == 0 ? Outcome::kCorrect : Outcome::kIncorrect;
  return facts;
}

// Built once for each size and selector: filling 10^7 items takes seconds.
struct Filled {
  std::unique_ptr<Buffer> buffer;
  uint64_t inserted = 0;
  SelectorKind selector{};

  void Insert(std::vector<Frame>* frames, std::vector<TrajectoryFacts>* facts) {
    InsertRequest request;
    request.frames = *frames;
    request.facts = *facts;
    InsertResult result;
    CHECK(buffer->Insert(request, &result).done());
    inserted += facts->size();
  }
};

Filled& FilledBuffer(uint64_t items, SelectorKind selector) {
  static Filled filled;
  if (filled.buffer && filled.buffer->options().capacity_items == items && filled.selector == selector) return filled;
  filled = Filled();
  BufferOptions options;
  options.capacity_items = items;
  options.selector = selector;
  options.seed = 1;
  filled.buffer = std::make_unique<Buffer>("bench", options, PolicyVersions::Empty());
  filled.selector = selector;
  std::vector<Frame> frames(1);
  std::vector<TrajectoryFacts> facts(1);
  while (filled.inserted < items) {
    frames[0] = Frame::Allocate(kFrameBytes);
    facts[0] = FactsOf(filled.inserted);
    filled.Insert(&frames, &facts);
  }
  return filled;
}

void ShowMemory(const Filled& filled, benchmark::State* state) {
  const BufferStats stats = filled.buffer->Stats();
  state->counters["bytes_per_item"] =
      static_cast<double>(stats.index_bytes) / static_cast<double>(stats.items) + static_cast<double>(Frame::kOverheadBytes);
}

void Draw(benchmark::State& state, SelectorKind selector) {
  Filled& filled = FilledBuffer(static_cast<uint64_t>(state.range(0)), selector);
  const SampleRequest request{.count = static_cast<uint32_t>(std::min<int64_t>(kBatch, state.range(0)))};
  SampleResult result;
  const Clock::time_point start = Clock::now();
  for (auto _ : state) CHECK(filled.buffer->Sample(request, &result).done());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  state.counters["ns_per_draw"] = seconds * 1e9 / (static_cast<double>(state.iterations()) * request.count);
  ShowMemory(filled, &state);
}

void Touch(benchmark::State& state) {
  const auto items = static_cast<uint32_t>(state.range(0));
  FilledBuffer(1, SelectorKind::kFifo);  // in place of a large one
  SegmentedArray<uint32_t, 4096> slots;
  SegmentedArray<Item, 1024> rows;
  std::vector<Frame> frames;  // one for each row, and its place there
  slots.Reserve(items);
  rows.Reserve(items);
  frames.reserve(items);
  for (uint32_t i = 0; i < items; ++i) {
    slots[i] = i;
    frames.push_back(Frame::Allocate(kFrameBytes));
  }
  Store store;
  for (uint32_t i = 0; i < items; ++i) store.Put(&rows[i].place, std::move(frames[i]));

  Random random(1);
  std::array<uint32_t, kBatch> picks{};
  std::vector<Frame> taken;
  taken.reserve(kBatch);
  const Clock::time_point start = Clock::now();
  for (auto _ : state) {
    taken.clear();
    for (uint32_t& pick : picks) {
      pick = random.Below(items);
      __builtin_prefetch(&slots[pick]);
    }
    for (uint32_t& pick : picks) {
      pick = slots[pick];
      __builtin_prefetch(&rows[pick], 1);
    }
    for (const uint32_t slot : picks) {
      ++rows[slot].draws;
      store.Find(rows[slot].place).Prefetch();
    }
    for (const uint32_t slot : picks) taken.push_back(store.Find(rows[slot].place));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  state.counters["ns_per_draw"] = seconds * 1e9 / (static_cast<double>(state.iterations()) * kBatch);
}

void Insert(benchmark::State& state) {
  Filled& filled = FilledBuffer(static_cast<uint64_t>(state.range(0)), SelectorKind::kUniform);
  constexpr size_t kRequests = 256;
  std::vector<std::vector<Frame>> frames(kRequests);
  std::vector<std::vector<TrajectoryFacts>> facts(kRequests);
  double seconds = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < kRequests; ++i) {
      frames[i].assign(1, Frame::Allocate(kFrameBytes));
      facts[i].assign(1, FactsOf(filled.inserted + i));
    }
    const Clock::time_point start = Clock::now();
    for (size_t i = 0; i < kRequests; ++i) filled.Insert(&frames[i], &facts[i]);
    const double taken = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(taken);
    seconds += taken;
  }
  state.counters["ns_per_insert"] = seconds * 1e9 / (static_cast<double>(state.iterations()) * kRequests);
  ShowMemory(filled, &state);
}

void RegisterAll() {
  for (const int64_t items : {1'000, 10'000, 100'000, 1'000'000, 10'000'000}) {
    benchmark::RegisterBenchmark("draw/uniform", [](benchmark::State& state) {
      Draw(state, SelectorKind::kUniform);
    })->Arg(items);
    benchmark::RegisterBenchmark("touch", Touch)->Arg(items);
    benchmark::RegisterBenchmark("insert", Insert)->Arg(items)->UseManualTime();
    benchmark::RegisterBenchmark("draw/uniform_distinct", [](benchmark::State& state) {
      Draw(state, SelectorKind::kUniformDistinct);
    })->Arg(items);
  }
}

}  // namespace
}  // namespace replay::server

int main(int argc, char** argv) {
  replay::server::ConfigureHeap();  // as the daemon
  replay::server::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
