#pragma once
// What a Buffer is made of; included by buffer*.cc only.

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/breakdown.h"
#include "server/buffer.h"
#include "server/cohorts.h"
#include "server/columns.h"
#include "server/groups.h"
#include "server/item_table.h"
#include "server/late_tags.h"
#include "server/leases.h"
#include "server/pacing.h"
#include "server/plans.h"
#include "server/prompts.h"
#include "server/random.h"
#include "server/ranking.h"
#include "server/receipts.h"
#include "server/reservations.h"
#include "server/retention.h"
#include "server/selectors.h"
#include "server/sources.h"
#include "server/view.h"
#include "server/zero_spread.h"

namespace replay::server {

struct Buffer::State {
  State(std::string buffer_name, const BufferOptions& buffer_options, PolicyVersions::Snapshot versions);

  // Decisions, changing nothing.
  bool MayInsert(const InsertRequest& request, uint64_t to_store) const;  // A quick yes, mostly; else WhyInsertRefused decides.
  std::string WhyInsertRefused(const InsertRequest& request, uint64_t to_store, ErrorCode* code) const;
  // How many of a whole request, or of a reserved group, are not refused for zero spread; then IsRefused and `zero_spread` are
  // about these, but for a single trajectory that is stored in a buffer of trajectories.
  uint64_t CountStored(std::span<const TrajectoryFacts> facts);
  bool IsRefused(size_t trajectory) const { return refuses_some && zero_spread[trajectory]; }
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
    uint64_t present = 0, needed = 0;  // units
    const Part* part = nullptr;        // of staleness and filter
  };
  // Of a request with a key: the one draw for all its ranks, in `keyed_request`. Others as they are.
  std::string WhyKeyRefused(const SampleRequest& request) const;
  bool IsPlannedOrRefused(const SampleRequest& request);
  const SampleRequest& ForAllRanks(const SampleRequest& request);
  Verdict SampleAnew(const SampleRequest& request, SampleResult* result);
  // `asked`: as it came, of one rank.
  Verdict SampleAndNote(const SampleRequest& request, const SampleRequest& asked, SampleResult* result);
  void CreditDraws(uint64_t draws, uint64_t given_back);
  // Sets `whole` and `parts`. "" or why the request can never be met.
  std::string Plan(const SampleRequest& request);
  std::string WhySampleRefused(const SampleRequest& request) const;
  Shortage WhatIsShort(const SampleRequest& request);  // after Plan
  // Units that count towards min_size: what may be drawn, and none while a Sample waits for staleness.
  uint64_t Available() const {
    return starving ? 0 : selector->CountDrawable(unit_cohorts, WindowOf({}), unit_cohorts.drawable());
  }
  uint64_t min_size() const { return options.closed ? 1 : pacing.min_size(); }
  std::string ClosedMessage() const { return "buffer \"" + name + "\" is closed: nothing more is inserted"; }
  std::string WhyShort(const SampleRequest& request, const Shortage& shortage) const;
  StepWindow WindowOf(const SampleRequest& request) const;
  // Null: there is none. The empty name is that of the rank's part, where there are parts.
  View* FindView(std::string_view view_name, uint32_t rank) const;
  bool in_parts() const { return options.parts > 1; }
  std::span<const std::unique_ptr<View>> ViewsOfRank(uint64_t rank) const {
    return std::span(views).subspan(rank * (1 + options.views.size()), 1 + options.views.size());
  }
  // Those that a unit may belong to.
  std::span<const std::unique_ptr<View>> ViewsOf(uint32_t unit) const {
    if (!in_parts()) [[likely]]
      return views;
    return ViewsOfRank(units[unit].number % options.parts);
  }
  const Frame& FrameOf(uint32_t slot) const { return store.Find(items[slot].place); }
  bool by_group() const { return options.unit == Unit::kGroup; }
  bool IsInSelector(uint32_t unit) const { return !units[unit].held && unit_cohorts.OfCurrentEpoch(units[unit].cohort); }
  uint32_t UnitOf(uint32_t slot) const { return by_group() ? groups.GroupOf(slot) : slot; }
  // The first frame of a unit.
  const Frame& FrameOfUnit(uint32_t unit) const { return FrameOf(by_group() ? groups.first(unit) : unit); }
  std::string WhyGroupsRefused(std::span<const TrajectoryFacts> facts) const;  // after ListGroups
  std::string WhyReserveRefused(const ReserveRequest& request) const;
  uint64_t BytesOf(uint64_t frame_bytes, uint64_t frames) const { return frame_bytes + frames * Frame::kOverheadBytes; }
  StoredItem Stored(uint32_t slot, std::span<const std::string> column_names) const;
  bool ranks() const { return options.retention == RetentionKind::kBest; }
  uint32_t FirstPositiveToGo() const { return ranks() ? ranking.worst() : units.oldest(); }
  // Of live and pending trajectories; what the byte bound is for.
  uint64_t BytesHeld() const {
    return BytesOf(store.frame_bytes() + reservations.frame_bytes(), items.live() + reservations.pending()) +
           columns.held_bytes() + late_tags.held_bytes();
  }
  // Draws whose cache misses overlap.
  static constexpr size_t kPrefetchAhead = 32;

