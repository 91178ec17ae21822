#include "server/buffer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "server/buffer_state.h"
#include "server/check.h"

namespace replay::server {

using std::to_string;

Buffer::State::State(std::string buffer_name, const BufferOptions& buffer_options, PolicyVersions::Snapshot versions)
    : name(std::move(buffer_name)),
      options(buffer_options),
      cohorts(std::move(versions)),
      retention(options),
      pacing(options),
      receipts(kMaxWriters, kMaxReceiptsPerWriter),
      random(options.seed) {
  cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
  FillSelector();
  FillViews();
}

Buffer::Buffer(std::string name, const BufferOptions& options, PolicyVersions::Snapshot versions)
    : state_(std::make_unique<State>(std::move(name), options, std::move(versions))) {}
Buffer::~Buffer() = default;

const std::string& Buffer::name() const { return state_->name; }
const BufferOptions& Buffer::options() const { return state_->options; }
uint64_t Buffer::live() const { return state_->items.live(); }

// --- Items come and go ---------------------------------------------------------------------------------------------------

void Buffer::State::CountOutcome(OutcomeCounts* counts, Outcome outcome, int64_t by) {
  counts->correct += outcome == Outcome::kCorrect ? static_cast<uint64_t>(by) : 0;
  counts->incorrect += outcome == Outcome::kIncorrect ? static_cast<uint64_t>(by) : 0;
}

void Buffer::State::FindZeroSpread(std::span<const TrajectoryFacts> facts) {
  zero_spread.assign(facts.size(), 0);
  struct Group {
    size_t first;
    bool spread = false;
  };
  const auto hash = [](const Key128& key) { return key.low; };
  std::unordered_map<Key128, Group, decltype(hash)> groups(16, hash);
  Group* group = nullptr;  // Members mostly stand together.
  for (size_t i = 0; i < facts.size(); ++i) {
    if (facts[i].group == Key128{}) continue;
    if (group == nullptr || facts[group->first].group != facts[i].group)
      group = &groups.try_emplace(facts[i].group, Group{.first = i}).first->second;
    group->spread |= facts[i].reward != facts[group->first].reward;
  }
  for (size_t i = 0; i < facts.size(); ++i)
    if (facts[i].group != Key128{}) zero_spread[i] = !groups.find(facts[i].group)->second.spread;
}

void Buffer::State::AddItem(const TrajectoryFacts& facts, Frame&& frame, bool counted, bool zero_spread_group) {
  const Outcome outcome = retention.Decide(facts.correct, facts.reward);
  const uint32_t slot = items.Add(facts, outcome);
  Item& item = items[slot];
  item.cohort = cohorts.Add(facts);
  item.counted = counted;
  item.outcome_said = facts.correct != Outcome::kUnknown;
  item.zero_spread = zero_spread_group;
  item.source = sources.NumberOf(facts.source.In(frame.bytes()));
  items.SetPriority(slot, facts.priority);
  store.Put(&item.place, std::move(frame));
  if (cohorts.OfCurrentEpoch(item.cohort)) {
    selector->OnInsert(slot);
    for (const auto& view : views) view->OnInsert(slot, FrameOf(slot).bytes());
  }
  tokens += item.token_count;
  tokens_inserted += item.token_count;
  if (outcome == Outcome::kUnknown) return;
  CountOutcome(&inserted, outcome);
  CountOutcome(&stored, outcome);
}

void Buffer::State::RemoveItem(uint32_t slot, RemoveReason reason) {
  Item& item = items[slot];
  ++removed[static_cast<size_t>(reason)];
  item_draws.ObserveCount(item.draws);
  tokens -= item.token_count;
  if (item.outcome() != Outcome::kUnknown) {
    CountOutcome(&removed_outcomes, item.outcome());
    CountOutcome(&stored, item.outcome(), -1);
  }
  if (ranks() && item.positive) ranking.Erase(slot);
  selector->OnRemove(slot);
  for (const auto& view : views) view->OnRemove(slot);
  cohorts.Remove(item.cohort);
  store.Remove(&item.place);
  items.Remove(slot);
}

void Buffer::State::ReviewPositives() {
  ranking.Clear();
  while (items.positive() > 0 && items.fresh() < options.fresh_capacity()) items.MakeFresh();
  for (uint32_t slot = items.oldest(), next = kNoSlot; slot != items.oldest_fresh(); slot = next) {
    next = items[slot].newer;
    if (ranks())
      ranking.Insert(slot);
    else if (options.retention == RetentionKind::kPositiveBias && items[slot].outcome() != Outcome::kCorrect)
      RemoveItem(slot, RemoveReason::kCapacity);
  }
}

void Buffer::State::Retain() {
  for (;;) {
    const uint32_t oldest_fresh = items.oldest_fresh();
    const Retention::Step step =
        retention.Next({.fresh = items.fresh(),
                        .positive = items.positive(),
                        .bytes = BytesOf(store.frame_bytes(), items.live()),
                        .oldest_fresh_correct = oldest_fresh != kNoSlot && items[oldest_fresh].outcome() == Outcome::kCorrect});
    switch (step) {
      case Retention::Step::kDone:
        // Most likely the next to go: by then its block, cold since its insert, is at hand.
        if (oldest_fresh != kNoSlot) FrameOf(oldest_fresh).Prefetch();
        return;
      case Retention::Step::kMakeFresh:
        items.MakeFresh();
        if (ranks()) ranking.Erase(items.oldest_fresh());
        break;
      case Retention::Step::kMakePositive:
        items.MakePositive();
        if (ranks()) ranking.Insert(oldest_fresh);
        break;
      case Retention::Step::kEvictPositive:
        RemoveItem(FirstPositiveToGo(), RemoveReason::kCapacity);
        break;
      case Retention::Step::kEvictOldestFresh:
        RemoveItem(oldest_fresh, RemoveReason::kCapacity);
        break;
      case Retention::Step::kEvictPositiveForBytes:
        RemoveItem(FirstPositiveToGo(), RemoveReason::kBytes);
        break;
      case Retention::Step::kEvictOldestFreshForBytes:
        RemoveItem(oldest_fresh, RemoveReason::kBytes);
        break;
    }
  }
}

// --- Insert --------------------------------------------------------------------------------------------------------------

std::string Buffer::State::WhyInsertRefused(const InsertRequest& request, ErrorCode* code) const {
  *code = ErrorCode::kInvalidArgument;
  const uint64_t count = request.facts.size();
  if (options.max_insert > 0 && count > options.max_insert)
    return to_string(count) + " trajectories in one request, max_insert of the buffer is " + to_string(options.max_insert);
  uint64_t frame_bytes = 0;
  for (const Frame& frame : request.frames) frame_bytes += frame.size();
  if (const uint64_t bytes = BytesOf(frame_bytes, count); !retention.Fits(count, bytes))
    return retention.WhyTooLarge(count, bytes);
  *code = ErrorCode::kAlreadyExists;
  if (count > 1)
    for (const TrajectoryFacts& facts : request.facts) items.PrefetchId(facts.id);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t slot = items.Find(request.facts[i].id);
    if (slot != kNoSlot)
      return "trajectory " + to_string(i) + " of the request has the trajectory_id of a live item, inserted as number " +
             to_string(items[slot].number);
  }
  return "";
}

