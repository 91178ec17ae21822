#pragma once
// Buffer decides what exists and what is drawn.
//
//   insert ─► receipts ─► id table ─► retention (fresh ring, positive ring) ─► evict
//   sample ─► pacing   ─► selector ─► draw bookkeeping (staleness, uses, probability) ─► max_draws
//
// Every method is a synchronous function of (state, request, now, random): no clock, no lock, no wait. A request that cannot be
// met now answers kWait with the reason; ReplayService does the waiting and asks again when something changed. Lives on one
// thread. Invariants, checked by CheckInvariants():
//   offered = accepted + duplicate + rejected + pending        accepted = live + removed (by reason)        in trajectories
//
// What is retained and drawn is a unit: a trajectory, or with options.unit = group all members of one, which come and go together.
// capacity_items, min_size and the count of a Sample are in units; a group is correct if any member is, its reward and priority are
// the highest of theirs, its version the oldest. Pacing and all counts of Stats are in trajectories.
//
// Insert decides in this order, and nothing has changed unless all is accepted:
//   a repeat gets its first receipt, whatever was altered since (other trajectories under its number: an error) ─► groups with zero
//   spread are left out, if they are refused ─► errors (max_insert, larger than the buffer, an id that is live) ─► waits for pacing ─► every trajectory is added, the newest last ─► retention evicts
// Sample: errors (a count that can never be met) ─► waits: min_size, pacing, staleness, filter ─► draws ─► too many bytes for a reply:
//   an error, nothing recorded ─► bookkeeping ─► max_draws removes
// Update: no such item, or another revision ─► writes all it brings ─► views, positives and the bound of bytes look again
//
// Costs: Insert O(1) for each trajectory, evictions included. A draw O(1): 30 ns at 10^3 items, 60 ns at 10^6, since its cache
// misses overlap (selectors.h says what newer items cost). Get, Delete O(1). Scan O(page) where it goes on from one of the last
// 8 pages' ends, else O(items). Alter O(items) where it must look at each. Stats O(policy versions in the buffer). Beyond the
// frames about 115 bytes an item, 145 with each frame's header.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/message.h"
#include "schema/tags.h"
#include "schema/validate.h"
#include "server/buffer_options.h"
#include "server/columns.h"
#include "server/histogram.h"
#include "server/journal.h"
#include "server/policy_versions.h"
#include "server/verdict.h"
#include "storage/store.h"