  // For the journal.
  uint64_t Digest() const {
    return random.Fingerprint() ^ items.next_number() * 0x9e3779b97f4a7c15 ^ items.live() * 0xc2b2ae3d27d4eb4f ^
           drawn * 0xff51afd7ed558ccd;
  }
  // A record of what has been decided.
  template <typename... T>
  void Note(Operation operation, const T&... asked) {
    if (journal == nullptr) return;
    journal->Begin(operation, now_ms).Save(asked...);
    journal->End(Digest());
  }
  // The first part of the record of an Insert that is about to be carried out; EndNote is the rest.
  void BeginNote(const InsertRequest& request);
  void EndNote() {
    if (journal) journal->End(Digest());
  }
  // The Insert has looked for its receipt; `count` trajectories are decided by that.
  void NoteLook(const InsertRequest& request, uint64_t count, bool is_duplicate) {
    Note(Operation::kLook, request.writer, request.sequence, request.acknowledged_through, count, is_duplicate);
  }
  // Looks for the receipt itself, of one that went no further; counts and notes it.
  void CountLook(const InsertRequest& request, uint64_t count, bool is_duplicate);
  void NoteVersions(uint64_t published_before);
  std::string ReplayLook(Archive& archive);
  void Number(const Frame& frame);
  void Persist(Archive& archive);  // all but name, options and registry

  // Changes.
  // After CountStored and, where groups are the unit, ListGroups: all that are not refused, of a request or a reserved group.
  void AddAll(std::span<const TrajectoryFacts> facts, std::span<Frame> frames, std::span<ColumnOf> of_all, bool counted);
  uint32_t AddItem(const TrajectoryFacts& facts, Frame&& frame, std::span<ColumnOf> own, bool counted, bool zero_spread_group);
  // The trajectories of each group that is not refused, by their index in it; one without a group by itself.
  void ListGroups(std::span<const TrajectoryFacts> facts);
  // After ListGroups.
  void AddGroups(std::span<const TrajectoryFacts> facts, std::span<Frame> frames, std::span<ColumnOf> of_all, bool counted);
  void AddGroup(std::span<const uint32_t> members, const TrajectoryFacts& facts, bool zero_spread_group);
  void ReviewGroup(uint32_t group);  // after a member changed: its row
  // Into and out of the selector and the views.
  void Enter(uint32_t unit);
  void Exit(uint32_t unit);
  void RemoveUnit(uint32_t unit, RemoveReason reason);
  void RemoveItem(uint32_t slot, RemoveReason reason);                       // with or after its unit
  uint64_t Hold(const std::vector<uint32_t>& drawn_units, uint64_t holder);  // the number of the lease
  uint32_t EndLease(const std::vector<Leases::Unit>& ended, bool used);      // how many trajectories
  void TakeDrawBack(uint32_t unit);
  std::string WhyPartialRefused(const InsertRequest& request, ErrorCode* code);  // sets `completed`
  Verdict InsertMembers(const InsertRequest& request, InsertResult* result);     // after it
  void DropReserved(Reservations::Group* group);
  uint64_t CommitReserved(Reservations::Group* group);  // the number of the first member; 0: none, or refused
  // Whether all rewards are the same, of the members that are there and of those that arrive.
  bool WillBeRefused(const Reservations::Group& group, std::span<const TrajectoryFacts> arriving) const;
  bool EndReservations();
  void Rescore(uint32_t slot, const ItemUpdate& update);
  // What stands beside the frame: advantage, tags, columns.
  void WriteLate(uint32_t slot, const ItemUpdate& update);
  // Has the views look again at the items whose prompts have changed.
  void ReviewPrompts();
  void SetPrompts();  // as the options say
  void FillViews();
  void DrawParts();
  void MarkTime();
  bool EvictAged();
  bool EvictStale();
  void Retain();           // Carries out Retention's steps.
  void ReviewPositives();  // by another retention
  void RemoveDrawnOut(const std::vector<uint32_t>& drawn_units);
  void FillSelector();
  void DropOlderEpochsFromSelector();
  // Gives each distinct item of `picks` its place in the batch; the bytes of their frames.
  uint64_t PlaceFrames(const Picks& drawn_picks);
  // The columns that the request asks for of the items in `batch_slots`; their bytes.
  uint64_t PlaceColumns(const SampleRequest& request, SampleResult* result) const;
  // Where groups are drawn: their members instead of them, in member_picks; sets part_sizes and batch_units.
  const Picks& ExpandGroups(SampleResult* result);
  void RecordDraws(const SampleRequest& request, const Picks& drawn_picks, SampleResult* result);
  void CheckGroups() const;
  static void CountOutcome(OutcomeCounts* counts, Outcome outcome, int64_t by = 1) {
    counts->correct += outcome == Outcome::kCorrect ? static_cast<uint64_t>(by) : 0;
    counts->incorrect += outcome == Outcome::kIncorrect ? static_cast<uint64_t>(by) : 0;
  }

