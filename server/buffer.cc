#include "server/buffer.h"

#include <algorithm>
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
      selector(MakeSelector(options, &items)),
      pacing(options),
      receipts(kMaxWriters, kMaxReceiptsPerWriter),
      random(options.seed) {
  cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
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

void Buffer::State::AddItem(const TrajectoryFacts& facts, Frame frame, bool counted) {
  const Outcome outcome = retention.Decide(facts.correct, facts.reward);
  const uint32_t slot = items.Add(facts, outcome);
  Item& item = items[slot];
  item.cohort = cohorts.Add(facts);
  item.counted = counted;
  item.outcome_said = facts.correct != Outcome::kUnknown;
  items.SetPriority(slot, facts.priority);
  store.Put(&item.place, std::move(frame));
  if (cohorts.OfCurrentEpoch(item.cohort)) selector->OnInsert(slot);
  tokens += item.token_count;
  tokens_inserted += item.token_count;
  CountOutcome(&inserted, outcome);
  CountOutcome(&stored, outcome);
}

void Buffer::State::RemoveItem(uint32_t slot, RemoveReason reason) {
  Item& item = items[slot];
  ++removed[static_cast<size_t>(reason)];
  item_draws.ObserveCount(item.draws);
  tokens -= item.token_count;
  CountOutcome(&removed_outcomes, item.outcome());
  CountOutcome(&stored, item.outcome(), -1);
  if (ranks() && item.positive) ranking.erase(RankOf(slot));
  selector->OnRemove(slot);
  cohorts.Remove(item.cohort);
  store.Remove(&item.place);
  items.Remove(slot);
}

void Buffer::State::ReviewPositives() {
  ranking.clear();
  while (items.positive() > 0 && items.fresh() < options.fresh_capacity()) items.MakeFresh();
  for (uint32_t slot = items.oldest(), next = kNoSlot; slot != items.oldest_fresh(); slot = next) {
    next = items[slot].newer;
    if (ranks())
      ranking.insert(RankOf(slot));
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
        if (ranks()) ranking.erase(RankOf(items.oldest_fresh()));
        break;
      case Retention::Step::kMakePositive:
        items.MakePositive();
        if (ranks()) ranking.insert(RankOf(oldest_fresh));
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
  std::string too_large = retention.WhyTooLarge(count, BytesOf(frame_bytes, count));
  if (!too_large.empty()) return too_large;
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
  if (has_receipt) {
    if (request.sequence == 0)
      return refuse(ErrorCode::kInvalidArgument, "sequence is 0: a writer numbers its requests from 1");
    Receipt receipt;
    switch (s.receipts.Look(request.writer, request.sequence, request.acknowledged_through, &receipt)) {
      case Receipts::Answer::kNew:
        break;
      case Receipts::Answer::kDuplicate:
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
  s.MarkTime();
  for (size_t i = 0; i < count; ++i) s.AddItem(request.facts[i], std::move(request.frames[i]), counted);
  s.offered += count;
  s.accepted += count;
  if (has_receipt) s.receipts.Record(request.writer, request.sequence, {result->first_item, result->count});
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

UpdateOutcome Buffer::Update(const ItemUpdate& update, uint32_t* revision) {
  State& s = *state_;
  *revision = 0;
  const uint32_t slot = s.items.Find(HashId(update.id));
  if (slot == kNoSlot) return UpdateOutcome::kNotThere;
  *revision = s.items.revision(slot);
  if (update.revision && *update.revision != *revision) return UpdateOutcome::kOtherRevision;
  *revision = s.items.NextRevision(slot);
  if (update.priority) {
    s.items.SetPriority(slot, *update.priority);
    s.selector->OnPriority(slot);
  }
  if (update.reward || update.correct) s.Rescore(slot, update);
  return UpdateOutcome::kDone;
}

void Buffer::State::Rescore(uint32_t slot, const ItemUpdate& update) {
  Item& item = items[slot];
  const bool ranked = ranks() && item.positive;
  if (ranked) ranking.erase(RankOf(slot));
  item.reward = update.reward.value_or(item.reward);
  const Outcome before = item.outcome();
  if (update.correct) item.outcome_said = *update.correct != Outcome::kUnknown;
  const Outcome said = !item.outcome_said ? Outcome::kUnknown : update.correct.value_or(before);
  const Outcome outcome = retention.Decide(said, item.reward);
  item.outcome_bits = static_cast<uint32_t>(outcome);
  CountOutcome(&stored, before, -1);
  CountOutcome(&ceased, before);
  CountOutcome(&stored, outcome);
  CountOutcome(&became, outcome);
  if (ranked) ranking.insert(RankOf(slot));
  if (item.positive && !ranked && outcome != Outcome::kCorrect) RemoveItem(slot, RemoveReason::kCapacity);
  Retain();
}

void Buffer::State::MarkTime() {
  if (options.max_age_ms == 0) return;
  if (marks.empty() || now_ms >= marks.back().time_ms + options.max_age_ms / 1'000 + 1)
    marks.push_back({items.next_number(), now_ms});
}

bool Buffer::State::EvictAged() {
  // The last mark is of what is inserted until the next.
  uint64_t kept_from = 0;
  while (!marks.empty() && now_ms >= marks.front().time_ms + options.max_age_ms) {
    marks.pop_front();
    kept_from = marks.empty() ? items.next_number() : marks.front().first_number;
  }
  const uint64_t before = items.live();
  while (items.live() > 0 && items[items.oldest()].number < kept_from) RemoveItem(items.oldest(), RemoveReason::kAge);
  return items.live() < before;
}

bool Buffer::State::EvictStale() {
  const uint64_t before = items.live();
  for (uint32_t slot = items.oldest(), next = kNoSlot; cohorts.expired() > 0; slot = next) {
    next = items[slot].newer;
    if (cohorts.IsExpired(items[slot].cohort)) RemoveItem(slot, RemoveReason::kStaleness);
  }
  return items.live() < before;
}

bool Buffer::OnTime(uint64_t now_ms) {
  State& s = *state_;
  s.now_ms = std::max(s.now_ms, now_ms);
  if (s.options.max_age_ms == 0 || !s.EvictAged()) return false;
  s.Retain();
  return true;
}

void Buffer::State::FillSelector() {
  selector = MakeSelector(options, &items);
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer) {
    items[slot].position = kNoPosition;
    if (cohorts.OfCurrentEpoch(items[slot].cohort)) selector->OnInsert(slot);
  }
}

std::string Buffer::Alter(BufferOptions options) {
  State& s = *state_;
  std::string error = CheckOptions(&options);
  if (!error.empty()) return error;
  const BufferOptions before = std::exchange(s.options, options);
  s.retention = Retention(options);
  s.pacing.Alter(options);
  if (options.seed != before.seed) s.random = Random(options.seed);
  s.cohorts.SetMaxStaleness(options.max_staleness.value_or(INT64_MAX));
  if (options.selector != before.selector || options.priority_exponent != before.priority_exponent ||
      options.staleness_decay != before.staleness_decay)
    s.FillSelector();
  if (options.max_draws > 0 && (before.max_draws == 0 || options.max_draws < before.max_draws)) {
    std::vector<uint32_t> all;
    for (uint32_t slot = s.items.oldest(); slot != kNoSlot; slot = s.items[slot].newer) all.push_back(slot);
    s.RemoveDrawnOut(all);
  }
  if (options.evict_staleness != before.evict_staleness) {
    s.cohorts.SetEvictStaleness(options.evict_staleness.value_or(INT64_MAX));
    s.EvictStale();
  }
  if (options.max_age_ms == 0) s.marks.clear();
  // What was inserted before counts as inserted now.
  if (options.max_age_ms > 0 && before.max_age_ms == 0) s.marks = {{0, s.now_ms}};
  if (options.max_age_ms > 0) s.EvictAged();
  if (options.retention != before.retention) s.ReviewPositives();
  s.Retain();
  return "";
}

void Buffer::OnPublish(PolicyVersions::Snapshot versions) {
  State& s = *state_;
  if (s.cohorts.OnPublish(std::move(versions))) s.DropOlderEpochsFromSelector();
  if (s.cohorts.expired() > 0 && s.EvictStale()) s.Retain();
}

void Buffer::State::DropOlderEpochsFromSelector() {
  for (uint32_t slot = items.oldest(); slot != kNoSlot; slot = items[slot].newer)
    if (!cohorts.OfCurrentEpoch(items[slot].cohort)) selector->OnRemove(slot);
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