namespace replay::server {

enum class RemoveReason : uint8_t { kCapacity, kBytes, kMaxDraws, kDeleted, kAge, kStaleness, kCount };
inline constexpr size_t kRemoveReasons = static_cast<size_t>(RemoveReason::kCount);
std::string_view ToString(RemoveReason reason);  // "capacity"

struct InsertRequest {
  std::span<Frame> frames;                 // moved from when accepted
  std::span<const TrajectoryFacts> facts;  // one for each frame, already validated, groups whole
  Key128 writer;                           // zero: no receipt
  uint64_t sequence = 0;
  uint64_t acknowledged_through = 0;
  bool partial = false;              // All are members of reserved groups, which need not be complete.
  std::span<ColumnOf> columns = {};  // likewise moved from; checked against their core frames, in the order of those
  std::optional<AcknowledgementLevel> level = {};  // none: the buffer's
};

struct InsertResult {
  uint64_t first_item = 0;
  uint32_t count = 0;
  uint32_t refused = 0;  // not stored and not in count: of groups with zero spread
  bool duplicate = false;
  AcknowledgementLevel level = AcknowledgementLevel::kMemory;  // what it is to survive before it is answered
  uint64_t live = 0;
  bool pending = false;  // Of a partial insert: a group is not complete yet. first_item is 0 then.
};

// A part of a composed batch.
struct SamplePart {
  uint32_t count = 0;
  std::string view = {};                      // empty: the whole buffer, by its selector
  std::optional<int64_t> max_staleness = {};  // beside those of the request and the buffer: the smallest counts
  int64_t min_staleness = 0;                  // nothing fresher; 0: any
  bool or_next = false;                       // what is lacking is drawn by the next part
  std::string buffer = {};                    // for joined_sample.h; a Buffer does not look at it
  bool operator==(const SamplePart&) const = default;
};

struct SampleRequest {
  uint32_t count = 0;                         // with parts: the sum of theirs
  std::optional<int64_t> step = {};           // absent: the newest published step, see cohorts.h
  std::optional<int64_t> max_staleness = {};  // beside that of the buffer: the smaller one counts
  // Draws of earlier replies that were never used. Taken back when this request is done, not when it waits or fails; at most
  // what was drawn and not given back before.
  uint32_t given_back = 0;
  std::string view = {};                   // without parts: draw from this view; empty: from the whole buffer
  std::vector<std::string> columns = {};   // names of the column frames to send along
  std::vector<SamplePart> parts = {};      // All are drawn from the state when Sample began, or none is.
  std::vector<uint32_t> part_places = {};  // what errors call each part; empty: its place in `parts`
  // With a consumer (plans.h): one draw for all ranks of (consumer, step), `count` slots for each, the same when asked again.
  // Of a buffer with parts each rank gets slots of its own part; there they say who asks without a consumer too.
  std::string consumer = {};
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t holder = 0;  // of the leases: the connection
};

struct DrawnItem {
  uint32_t frame = 0;       // index into SampleResult::frames
  uint32_t draw_count = 0;  // including this draw
  double probability = 0;
  int64_t staleness = 0;
  int64_t steps_since_last_use = -1;  // -1: never drawn before; 0 also where the trainer went back to an older step
  uint64_t item = 0;
  float reward = 0;                     // as updated last
  uint32_t revision = 0;                // how often it was updated
  std::optional<float> advantage = {};  // as updated last; none: that in the frame counts
};

struct SampleResult {
  std::vector<DrawnItem> draws;
  std::vector<Frame> frames;          // distinct
  std::vector<ColumnOf> columns;      // of those frames, as far as they were asked for and are there
  std::vector<uint32_t> part_counts;  // of a composed batch: the draws of each part, one part behind the other
  std::vector<uint64_t> candidates;   // of each part, or of the batch that has none: what could be drawn, in units
  std::vector<uint32_t> unit_sizes;   // where groups are drawn: the draws of each, one group behind the other
  uint64_t lease = 0;                 // where what is drawn is held: for Acknowledge
  int64_t step = 0;                   // as given, or the newest of the buffer's runs
  uint64_t withheld = 0;              // live items that could not be drawn
  uint64_t payload_bytes = 0;
  bool planned = false;     // drawn before, for its key: counted then
  uint32_t given_back = 0;  // what pacing took back of the request's
  void Clear();             // keeps capacity: a session reuses it
};

// What is known later than the insert; the frame keeps what was inserted. Values have been checked.
struct ItemUpdate {
  std::string id;
  std::optional<float> priority = {};  // 0 to kMaxPriority
  std::optional<float> reward = {};    // finite; decides about correctness anew unless `correct` does
  std::optional<Outcome> correct = {};
  std::optional<uint32_t> revision = {};  // only if the item has this one
  std::optional<float> advantage = {};    // finite
  std::vector<NamedTag> tags = {};        // each in place of the one of its name
  std::vector<Frame> columns = {};        // likewise; they have passed ReadColumn and are of this id
};
enum class UpdateOutcome : uint8_t { kDone, kNotThere, kOtherRevision };

// What becomes of a reserved group that is not complete when its lease or its deadline ends.
enum class MissingMembers : uint8_t { kDrop, kRelease, kWait };
// Announces a group whose members arrive by several Inserts; see server/reservations.h.
struct ReserveRequest {
  enum class Action : uint8_t { kReserve, kCommit, kDrop };
  std::string group_id;
  Action action = Action::kReserve;
  uint32_t size = 0;
  uint32_t lease_ms = 0;
  uint32_t deadline_ms = 0;
  MissingMembers missing = MissingMembers::kDrop;
  uint32_t batch = 0;  // above 0: waits for admission first
};

// How many trajectories may be generated now: (max_staleness + 1) * batch - live - reserved.
struct AdmitRequest {
  uint32_t count = 0;  // waits until there are so many
  uint32_t batch = 0;
  std::optional<int64_t> max_staleness = {};  // instead of the buffer's
};

// Ends the lease of what was drawn.
struct AcknowledgeRequest {
  uint64_t lease = 0;
  std::vector<uint64_t> items = {};  // insertion numbers; empty: all of the lease
  bool give_back = false;            // it was not used: as if it had not been drawn
};

struct ReserveResult {
  uint32_t present = 0;     // members that are there
  uint32_t size = 0;        // announced
  uint64_t first_item = 0;  // of a commit: insertion number of the first member
};

struct AdmitResult {
  int64_t credits = 0;  // negative: there are too many already
  uint64_t live = 0;
  uint64_t reserved = 0;  // members of reserved groups, there or not
};

// What became of the rollouts of a prompt.
struct PromptOutcomes {
  int64_t dataset_index = 0;
  uint64_t rollouts = 0;
  uint64_t scored = 0;  // of rollouts: correctness known, as inserted or updated last
  uint64_t correct = 0;
  double reward_sum = 0;  // as inserted
  bool operator==(const PromptOutcomes&) const = default;
};

struct StoredItem {
  Frame frame;
  uint64_t item = 0;
  uint32_t draw_count = 0;
  float reward = 0;  // as updated last
  uint32_t revision = 0;
  std::vector<NamedTag> late_tags;
  std::vector<Frame> columns;
  uint64_t payload_bytes() const;
};

struct CostReport {
  double generation_seconds = 0;
  uint64_t generated_trajectories = 0;
  uint64_t generated_tokens = 0;
  double training_seconds = 0;
  uint64_t trained_draws = 0;
  uint64_t trained_tokens = 0;
  uint32_t workers = 0;
  uint32_t trainers = 0;
};

struct OutcomeCounts {
  uint64_t correct = 0;
  uint64_t incorrect = 0;
};

// The trajectories of one source, one bucket of lengths or one number of draws; see breakdown.h.
struct BreakdownRow {
  std::string name;
  uint64_t live = 0, inserted = 0, withheld = 0;
  std::array<uint64_t, kRemoveReasons> removed{};
};

// Everything that is shown about a buffer; a copy crosses threads.
struct BufferStats {
  std::string name;
  BufferOptions options;
  // bytes: of the frames, spilled_bytes: of those that are on disk only. index_bytes: all other memory of the buffer, but for the header of each frame.
  uint64_t items = 0, bytes = 0, spilled_items = 0, spilled_bytes = 0, index_bytes = 0, tokens = 0, positive_items = 0;
  OutcomeCounts stored, inserted, sampled, removed_outcomes;
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0;
  uint64_t zero_spread = 0;          // of items: all rewards of their group were the same
  uint64_t zero_spread_refused = 0;  // of rejected
  std::array<uint64_t, static_cast<size_t>(RemoveReason::kCount)> removed{};
  uint64_t drawn = 0, samples = 0, tokens_inserted = 0, tokens_drawn = 0;
  uint64_t withheld = 0;        // at the last Sample, whether it drew or waited
  uint64_t withheld_total = 0;  // summed over the Samples that drew
  // reuse_gap: steps since last use, without first uses. item_draws: draws an item had when it was removed.
  Histogram staleness, reuse_gap, item_draws;
  int64_t oldest_version = 0, newest_version = 0;  // of the live items' oldest segments
  int64_t consumer_step = 0;                       // of the last Sample that drew
  double pacing_balance = 0;
  CostReport cost;
  std::vector<std::pair<std::string, uint64_t>> views;    // live units of each
  uint64_t column_bytes = 0;                              // of the column frames, beside bytes
  std::vector<std::pair<std::string, uint64_t>> columns;  // live items that have each
  uint64_t groups = 0;                                    // live, where they are the unit
  uint64_t reserved_groups = 0, pending = 0;              // pending: members of those, there and not live
  uint64_t expired_groups = 0;                            // reserved ones whose lease or deadline ended: dropped or released
  uint64_t dropped_members = 0;                           // of rejected: members of reserved groups that were dropped
  uint64_t held = 0, leases = 0, expired_leases = 0;      // held: live units under a lease
  std::vector<BreakdownRow> sources, lengths, draws;
  uint64_t prompts = 0;  // remembered
  // Filled by ReplayService:
  uint64_t waiting_inserts = 0, waiting_samples = 0;  // among the inserts: who waits for admission
  std::array<uint64_t, static_cast<size_t>(WaitReason::kCount)> insert_waits{}, sample_waits{};  // waiting now, by reason
  uint32_t producers = 0, consumers = 0;
};

class Buffer {
 public:
  // `options` has passed CheckOptions and has its capacity_bytes.
  Buffer(std::string name, const BufferOptions& options, PolicyVersions::Snapshot versions);
  ~Buffer();