  std::string name;
  BufferOptions options;

  ItemTable items;  // trajectories
  Store store;      // by the places of `items`
  Cohorts cohorts;
  // Where the unit is the group: a row for each like a trajectory's, with the id and the source of its first member and what
  // buffer.h says of all, and without a frame. Trajectories have no order but their numbers' then.
  ItemTable group_rows;
  Cohorts group_cohorts;
  Groups groups;
  uint32_t largest_group = 1;  // that has ever been here: what one draw may bring
  ItemTable& units;            // one of the two, as unit_cohorts
  Cohorts& unit_cohorts;
  Retention retention;
  Ranking ranking;                     // with retention best: the positive units
  std::unique_ptr<Selector> selector;  // of the whole buffer
  Leases leases;
  uint64_t held = 0;  // units
  Reservations reservations;
  Sources sources;
  Columns columns;
  LateTags late_tags;
  Breakdown breakdown;
  std::unique_ptr<Prompts> prompts;  // null: none are remembered
  // As declared. In a buffer with parts for each rank one of all items of its part, by the buffer's selector, then as declared.
  std::vector<std::unique_ptr<View>> views;
  Plans plans;
  Pacing pacing;
  Receipts receipts;
  Random random;
  // What was inserted when, for max_age: units with a number below that of the next mark are as old as this one. A mark for each
  // thousandth of max_age in which something was inserted.
  struct Mark {
    uint64_t first_number = 0, time_ms = 0;
    void Persist(Archive& archive) { archive(first_number, time_ms); }
  };
  std::deque<Mark> marks;
  uint64_t now_ms = 0;
  Journal* journal = nullptr;
  uint64_t last_frame = 0;  // its number
  // The items up to this number have been spilled, but for columns that came later: of these slots, with their items' numbers.
  uint64_t spilled_through = 0;
  std::vector<std::pair<uint32_t, uint64_t>> late_columns;
  bool starving = false;                  // The last Sample waited for staleness or filter.
  std::optional<StepWindow> last_window;  // of the last Sample

  // Of the batch at hand, kept for their memory.
  bool has_drawn = false;   // from the selectors
  Part whole{};             // the whole buffer, as if it were drawn from
  std::vector<Part> parts;  // [parts]
  SampleRequest keyed_request;
  std::vector<Picks> part_picks;                   // [parts] of a composed batch
  Picks picks;                                     // [count] units
  Picks member_picks;                              // where they are groups: [draws] of their members
  std::vector<uint32_t> part_sizes;                // likewise: [parts] draws of each
  std::vector<uint32_t> batch_slots;               // [distinct] slots of trajectories, by frame index
  std::vector<uint32_t> batch_units;               // where they are groups: [distinct] groups
  std::vector<std::vector<uint32_t>> group_lists;  // of the Insert at hand: [groups][members] positions in the request
  std::vector<Reservations::Group*> completed;     // of the partial Insert at hand
  ZeroSpreadFinder zero_spread;                    // of the Insert at hand, see CountStored
  bool refuses_some = false;                       // likewise

  // Counters, as BufferStats shows them.
  uint64_t tokens = 0;
  OutcomeCounts stored, inserted, sampled, removed_outcomes;
  OutcomeCounts became, ceased;  // by Update: inserted + became = stored + removed + ceased
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0;
  uint64_t zero_spread_items = 0, zero_spread_refused = 0;
  std::array<uint64_t, static_cast<size_t>(RemoveReason::kCount)> removed{};
  uint64_t drawn = 0, samples = 0, tokens_inserted = 0, tokens_drawn = 0, withheld = 0, withheld_total = 0;
  uint64_t expired_groups = 0, dropped_members = 0, expired_leases = 0;
  Histogram staleness{kStepBounds}, reuse_gap{kStepBounds}, item_draws{kDrawBounds};
  int64_t consumer_step = 0;
  CostReport cost;
};

}  // namespace replay::server
