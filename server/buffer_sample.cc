// Buffer::Sample: pick, fetch, record. What it refuses and waits for: buffer_plan.cc.

#include <algorithm>
#include <array>
#include <utility>

#include "server/buffer_state.h"
#include "server/requests_archive.h"

namespace replay::server {

using std::to_string;

void SampleResult::Clear() {
  draws.clear();
  frames.clear();
  columns.clear();
  part_counts.clear();
  candidates.clear();
  step = 0;
  withheld = 0;
  payload_bytes = 0;
  planned = false;
  unit_sizes.clear();
  lease = 0;
  given_back = 0;
}

void Buffer::State::DrawParts() {
  if (parts.size() == 1) return parts[0].part_selector->Draw(parts[0].count, parts[0].drawable, &random, &picks);
  picks.slots.clear();
  picks.probabilities.clear();
  part_picks.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    Picks& from = part_picks[i];
    if (parts[i].count == 0) {
      from = {};
      continue;
    }
    parts[i].part_selector->Draw(parts[i].count, parts[i].drawable, &random, &from);
    picks.slots.insert(picks.slots.end(), from.slots.begin(), from.slots.end());
    if (from.probabilities.empty())
      picks.probabilities.resize(picks.slots.size(), from.probability);
    else
      picks.probabilities.insert(picks.probabilities.end(), from.probabilities.begin(), from.probabilities.end());
  }
}

Verdict Buffer::Sample(const SampleRequest& request, SampleResult* result) {
  State& s = *state_;
  if (request.consumer.empty()) return s.SampleAndNote(request, request, result);
  result->Clear();
  if (std::string refused = s.WhyKeyRefused(request); !refused.empty())
    return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  const Plans::Plan* plan = nullptr;
  if (Verdict verdict = s.plans.Find(request, &plan); !verdict.done()) return verdict;
  const bool planned = plan != nullptr;
  if (!planned) {
    SampleResult batch;
    if (Verdict verdict = s.SampleAndNote(s.ForAllRanks(request), request, &batch); !verdict.done()) return verdict;
    s.plans.Touch(request.consumer);
    plan = s.plans.Keep(request, std::move(batch), s.in_parts());
  } else if (s.plans.Touch(request.consumer)) {
    s.Note(Operation::kAskForPlan, request.consumer);
  }
  Plans::Deal(*plan, request.rank, result);
  result->planned = planned;
  return Verdict::Done();
}

Verdict Buffer::State::SampleAndNote(const SampleRequest& request, const SampleRequest& asked, SampleResult* result) {
  if (journal == nullptr) return SampleAnew(request, result);
  const uint64_t withheld_before = withheld;
  const std::optional<StepWindow> window_before = last_window;
  const bool was_starving = starving;
  Verdict verdict = SampleAnew(request, result);
  if (has_drawn)
    Note(Operation::kSample, asked);
  else if (withheld != withheld_before || last_window != window_before || starving != was_starving)
    Note(Operation::kSampleWaits, withheld, last_window, starving);
  return verdict;
}