  // kWait: pacing holds inserts back. kError: alreadyExists, invalidArgument (larger than the buffer), writerExpired …; counts
  // the request's trajectories as offered once it is decided (not while it waits).
  Verdict Insert(const InsertRequest& request, InsertResult* result);
  // It has been stored before, and Insert answers with its receipt.
  bool IsRepeat(const InsertRequest& request) const;
  // A request that failed before it reached the buffer (checksum, validation) counts as offered and rejected. With 0
  // trajectories it only makes the writer known, as is due when a first request times out before Insert ever saw it: its
  // second would otherwise be taken for that of a forgotten writer.
  void CountRejected(uint64_t trajectories, Key128 writer, uint64_t sequence);

  // kWait: min_size, pacing, staleness (fewer than min_size, or for a distinct selector than count, that may be drawn) or filter
  // (so few because of priorities of 0, or in the view). After a wait for staleness or filter inserts no longer wait for pacing until a Sample
  // draws again: what the trainer can use has yet to come. Whoever waits in Insert must then be asked again. kError: a count
  // that could never be met.
  Verdict Sample(const SampleRequest& request, SampleResult* result);
  // "" or why the call can never be met.
  std::string WhySampleRefused(const SampleRequest& request) const;
  // Nobody gets what a Sample without a consumer has drawn: to pacing it is as if that had not been.
  void CreditDraws(const SampleResult& result);
  // Why the call would wait now: kMinSize, "12 of 64 items present". kNone and empty if it would not.
  WaitReason WhatSampleWaitsFor(const SampleRequest& request) const;
  // How many of the request's trajectories are to be stored: all but those of groups with zero spread, if it refuses them.
  uint32_t CountStored(const InsertRequest& request) const;
  std::string WhyInsertWaits(uint32_t count) const;  // of these
  std::string WhySampleWaits(const SampleRequest& request) const;

