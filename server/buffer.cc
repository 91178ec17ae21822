#include "server/buffer.h"

#include <algorithm>
#include <utility>

#include "server/buffer_state.h"
#include "server/check.h"
#include "server/requests_archive.h"

namespace replay::server {

using std::to_string;

Buffer::State::State(std::string buffer_name, const BufferOptions& buffer_options, PolicyVersions::Snapshot versions)
    : name(std::move(buffer_name)),
      options(buffer_options),
      cohorts(versions),
      group_cohorts(std::move(versions)),
      units(by_group() ? group_rows : items),
      unit_cohorts(by_group() ? group_cohorts : cohorts),
      retention(options),
      ranking(&units),
      pacing(options),
      receipts(kMaxWriters, kMaxReceiptsPerWriter),
      random(options.seed) {
  unit_cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  unit_cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
  FillSelector();
  SetPrompts();
  FillViews();
}

Buffer::Buffer(std::string name, const BufferOptions& options, PolicyVersions::Snapshot versions)
    : state_(std::make_unique<State>(std::move(name), options, std::move(versions))) {}
Buffer::~Buffer() = default;

const std::string& Buffer::name() const { return state_->name; }
const BufferOptions& Buffer::options() const { return state_->options; }
uint64_t Buffer::live() const { return state_->items.live(); }
uint64_t Buffer::now_ms() const { return state_->now_ms; }

// --- Who stays -----------------------------------------------------------------------------------------------------------

void Buffer::State::ReviewPositives() {
  ranking.Clear();
  while (units.positive() > 0 && units.fresh() < options.fresh_capacity()) units.MakeFresh();
  for (uint32_t unit = units.oldest(), next = kNoSlot; unit != units.oldest_fresh(); unit = next) {
    next = units[unit].newer;
    if (ranks())
      ranking.Insert(unit);
    else if (options.retention == RetentionKind::kPositiveBias && units[unit].outcome() != Outcome::kCorrect)
      RemoveUnit(unit, RemoveReason::kCapacity);
  }
}

void Buffer::State::Retain() {
  for (;;) {
    const uint32_t oldest_fresh = units.oldest_fresh();
    const Retention::Step step =
        retention.Next({.fresh = units.fresh(),
                        .positive = units.positive(),
                        .bytes = BytesHeld(),
                        .oldest_fresh_correct = oldest_fresh != kNoSlot && units[oldest_fresh].outcome() == Outcome::kCorrect});
    switch (step) {
      case Retention::Step::kDone:
        // Most likely the next to go: by then its block, cold since its insert, is at hand.
        if (oldest_fresh != kNoSlot) FrameOfUnit(oldest_fresh).Prefetch();
        return;
      case Retention::Step::kMakeFresh:
        units.MakeFresh();
        if (ranks()) ranking.Erase(units.oldest_fresh());
        break;
      case Retention::Step::kMakePositive:
        units.MakePositive();
        if (ranks()) ranking.Insert(oldest_fresh);
        break;
      case Retention::Step::kEvictPositive:
        RemoveUnit(FirstPositiveToGo(), RemoveReason::kCapacity);
        break;
      case Retention::Step::kEvictOldestFresh:
        RemoveUnit(oldest_fresh, RemoveReason::kCapacity);
        break;
      case Retention::Step::kEvictPositiveForBytes:
        RemoveUnit(FirstPositiveToGo(), RemoveReason::kBytes);
        break;
      case Retention::Step::kEvictOldestFreshForBytes:
        RemoveUnit(oldest_fresh, RemoveReason::kBytes);
        break;
    }
  }
}

// --- Insert --------------------------------------------------------------------------------------------------------------

uint64_t Buffer::State::CountStored(std::span<const TrajectoryFacts> facts) {
  const bool refuses = options.zero_spread == ZeroSpread::kRefuse;
  refuses_some = false;
  if (facts.size() == 1 && !refuses && !by_group()) return 1;
  const uint64_t found = zero_spread.Find(facts);
  refuses_some = refuses && found > 0;
  return facts.size() - (refuses ? found : 0);
}

inline bool Buffer::State::MayInsert(const InsertRequest& request, uint64_t to_store) const {
  if (by_group() || reservations.size() > 0 || !request.columns.empty()) return false;
  const uint64_t count = request.facts.size();
  if (options.max_insert > 0 && count > options.max_insert) return false;
  uint64_t frame_bytes = 0;
  for (size_t i = 0; i < count; ++i) frame_bytes += IsRefused(i) ? 0 : request.frames[i].size();
  if (!retention.Fits(to_store, BytesOf(frame_bytes, to_store))) return false;
  if (count > 1)
    for (const TrajectoryFacts& facts : request.facts) items.PrefetchId(facts.id);
  for (size_t i = 0; i < count; ++i)
    if (!IsRefused(i) && items.Find(request.facts[i].id) != kNoSlot) return false;
  return true;
}

std::string Buffer::State::WhyInsertRefused(const InsertRequest& request, uint64_t to_store, ErrorCode* code) const {
  *code = ErrorCode::kInvalidArgument;
  const uint64_t count = request.facts.size();
  if (options.max_insert > 0 && count > options.max_insert)
    return to_string(count) + " trajectories in one request, max_insert of the buffer is " + to_string(options.max_insert);
  uint64_t frame_bytes = 0;
  for (size_t i = 0; i < count; ++i) frame_bytes += IsRefused(i) ? 0 : request.frames[i].size();
  uint64_t count_held = to_store + reservations.pending();
  if (!request.columns.empty()) {
    for (const ColumnOf& each : request.columns) {
      if (IsRefused(each.frame)) continue;
      frame_bytes += each.column.size();
      ++count_held;
    }
    if (std::string why = columns.WhyRefused(request.columns); !why.empty()) return why;
  }
  const uint64_t arriving = by_group() ? group_lists.size() : to_store;
  const uint64_t bytes = BytesOf(frame_bytes + reservations.frame_bytes(), count_held);
  if (!retention.Fits(arriving, bytes)) return retention.WhyTooLarge(arriving, bytes);
  if (by_group())
    if (std::string refused = WhyGroupsRefused(request.facts); !refused.empty()) return refused;
  *code = ErrorCode::kAlreadyExists;
  for (size_t i = 0; i < count; ++i) {
    if (reservations.size() > 0 && reservations.Find(request.facts[i].group)) {
      *code = ErrorCode::kFailedPrecondition;
      return "trajectory " + to_string(i) + " of the request is a member of a reserved group: it is inserted with partial";
    }
    if (IsRefused(i)) continue;
    const uint32_t slot = items.Find(request.facts[i].id);
    if (reservations.pending() > 0 && reservations.Holds(request.facts[i].id))
      return "trajectory " + to_string(i) + " of the request has the trajectory_id of a member of a reserved group";
    if (slot != kNoSlot)
      return "trajectory " + to_string(i) + " of the request has the trajectory_id of a live item, inserted as number " +
             to_string(items[slot].number);
  }
  return "";
}

namespace {

uint32_t FingerprintOf(std::span<const TrajectoryFacts> facts) {
  uint64_t sum = facts.size();
  for (const TrajectoryFacts& each : facts) sum = sum * 0x9e3779b97f4a7c15 + each.id.low;
  return static_cast<uint32_t>(sum >> 32);
}

}  // namespace

Verdict Buffer::Insert(const InsertRequest& request, InsertResult* result) {
  State& s = *state_;
  const uint64_t count = request.facts.size();
  CHECK(request.frames.size() == count) << request.frames.size() << " frames, " << count << " facts";
  if (count == 0) return Verdict::Failed(ErrorCode::kInvalidArgument, "the request has no trajectories");
  const auto refuse = [&](ErrorCode code, std::string message) {
    s.offered += count;
    s.rejected += count;
    s.NoteLook(request, count, /*is_duplicate=*/false);
    return Verdict::Failed(code, std::move(message));
  };

  *result = {};
  result->level = s.journal ? request.level.value_or(s.options.level) : AcknowledgementLevel::kMemory;
  bool looked = false;  // and the look changed something
  const auto wait = [&] {
    if (looked) s.NoteLook(request, 0, /*is_duplicate=*/false);
    return Verdict::Wait(WaitReason::kPacing);
  };
  const bool has_receipt = request.writer != Key128{};
  const uint32_t fingerprint = has_receipt ? FingerprintOf(request.facts) : 0;
  if (has_receipt) {
    if (request.sequence == 0)
      return refuse(ErrorCode::kInvalidArgument, "sequence is 0: a writer numbers its requests from 1");
    Receipt receipt;
    switch (s.receipts.Look(request.writer, request.sequence, request.acknowledged_through, &receipt, &looked)) {
      case Receipts::Answer::kNew:
        break;
      case Receipts::Answer::kDuplicate:
        if (receipt.count > count || receipt.fingerprint != fingerprint)
          return refuse(ErrorCode::kFailedPrecondition, "sequence " + to_string(request.sequence) +
                                                            " of this writer has inserted other trajectories, from number " +
                                                            to_string(receipt.first_item) + " on: two writers use one id");
        s.offered += count;
        s.duplicate += count;
        result->first_item = receipt.first_item;
        result->count = receipt.count;
        result->refused = static_cast<uint32_t>(count - receipt.count);
        result->duplicate = true;
        result->live = s.items.live();
        s.NoteLook(request, count, /*is_duplicate=*/true);
        return Verdict::Done();
      case Receipts::Answer::kExpired:
        return refuse(ErrorCode::kWriterExpired, "sequence " + to_string(request.sequence) +
                                                     " of a writer that is not known here, or that has said it has the answer");
      case Receipts::Answer::kTooMany:
        return refuse(ErrorCode::kResourceExhausted, "sequence " + to_string(request.sequence) + " is more than " +
                                                         to_string(kMaxReceiptsPerWriter) +
                                                         " beyond what the writer has acknowledged");
    }
  }

  if (s.options.closed) return refuse(ErrorCode::kClosed, s.ClosedMessage());
  // Of reserved groups it is known when they are complete.
  const uint64_t stored = request.partial ? count : s.CountStored(request.facts);
  if (request.partial) s.refuses_some = false;
  if (s.by_group()) s.ListGroups(request.facts);
  if (request.partial) {
    ErrorCode code;
    std::string why = s.WhyPartialRefused(request, &code);
    if (!why.empty()) return refuse(code, std::move(why));
    if (!s.InsertMembers(request, result).done()) return wait();
  } else {
    if (!s.MayInsert(request, stored)) {
      ErrorCode code;
      std::string why = s.WhyInsertRefused(request, stored, &code);
      if (!why.empty()) return refuse(code, std::move(why));
    }
    const uint64_t available = s.pacing.paces() ? s.Available() : 0;
    if (stored > 0 && s.pacing.InsertMustWait(stored, available)) return wait();
    s.BeginNote(request);
    result->count = static_cast<uint32_t>(stored);
    if (stored > 0) {
      result->first_item = s.items.next_number();
      s.AddAll(request.facts, request.frames, request.columns, s.pacing.OnInsert(stored, available));
    }
    s.accepted += stored;
    if (stored < count) {
      result->refused = static_cast<uint32_t>(count - stored);
      s.rejected += result->refused;
      s.zero_spread_refused += result->refused;
    }
  }
  s.offered += count;
  if (has_receipt) s.receipts.Record(request.writer, request.sequence, {result->first_item, result->count, fingerprint});
  if (s.unit_cohorts.expired() > 0) s.EvictStale();
  s.Retain();
  result->live = s.items.live();
  s.EndNote();
  return Verdict::Done();
}

bool Buffer::IsRepeat(const InsertRequest& request) const { return state_->receipts.Has(request.writer, request.sequence); }

void Buffer::CountRejected(uint64_t trajectories, Key128 writer, uint64_t sequence) {
  InsertRequest request;
  request.writer = writer;
  request.sequence = sequence;
  state_->CountLook(request, trajectories, /*is_duplicate=*/false);
}

void Buffer::State::CountLook(const InsertRequest& request, uint64_t count, bool is_duplicate) {
  offered += count;
  (is_duplicate ? duplicate : rejected) += count;
  bool changed = count > 0;
  Receipt receipt;
  if (request.writer != Key128{} && request.sequence > 0)
    receipts.Look(request.writer, request.sequence, request.acknowledged_through, &receipt, &changed);
  if (changed) NoteLook(request, count, is_duplicate);
}

uint32_t Buffer::CountStored(const InsertRequest& request) const {
  return static_cast<uint32_t>(state_->CountStored(request.facts));
}

std::string Buffer::WhyInsertWaits(uint32_t count) const { return state_->pacing.WhyInsertWaits(count, state_->Available()); }

// --- The rest ------------------------------------------------------------------------------------------------------------

bool Buffer::Get(std::string_view id, StoredItem* item, std::span<const std::string> columns) const {
  const State& s = *state_;
  const uint32_t slot = s.items.Find(HashId(id));
  if (slot == kNoSlot) return false;
  *item = s.Stored(slot, columns);
  return true;
}

bool Buffer::Scan(uint64_t after, uint32_t limit, uint64_t max_bytes, std::vector<StoredItem>* items,
                  std::span<const std::string> columns) const {
  State& s = *state_;
  items->clear();
  uint64_t bytes = 0, tag_bytes = 0;
  uint32_t slot = s.items.FirstAfter(after), last = kNoSlot;
  for (; slot != kNoSlot && items->size() < limit; slot = s.items[slot].newer) {
    StoredItem item = s.Stored(slot, columns);
    bytes += item.payload_bytes();
    tag_bytes += LateTags::WireBytes(item.late_tags);
    // One item always goes, however large.
    if ((bytes > max_bytes || tag_bytes > kMaxReplyControlBytes / 2) && !items->empty()) break;
    items->push_back(std::move(item));
    last = slot;
  }
  if (last != kNoSlot && slot != kNoSlot) s.items.RememberPage(s.items[last].number, last);
  return slot != kNoSlot;
}

void Buffer::AddCost(const CostReport& cost) {
  CostReport& sum = state_->cost;
  sum.generation_seconds += cost.generation_seconds;
  sum.generated_trajectories += cost.generated_trajectories;
  sum.generated_tokens += cost.generated_tokens;
  sum.training_seconds += cost.training_seconds;
  sum.trained_draws += cost.trained_draws;
  sum.trained_tokens += cost.trained_tokens;
  if (cost.workers > 0) sum.workers = cost.workers;  // As last reported, not a sum.
  if (cost.trainers > 0) sum.trainers = cost.trainers;
  state_->Note(Operation::kCost, cost);
}

}  // namespace replay::server