Verdict Buffer::State::SampleAnew(const SampleRequest& request, SampleResult* result) {
  result->Clear();
  has_drawn = false;
  if (std::string refused = Plan(request); !refused.empty())
    return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  withheld = units.live() - held - whole.drawable.count;
  last_window = whole.drawable.window;
  const Shortage shortage = WhatIsShort(request);
  if (shortage.reason != WaitReason::kNone) {
    // What is held may come back.
    if (options.closed && held == 0)
      return Verdict::Failed(ErrorCode::kClosed, ClosedMessage() + "; " + WhyShort(request, shortage));
    starving |= shortage.reason == WaitReason::kStaleness || shortage.reason == WaitReason::kFilter;
    return Verdict::Wait(shortage.reason);
  }

  DrawParts();
  has_drawn = true;
  const Picks& drawn_picks = by_group() ? ExpandGroups(result) : picks;
  if (drawn_picks.slots.size() > kMaxSampleCount) {
    std::string message = "the " + to_string(picks.slots.size()) + " groups drawn have " + to_string(drawn_picks.slots.size()) +
                          " trajectories, a reply carries at most " + to_string(kMaxSampleCount) + ": draw fewer at once";
    result->Clear();
    return Verdict::Failed(ErrorCode::kResourceExhausted, std::move(message));
  }
  result->payload_bytes = PlaceFrames(drawn_picks);
  if (!request.columns.empty()) result->payload_bytes += PlaceColumns(request, result);
  if (result->columns.size() > kMaxColumnsPerReply) {
    std::string message = "the draws have " + to_string(result->columns.size()) + " columns, a reply carries at most " +
                          to_string(kMaxColumnsPerReply) + ": draw fewer at once";
    result->Clear();
    return Verdict::Failed(ErrorCode::kResourceExhausted, std::move(message));
  }
  if (result->payload_bytes > kMaxReplyPayloadBytes) {
    std::string message = "the " + to_string(batch_slots.size() + result->columns.size()) + " frames drawn have " +
                          to_string(result->payload_bytes) + " bytes, a reply carries at most " +
                          to_string(kMaxReplyPayloadBytes) + ": draw fewer at once";
    result->Clear();
    return Verdict::Failed(ErrorCode::kResourceExhausted, std::move(message));
  }
  result->step = request.step ? *request.step : unit_cohorts.NewestStep();
  result->withheld = withheld;
  withheld_total += withheld;
  RecordDraws(request, drawn_picks, result);
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool composed = !request.parts.empty();
    if (composed) result->part_counts.push_back(by_group() ? part_sizes[i] : parts[i].count);
    result->candidates.push_back(parts[i].drawable.count);
    if (parts[i].count > 0) parts[i].part_selector->Commit(parts.size() == 1 ? picks : part_picks[i]);
  }
  const std::vector<uint32_t>& drawn_units = by_group() ? batch_units : batch_slots;
  selector->OnDrawn(drawn_units);
  const bool of_one_rank = in_parts() && request.consumer.empty();
  for (const auto& view : of_one_rank ? ViewsOfRank(request.rank) : std::span(views)) view->OnDrawn(drawn_units);
  starving = false;
  result->given_back = static_cast<uint32_t>(pacing.OnDraw(drawn_picks.slots.size(), request.given_back));
  ++samples;
  consumer_step = result->step;
  if (options.lease_ms > 0) {
    result->lease = Hold(drawn_units, request.holder);
  } else if (options.max_draws > 0) {
    RemoveDrawnOut(drawn_units);
    Retain();
  }
  return Verdict::Done();
}

const Picks& Buffer::State::ExpandGroups(SampleResult* result) {
  member_picks.slots.clear();
  member_picks.probabilities.clear();
  member_picks.probability = picks.probability;
  part_sizes.assign(parts.size(), 0);
  size_t part = 0;
  uint64_t part_end = parts[0].count;
  for (size_t i = 0; i < picks.slots.size(); ++i) {
    const uint32_t group = picks.slots[i];
    while (i >= part_end) part_end += parts[++part].count;
    groups.ForEach(group, [this](uint32_t member) { member_picks.slots.push_back(member); });
    result->unit_sizes.push_back(groups.count(group));
    part_sizes[part] += groups.count(group);
    if (!picks.probabilities.empty()) member_picks.probabilities.resize(member_picks.slots.size(), picks.probabilities[i]);
  }
  batch_units = picks.slots;
  std::sort(batch_units.begin(), batch_units.end());
  batch_units.erase(std::unique(batch_units.begin(), batch_units.end()), batch_units.end());
  return member_picks;
}