  // With the columns of these names that the item has; Scan likewise.
  bool Get(std::string_view id, StoredItem* item, std::span<const std::string> columns = {}) const;
  // Items with insertion number > after, oldest first, at most `limit` and about `max_bytes`; true if there are more.
  bool Scan(uint64_t after, uint32_t limit, uint64_t max_bytes, std::vector<StoredItem>* items,
            std::span<const std::string> columns = {}) const;
  // Where the unit is the group, its whole group. How many trajectories left.
  uint32_t Delete(std::string_view id);
  // `revision` becomes the item's, 0 if it is not there. A positive item that is no longer correct leaves, with reason capacity.
  // A Sample that waits may go on afterwards.
  UpdateOutcome Update(const ItemUpdate& update, uint32_t* revision);
  // Of one request, before any of it is done: "" or why it cannot be. Columns of another length than their item, more tags or
  // names of columns than are allowed, an item that would be larger than the buffer.
  std::string WhyUpdateRefused(std::span<const ItemUpdate> updates) const;
  // What is remembered (prompts.h) of the prompts of a source with an index above `after`, in order, at most `limit`; true if there
  // are more.
  bool History(const std::string& source, int64_t after, uint32_t limit, std::vector<PromptOutcomes>* page) const;

  // Ends the lease of what was drawn (leases.h): it leaves if it has had max_draws, else it may be drawn again; given back, also its
  // draws are taken back. `count`: trajectories whose lease ended. kError: notFound.
  Verdict Acknowledge(const AcknowledgeRequest& request, uint32_t* count);
  // A connection ends: what it holds is given back. True if it held anything.
  bool EndLeasesOf(uint64_t holder);
  // reservations.h. kWait: staleness, for admission; also if it has to be admitted and `behind_others` wait for that.
  Verdict Reserve(const ReserveRequest& request, ReserveResult* result, bool behind_others = false);
  bool HoldsReservation() const;  // by a lease that has not ended
  // kWait, with the result filled in: staleness. `behind_others`: as in Reserve.
  Verdict Admit(const AdmitRequest& request, AdmitResult* result, bool behind_others = false) const;