namespace {

uint32_t FingerprintOf(std::span<const TrajectoryFacts> facts) {
  uint64_t sum = facts[0].id.low;
  for (const TrajectoryFacts& each : facts.subspan(1)) sum = sum * 0x9e3779b97f4a7c15 + each.id.low;
  return static_cast<uint32_t>(sum >> 32);
}

}  // namespace

Verdict Buffer::Insert(InsertRequest request, InsertResult* result) {
  State& s = *state_;
  const uint64_t count = request.facts.size();
  CHECK(request.frames.size() == count) << request.frames.size() << " frames, " << count << " facts";
  if (count == 0) return Verdict::Failed(ErrorCode::kInvalidArgument, "the request has no trajectories");
  const auto refuse = [&](ErrorCode code, std::string message) {
    s.offered += count;
    s.rejected += count;
    return Verdict::Failed(code, std::move(message));
  };

  *result = {};
  result->level = s.store.level();
  const bool has_receipt = request.writer != Key128{};
  const uint32_t fingerprint = has_receipt ? FingerprintOf(request.facts) : 0;
  if (has_receipt) {
    if (request.sequence == 0)
      return refuse(ErrorCode::kInvalidArgument, "sequence is 0: a writer numbers its requests from 1");
    Receipt receipt;
    switch (s.receipts.Look(request.writer, request.sequence, request.acknowledged_through, &receipt)) {
      case Receipts::Answer::kNew:
        break;
      case Receipts::Answer::kDuplicate:
        if (receipt.count != count || receipt.fingerprint != fingerprint)
          return refuse(ErrorCode::kFailedPrecondition, "sequence " + to_string(request.sequence) +
                                                            " of this writer has inserted other trajectories, from number " +
                                                            to_string(receipt.first_item) + " on: two writers use one id");
        s.offered += count;
        s.duplicate += count;
        result->first_item = receipt.first_item;
        result->count = receipt.count;
        result->duplicate = true;
        result->live = s.items.live();
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

  ErrorCode code;
  std::string refused = s.WhyInsertRefused(request, &code);
  if (!refused.empty()) return refuse(code, std::move(refused));
  const uint64_t available = s.pacing.paces() ? s.Available() : 0;
  if (s.pacing.InsertMustWait(count, available)) return Verdict::Wait(WaitReason::kPacing);

  result->first_item = s.items.next_number();
  result->count = static_cast<uint32_t>(count);
  const bool counted = s.pacing.OnInsert(count, available);
  if (s.options.max_age_ms > 0) s.MarkTime();
  if (count == 1) {
    s.AddItem(request.facts[0], std::move(request.frames[0]), counted, request.facts[0].group != Key128{});
  } else {
    s.FindZeroSpread(request.facts);
    for (size_t i = 0; i < count; ++i)
      s.AddItem(request.facts[i], std::move(request.frames[i]), counted, s.zero_spread[i] != 0);
  }
  s.offered += count;
  s.accepted += count;
  if (has_receipt) s.receipts.Record(request.writer, request.sequence, {result->first_item, result->count, fingerprint});
  if (s.cohorts.expired() > 0) s.EvictStale();
  s.Retain();
  result->live = s.items.live();
  return Verdict::Done();
}

void Buffer::CountRejected(uint64_t trajectories, Key128 writer, uint64_t sequence) {
  state_->offered += trajectories;
  state_->rejected += trajectories;
  Receipt receipt;
  if (writer != Key128{}) state_->receipts.Look(writer, sequence, 0, &receipt);
}

std::string Buffer::WhyInsertWaits(uint32_t count) const { return state_->pacing.WhyInsertWaits(count, state_->Available()); }

// --- The rest ------------------------------------------------------------------------------------------------------------

bool Buffer::Get(std::string_view id, StoredItem* item) const {
  const State& s = *state_;
  const uint32_t slot = s.items.Find(HashId(id));
  if (slot == kNoSlot) return false;
  *item = {s.FrameOf(slot), s.items[slot].number, s.items[slot].draws};
  return true;
}

bool Buffer::Scan(uint64_t after, uint32_t limit, uint64_t max_bytes, std::vector<StoredItem>* items) const {
  State& s = *state_;
  items->clear();
  uint64_t bytes = 0;
  uint32_t slot = s.items.FirstAfter(after), last = kNoSlot;
  for (; slot != kNoSlot && items->size() < limit; slot = s.items[slot].newer) {
    const Frame& frame = s.FrameOf(slot);
    bytes += frame.size();
    if (bytes > max_bytes && !items->empty()) break;  // One item always goes, however large.
    items->push_back({frame, s.items[slot].number, s.items[slot].draws});
    last = slot;
  }
  if (last != kNoSlot && slot != kNoSlot) s.items.RememberPage(s.items[last].number, last);
  return slot != kNoSlot;
}

bool Buffer::Delete(std::string_view id) {
  State& s = *state_;
  const uint32_t slot = s.items.Find(HashId(id));
  if (slot == kNoSlot) return false;
  if (s.items[slot].draws == 0 && s.items[slot].counted) s.pacing.OnDeleteOfUndrawn();
  s.RemoveItem(slot, RemoveReason::kDeleted);
  s.Retain();
  return true;
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
}

}  // namespace replay::server