uint64_t Buffer::State::PlaceFrames(const Picks& drawn_picks) {
  const std::vector<uint32_t>& slots = drawn_picks.slots;
  batch_slots.assign(slots.size(), kNoSlot);
  uint32_t distinct = 0;
  uint64_t bytes = 0;
  const size_t count = slots.size();
  for (size_t i = 0; i < std::min(count, kPrefetchAhead); ++i) items.Prefetch(slots[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) items.Prefetch(slots[i + kPrefetchAhead]);
    const uint32_t slot = slots[i];
    Item& item = items[slot];
    // Whatever stands in frame_index from another batch: the item is in this one if the batch says so. One comparison that is
    // nearly always false: whether the index left behind is below `distinct` nobody could predict.
    const uint32_t place = item.frame_index < distinct ? item.frame_index : 0;
    if (batch_slots[place] == slot) continue;
    item.frame_index = distinct;
    batch_slots[distinct++] = slot;
    bytes += store.SizeOf(item.place);
  }
  batch_slots.resize(distinct);
  return bytes;
}

void Buffer::State::RecordDraws(const SampleRequest& request, const Picks& drawn_picks, SampleResult* result) {
  const size_t count = drawn_picks.slots.size();
  result->draws.reserve(count);
  uint64_t tokens_of_batch = 0;
  std::array<int64_t, 3> outcomes{};  // by Outcome
  for (size_t i = 0; i < count; ++i) {
    Item& item = items[drawn_picks.slots[i]];
    store.Find(item.place).Prefetch();
    Cohorts::Steps steps = cohorts.StepsOf(item.cohort, request.step);
    if (by_group())  // Whether nothing was published or not, all members are drawn at the step of their group.
      steps.now = unit_cohorts.StepsOf(units[groups.GroupOf(drawn_picks.slots[i])].cohort, request.step).now;
    DrawnItem& draw = result->draws.emplace_back(
        DrawnItem{.frame = item.frame_index,
                  .draw_count = item.draws + 1,
                  .probability = drawn_picks.probabilities.empty() ? drawn_picks.probability : drawn_picks.probabilities[i],
                  .staleness = steps.staleness(),
                  .steps_since_last_use = -1,
                  .item = item.number,
                  .reward = item.reward,
                  .revision = items.revision(drawn_picks.slots[i]),
                  .advantage = items.advantage(drawn_picks.slots[i])});
    if (item.draws > 0) {
      draw.steps_since_last_use = std::max<int64_t>(0, Cohorts::Steps{steps.now, item.last_use_step}.staleness());
      reuse_gap.ObserveCount(draw.steps_since_last_use);
    }
    staleness.ObserveCount(draw.staleness);
    ++item.draws;
    item.last_use_step = steps.now;
    tokens_of_batch += item.token_count;
    ++outcomes[item.outcome_bits];
  }
  // Last, when the frames' headers have come: each reference is an atomic operation, past which no processor looks ahead.
  result->frames.reserve(batch_slots.size());
  for (uint32_t slot : batch_slots) result->frames.push_back(FrameOf(slot));
  if (by_group()) {
    for (const uint32_t group : batch_units) {
      const Item& first = items[groups.first(group)];
      units[group].draws = first.draws;
      units[group].last_use_step = first.last_use_step;
    }
  }
  drawn += count;
  tokens_drawn += tokens_of_batch;
  for (const Outcome outcome : {Outcome::kIncorrect, Outcome::kCorrect})
    CountOutcome(&sampled, outcome, outcomes[static_cast<size_t>(outcome)]);
}

void Buffer::State::RemoveDrawnOut(const std::vector<uint32_t>& drawn_units) {
  for (const uint32_t unit : drawn_units)
    if (units[unit].draws >= options.max_draws && !units[unit].held) RemoveUnit(unit, RemoveReason::kMaxDraws);
}

void Buffer::CreditDraws(const SampleResult& result) { state_->CreditDraws(result.draws.size(), result.given_back); }

void Buffer::State::CreditDraws(uint64_t draws, uint64_t given_back) {
  pacing.OnDraw(0, draws);
  pacing.OnDraw(given_back, 0);
  Note(Operation::kCredit, draws, given_back);
}

}  // namespace replay::server
