#pragma once
// What a Buffer is made of; included by buffer*.cc only.

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "server/cohorts.h"
#include "server/item_table.h"
#include "server/pacing.h"
#include "server/plans.h"
#include "server/random.h"
#include "server/ranking.h"
#include "server/receipts.h"
#include "server/retention.h"
#include "server/selectors.h"
#include "server/sources.h"
#include "server/view.h"

namespace replay::server {

struct Buffer::State {
  State(std::string buffer_name, const BufferOptions& buffer_options, PolicyVersions::Snapshot versions);

  // Decisions, changing nothing.
  std::string WhyInsertRefused(const InsertRequest& request, ErrorCode* code) const;
  // One part of a Sample; one that is not composed has one.
  struct Part {
    uint32_t count;  // asked for; once WhatIsShort has looked, what it is to draw
    bool or_next;
    bool distinct;
    const View* view;  // null: the whole buffer
    Selector* part_selector;
    Drawable drawable;
  };
  // What the draws of a Sample wait for.
  struct Shortage {
    WaitReason reason = WaitReason::kNone;
    uint64_t present = 0, needed = 0;  // items
    const Part* part = nullptr;        // of staleness and filter
  };
  // Of a request with a key: the one draw for all its ranks, in `keyed_request`. Others as they are.
  std::string WhyKeyRefused(const SampleRequest& request) const;
  bool IsPlannedOrRefused(const SampleRequest& request);
  const SampleRequest& ForAllRanks(const SampleRequest& request);
  Verdict SampleAnew(const SampleRequest& request, SampleResult* result);
  // Sets `whole` and `parts`. "" or why the request can never be met.
  std::string Plan(const SampleRequest& request);
  std::string WhySampleRefused(const SampleRequest& request) const;
  Shortage WhatIsShort(const SampleRequest& request);  // after Plan
  // Items that count towards min_size: what may be drawn, and none while a Sample waits for staleness.
  uint64_t Available() const { return starving ? 0 : selector->CountDrawable(cohorts, WindowOf({}), cohorts.drawable()); }
  StepWindow WindowOf(const SampleRequest& request) const;
  // Null: there is none.
  View* FindView(std::string_view view_name) const;
  const Frame& FrameOf(uint32_t slot) const { return store.Find(items[slot].place); }
  uint64_t BytesOf(uint64_t frame_bytes, uint64_t frames) const { return frame_bytes + frames * Frame::kOverheadBytes; }
  bool ranks() const { return options.retention == RetentionKind::kBest; }
  uint32_t FirstPositiveToGo() const { return ranks() ? ranking.worst() : items.oldest(); }
  // Draws whose cache misses overlap.
  static constexpr size_t kPrefetchAhead = 32;

  // Changes.
  void AddItem(const TrajectoryFacts& facts, Frame&& frame, bool counted, bool zero_spread_group);
  void RemoveItem(uint32_t slot, RemoveReason reason);
  void Rescore(uint32_t slot, const ItemUpdate& update);
  void FindZeroSpread(std::span<const TrajectoryFacts> facts);
  void FillViews();
  void DrawParts();
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
  Ranking ranking{&items};             // with retention best: the positive items
  std::unique_ptr<Selector> selector;  // of the whole buffer
  Sources sources;
  std::vector<std::unique_ptr<View>> views;
  Plans plans;
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
  Part whole{};             // the whole buffer, as if it were drawn from
  std::vector<Part> parts;  // [parts]
  SampleRequest keyed_request;
  std::vector<Picks> part_picks;      // [parts] of a composed batch
  Picks picks;                        // [count]
  std::vector<uint32_t> batch_slots;  // [distinct] slots, by frame index
  std::vector<uint8_t> zero_spread;   // [trajectories] of the Insert at hand, whether its group has one reward

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
