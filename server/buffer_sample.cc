// Buffer::Sample: refuse or wait, pick, fetch, record.

#include <algorithm>
#include <array>
#include <utility>

#include "server/buffer_state.h"

namespace replay::server {

using std::to_string;

void SampleResult::Clear() {
  draws.clear();
  frames.clear();
  step = 0;
  withheld = 0;
  payload_bytes = 0;
}

std::string Buffer::State::WhySampleRefused(const SampleRequest& request) const {
  if (request.count == 0) return "count is 0: a Sample draws at least 1";
  if (options.max_draws_per_sample > 0 && request.count > options.max_draws_per_sample)
    return "count is " + to_string(request.count) + ", max_draws_per_sample of the buffer is " +
           to_string(options.max_draws_per_sample);
  if (request.count > kMaxSampleCount)
    return "count is " + to_string(request.count) + ": at most " + to_string(kMaxSampleCount) + " are allowed";
  if (selector->distinct() && request.count > options.capacity_items)
    return "count is " + to_string(request.count) + ", but selector " + std::string(ToString(options.selector)) +
           " draws different items and the buffer holds at most " + to_string(options.capacity_items);
  return "";
}

WaitReason Buffer::State::WhatSampleWaitsFor(const SampleRequest& request, uint64_t drawable) const {
  if (items.live() < pacing.min_size()) return WaitReason::kMinSize;
  if (pacing.DrawMustWait(request.count, request.given_back)) return WaitReason::kPacing;
  if (selector->distinct() && items.live() < request.count) return WaitReason::kMinSize;
  if (drawable < pacing.min_size() || (selector->distinct() && drawable < request.count)) return WaitReason::kStaleness;
  return WaitReason::kNone;
}

Verdict Buffer::Sample(const SampleRequest& request, SampleResult* result) {
  State& s = *state_;
  result->Clear();
  std::string refused = s.WhySampleRefused(request);
  if (!refused.empty()) return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  const uint64_t drawable = s.cohorts.CountDrawable(request.step);
  s.withheld = s.items.live() - drawable;
  const WaitReason reason = s.WhatSampleWaitsFor(request, drawable);
  if (reason != WaitReason::kNone) {
    s.starving |= reason == WaitReason::kStaleness;
    return Verdict::Wait(reason);
  }

  s.selector->Draw(request.count, {&s.cohorts, request.step, drawable}, &s.random, &s.picks);
  result->payload_bytes = s.PlaceFrames();
  if (result->payload_bytes > kMaxReplyPayloadBytes) {
    std::string message = "the " + to_string(s.batch_slots.size()) + " frames drawn have " + to_string(result->payload_bytes) +
                          " bytes, a reply carries at most " + to_string(kMaxReplyPayloadBytes) + ": draw fewer at once";
    result->Clear();
    return Verdict::Failed(ErrorCode::kResourceExhausted, std::move(message));
  }
  result->step = request.step ? *request.step : s.cohorts.NewestStep();
  result->withheld = s.withheld;
  s.withheld_total += s.withheld;
  s.RecordDraws(request, drawable, result);
  s.starving = false;
  s.pacing.OnDraw(request.count, request.given_back);
  ++s.samples;
  s.consumer_step = result->step;
  if (s.options.max_draws > 0) s.RemoveDrawnOut(s.batch_slots);
  return Verdict::Done();
}

uint64_t Buffer::State::PlaceFrames() {
  batch_slots.assign(picks.size(), kNoSlot);
  uint32_t distinct = 0;
  uint64_t bytes = 0;
  const size_t count = picks.size();
  for (size_t i = 0; i < std::min(count, kPrefetchAhead); ++i) items.Prefetch(picks[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) items.Prefetch(picks[i + kPrefetchAhead]);
    const uint32_t slot = picks[i];
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

void Buffer::State::RecordDraws(const SampleRequest& request, uint64_t drawable, SampleResult* result) {
  const double probability = selector->Probability(drawable);
  result->draws.reserve(picks.size());
  uint64_t tokens_of_batch = 0;
  std::array<int64_t, 3> outcomes{};  // by Outcome
  for (uint32_t slot : picks) {
    Item& item = items[slot];
    store.Find(item.place).Prefetch();
    const Cohorts::Steps steps = cohorts.StepsOf(item.cohort, request.step);
    DrawnItem& draw = result->draws.emplace_back(DrawnItem{.frame = item.frame_index,
                                                           .draw_count = item.draws + 1,
                                                           .probability = probability,
                                                           .staleness = steps.staleness(),
                                                           .steps_since_last_use = -1,
                                                           .item = item.number});
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
  drawn += picks.size();
  tokens_drawn += tokens_of_batch;
  for (const Outcome outcome : {Outcome::kIncorrect, Outcome::kCorrect})
    CountOutcome(&sampled, outcome, outcomes[static_cast<size_t>(outcome)]);
}

void Buffer::State::RemoveDrawnOut(const std::vector<uint32_t>& slots) {
  for (uint32_t slot : slots)
    if (items[slot].draws >= options.max_draws) RemoveItem(slot, RemoveReason::kMaxDraws);
  Retain();
}

WaitReason Buffer::WhatSampleWaitsFor(const SampleRequest& request) const {
  return state_->WhatSampleWaitsFor(request, state_->cohorts.CountDrawable(request.step));
}

std::string Buffer::WhySampleWaits(const SampleRequest& request) const {
  State& s = *state_;
  const uint64_t drawable = s.cohorts.CountDrawable(request.step);
  const bool distinct = s.selector->distinct();
  const uint64_t needed = std::max<uint64_t>(s.pacing.min_size(), distinct ? request.count : 1);
  switch (s.WhatSampleWaitsFor(request, drawable)) {
    case WaitReason::kMinSize:
      return to_string(s.items.live()) + " of " + to_string(needed) + " items present";
    case WaitReason::kPacing:
      return s.pacing.WhyDrawWaits(request.count, request.given_back);
    case WaitReason::kStaleness:
      return to_string(drawable) + " of " + to_string(needed) + " items may be drawn; " + to_string(s.items.live() - drawable) +
             " are newer than step " + to_string(request.step ? *request.step : s.cohorts.NewestStep()) +
             " or of an older epoch";
    default:
      return "";
  }
}

}  // namespace replay::server
