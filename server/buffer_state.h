#pragma once
// What a Buffer is made of; included by buffer.cc, buffer_sample.cc and buffer_stats.cc only.

#include <memory>
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
  WaitReason WhatSampleWaitsFor(const SampleRequest& request, uint64_t drawable) const;
  // Items that count towards min_size: what may be drawn, and none while a Sample waits for staleness.
  uint64_t Available() const { return starving ? 0 : cohorts.drawable(); }
  const Frame& FrameOf(uint32_t slot) const { return store.Find(items[slot].place); }
  uint64_t BytesOf(uint64_t frame_bytes, uint64_t frames) const { return frame_bytes + frames * Frame::kOverheadBytes; }
  // Draws whose cache misses overlap.
  static constexpr size_t kPrefetchAhead = 32;

  // Changes.
  void AddItem(const TrajectoryFacts& facts, Frame frame, bool counted);
  void RemoveItem(uint32_t slot, RemoveReason reason);
  void Retain();  // Carries out Retention's steps.
  void RemoveDrawnOut(const std::vector<uint32_t>& slots);
  void FillSelector();
  void DropOlderEpochsFromSelector();
  // Gives each distinct item of `picks` its place in the batch; the bytes of their frames.
  uint64_t PlaceFrames();
  void RecordDraws(const SampleRequest& request, uint64_t drawable, SampleResult* result);
  static void CountOutcome(OutcomeCounts* counts, Outcome outcome, int64_t by = 1);

  std::string name;
  BufferOptions options;

  ItemTable items;
  Store store;  // by the places of `items`
  Cohorts cohorts;
  Retention retention;
  std::unique_ptr<Selector> selector;
  Pacing pacing;
  Receipts receipts;
  Random random;
  bool starving = false;  // The last Sample waited for staleness.

  // Of the batch at hand, kept for their memory.
  std::vector<uint32_t> picks;        // [count] slots
  std::vector<uint32_t> batch_slots;  // [distinct] slots, by frame index

  // Counters, as BufferStats shows them.
  uint64_t tokens = 0;
  OutcomeCounts stored, inserted, sampled, removed_outcomes;
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0;
  std::array<uint64_t, static_cast<size_t>(RemoveReason::kCount)> removed{};
  uint64_t drawn = 0, samples = 0, tokens_inserted = 0, tokens_drawn = 0, withheld = 0, withheld_total = 0;
  Histogram staleness{kStepBounds}, reuse_gap{kStepBounds}, item_draws{kDrawBounds};
  int64_t consumer_step = 0;
  CostReport cost;
};

}  // namespace replay::server
