#pragma once
// What a Buffer is made of; included by buffer.cc, buffer_sample.cc and buffer_stats.cc only.

#include <algorithm>
#include <compare>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/pacing.h"
#include "server/random.h"
#include "server/receipts.h"
#include "server/retention.h"
#include "server/selectors.h"

namespace replay::server {

struct Buffer::State {
  State(std::string buffer_name, const BufferOptions& buffer_options, PolicyVersions::Snapshot versions);

  // Decisions, changing nothing.
  std::string WhyInsertRefused(const InsertRequest& request, ErrorCode* code) const;
  std::string WhySampleRefused(const SampleRequest& request) const;
  WaitReason WhatSampleWaitsFor(const SampleRequest& request, const Drawable& drawable) const;
  // Items that count towards min_size: what may be drawn, and none while a Sample waits for staleness.
  uint64_t Available() const { return starving ? 0 : selector->CountDrawable(cohorts, WindowOf({}), cohorts.drawable()); }
  // So many items must be drawable before the request draws.
  uint64_t NeededFor(const SampleRequest& request) const {
    return std::max<uint64_t>(pacing.min_size(), IsDistinct(options.selector) ? request.count : 1);
  }
  StepWindow WindowOf(const SampleRequest& request) const;
  Drawable DrawableOf(const SampleRequest& request);
  const Frame& FrameOf(uint32_t slot) const { return store.Find(items[slot].place); }
  uint64_t BytesOf(uint64_t frame_bytes, uint64_t frames) const { return frame_bytes + frames * Frame::kOverheadBytes; }
  bool ranks() const { return options.retention == RetentionKind::kBest; }
  struct Rank {
    float reward;
    uint64_t number;
    uint32_t slot;
    auto operator<=>(const Rank&) const = default;
  };
  static constexpr uint64_t kNodeBytes = 64;  // of a std::set of these
  Rank RankOf(uint32_t slot) const { return {items[slot].reward, items[slot].number, slot}; }
  uint32_t FirstPositiveToGo() const { return ranks() ? ranking.begin()->slot : items.oldest(); }
  // Draws whose cache misses overlap.
  static constexpr size_t kPrefetchAhead = 32;

  // Changes.
  void AddItem(const TrajectoryFacts& facts, Frame frame, bool counted);
  void RemoveItem(uint32_t slot, RemoveReason reason);
  void Rescore(uint32_t slot, const ItemUpdate& update);
  void MarkTime();
  bool EvictAged();
  bool EvictStale();
  void Retain();           // Carries out Retention's steps.
  void ReviewPositives();  // by another retention
  void RemoveDrawnOut(const std::vector<uint32_t>& slots);
  void FillSelector();
  void DropOlderEpochsFromSelector();
  // Gives each distinct item of `picks` its place in the batch; the bytes of their frames.
  uint64_t PlaceFrames();
  void RecordDraws(const SampleRequest& request, SampleResult* result);
  static void CountOutcome(OutcomeCounts* counts, Outcome outcome, int64_t by = 1);

  std::string name;
  BufferOptions options;

  ItemTable items;
  Store store;  // by the places of `items`
  Cohorts cohorts;
  Retention retention;
  std::set<Rank> ranking;  // with retention best: the positive items, worst first
  std::unique_ptr<Selector> selector;
  Pacing pacing;
  Receipts receipts;
  Random random;
  // What was inserted when, for max_age: items with a number below that of the next mark are as old as this one. A mark for each
  // thousandth of max_age in which something was inserted.
  struct Mark {
    uint64_t first_number, time_ms;
  };
  std::deque<Mark> marks;
  uint64_t now_ms = 0;
  bool starving = false;  // The last Sample waited for staleness or filter.

  // Of the batch at hand, kept for their memory.
  Picks picks;                        // [count]
  std::vector<uint32_t> batch_slots;  // [distinct] slots, by frame index

  // Counters, as BufferStats shows them.
  uint64_t tokens = 0;
  OutcomeCounts stored, inserted, sampled, removed_outcomes;
  OutcomeCounts became, ceased;  // by Update: inserted + became = stored + removed + ceased
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0;
  std::array<uint64_t, static_cast<size_t>(RemoveReason::kCount)> removed{};
  uint64_t drawn = 0, samples = 0, tokens_inserted = 0, tokens_drawn = 0, withheld = 0, withheld_total = 0;
  Histogram staleness{kStepBounds}, reuse_gap{kStepBounds}, item_draws{kDrawBounds};
  int64_t consumer_step = 0;
  CostReport cost;
};

}  // namespace replay::server