  // Checks the options and evicts what no longer fits: with reason capacity, bytes or max_draws. "" or the error; nothing has
  // changed then. A raised capacity brings nothing back; a new correct_threshold is for later inserts only.
  std::string Alter(BufferOptions options);
  void OnPublish(PolicyVersions::Snapshot versions);
  // Time goes on, a few times a second: evicts what has become too old. A clock that goes back stands still here. True if it
  // evicted anything.
  bool OnTime(uint64_t now_ms);
  void AddCost(const CostReport& cost);

  // Whoever held what was drawn is gone, as after a restart: all of it is given back.
  void EndAllLeases();

  // The whole state, but for the bytes of the frames. Load: null, and `error`, if the bytes are not of such a state or a frame is
  // missing. A buffer that was loaded decides as the saved one would have.
  // `frames`, if given, gets the numbers of those it names, some more than once.
  void Save(std::string* bytes, std::vector<uint64_t>* frames = nullptr) const;
  static std::unique_ptr<Buffer> Load(std::string_view bytes, FrameSource* frames, std::string* error);
  // From here on what it decides is written there; null: nowhere. New frames are numbered as they come.
  void SetJournal(Journal* journal);
  // Decides again what a record says; records[0] is the next one and is taken off. "" or why it cannot be: the buffer is then of no
  // use any more.
  std::string Replay(std::string_view* records, FrameSource* frames);

  // Lets go of the bytes of frames that are on disk, those numbered up to `written`: of the oldest items first, until about `bytes`
  // are gone. How many went; no decision changes. What is drawn then comes as absent frames (message.h). O(items that went).
  uint64_t Spill(uint64_t bytes, uint64_t written);
  uint64_t frame_bytes() const;     // with columns
  uint64_t resident_bytes() const;  // of those that are in memory

  const std::string& name() const;
  const BufferOptions& options() const;
  uint64_t live() const;
  uint64_t now_ms() const;  // as OnTime said last
  BufferStats Stats() const;
  // Dies with a message if an invariant does not hold. O(items).
  void CheckInvariants() const;
  // The whole state as text for tests, the insertion numbers oldest first; + correct, *2 drawn twice, ~ of an older epoch:
  //   "7+*2 10+ | 11~ 12 positive=2 fresh=2 drawn=14"
  std::string Describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace replay::server
