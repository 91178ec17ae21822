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
  if (request.max_staleness && *request.max_staleness < 0)
    return "max_staleness is " + to_string(*request.max_staleness) + ": it must not be negative";
  if (IsDistinct(options.selector) && request.count > options.capacity_items)
    return "count is " + to_string(request.count) + ", but selector " + std::string(ToString(options.selector)) +
           " draws different items and the buffer holds at most " + to_string(options.capacity_items);
  return "";
}

StepWindow Buffer::State::WindowOf(const SampleRequest& request) const {
  const int64_t of_buffer = options.max_staleness.value_or(INT64_MAX);
  return {.step = request.step, .max_staleness = std::min(of_buffer, request.max_staleness.value_or(INT64_MAX))};
}

Drawable Buffer::State::DrawableOf(const SampleRequest& request) {
  Drawable drawable{.cohorts = &cohorts, .window = WindowOf(request), .in_window = 0, .count = 0};
  drawable.in_window = cohorts.CountDrawable(drawable.window);
  drawable.count = selector->CountDrawable(cohorts, drawable.window, drawable.in_window);
  return drawable;
}

WaitReason Buffer::State::WhatSampleWaitsFor(const SampleRequest& request, const Drawable& drawable) const {
  if (items.live() < pacing.min_size()) return WaitReason::kMinSize;
  if (pacing.DrawMustWait(request.count, request.given_back)) return WaitReason::kPacing;
  const uint64_t needed = NeededFor(request);
  if (items.live() < needed) return WaitReason::kMinSize;
  if (drawable.in_window < needed) return WaitReason::kStaleness;
  if (drawable.count < needed) return WaitReason::kFilter;
  return WaitReason::kNone;
}

Verdict Buffer::Sample(const SampleRequest& request, SampleResult* result) {
  State& s = *state_;
  result->Clear();
  std::string refused = s.WhySampleRefused(request);
  if (!refused.empty()) return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  const Drawable drawable = s.DrawableOf(request);
  s.withheld = s.items.live() - drawable.count;
  const WaitReason reason = s.WhatSampleWaitsFor(request, drawable);
  if (reason != WaitReason::kNone) {
    s.starving |= reason == WaitReason::kStaleness || reason == WaitReason::kFilter;
    return Verdict::Wait(reason);
  }

  s.selector->Draw(request.count, drawable, &s.random, &s.picks);
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
  s.RecordDraws(request, result);
  s.selector->Commit(s.picks);
  s.starving = false;
  s.pacing.OnDraw(request.count, request.given_back);
  ++s.samples;
  s.consumer_step = result->step;
  if (s.options.max_draws > 0) {
    s.RemoveDrawnOut(s.batch_slots);
    s.Retain();
  }
  return Verdict::Done();
}

uint64_t Buffer::State::PlaceFrames() {
  batch_slots.assign(picks.slots.size(), kNoSlot);
  uint32_t distinct = 0;
  uint64_t bytes = 0;
  const size_t count = picks.slots.size();
  for (size_t i = 0; i < std::min(count, kPrefetchAhead); ++i) items.Prefetch(picks.slots[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) items.Prefetch(picks.slots[i + kPrefetchAhead]);
    const uint32_t slot = picks.slots[i];
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

void Buffer::State::RecordDraws(const SampleRequest& request, SampleResult* result) {
  const size_t count = picks.slots.size();
  result->draws.reserve(count);
  uint64_t tokens_of_batch = 0;
  std::array<int64_t, 3> outcomes{};  // by Outcome
  for (size_t i = 0; i < count; ++i) {
    Item& item = items[picks.slots[i]];
    store.Find(item.place).Prefetch();
    const Cohorts::Steps steps = cohorts.StepsOf(item.cohort, request.step);
    DrawnItem& draw = result->draws.emplace_back(
        DrawnItem{.frame = item.frame_index,
                  .draw_count = item.draws + 1,
                  .probability = picks.probabilities.empty() ? picks.probability : picks.probabilities[i],
                  .staleness = steps.staleness(),
                  .steps_since_last_use = -1,
                  .item = item.number,
                  .reward = item.reward,
                  .revision = items.revision(picks.slots[i])});
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
  drawn += count;
  tokens_drawn += tokens_of_batch;
  for (const Outcome outcome : {Outcome::kIncorrect, Outcome::kCorrect})
    CountOutcome(&sampled, outcome, outcomes[static_cast<size_t>(outcome)]);
}

void Buffer::State::RemoveDrawnOut(const std::vector<uint32_t>& slots) {
  for (uint32_t slot : slots)
    if (items[slot].draws >= options.max_draws) RemoveItem(slot, RemoveReason::kMaxDraws);
}

WaitReason Buffer::WhatSampleWaitsFor(const SampleRequest& request) const {
  return state_->WhatSampleWaitsFor(request, state_->DrawableOf(request));
}

std::string Buffer::WhySampleWaits(const SampleRequest& request) const {
  State& s = *state_;
  const Drawable drawable = s.DrawableOf(request);
  const uint64_t needed = s.NeededFor(request);
  switch (s.WhatSampleWaitsFor(request, drawable)) {
    case WaitReason::kMinSize:
      return to_string(s.items.live()) + " of " + to_string(needed) + " items present";
    case WaitReason::kPacing:
      return s.pacing.WhyDrawWaits(request.count, request.given_back);
    case WaitReason::kStaleness: {
      std::string others = to_string(s.items.live() - drawable.in_window) + " are newer than step " +
                           to_string(request.step ? *request.step : s.cohorts.NewestStep());
      if (drawable.window.max_staleness != INT64_MAX)
        others += ", staler than max_staleness " + to_string(drawable.window.max_staleness);
      return to_string(drawable.in_window) + " of " + to_string(needed) + " items may be drawn; " + others +
             " or of an older epoch";
    }
    case WaitReason::kFilter:
      return to_string(drawable.count) + " of " + to_string(needed) + " items may be drawn; " +
             to_string(drawable.in_window - drawable.count) + " have priority 0";
    default:
      return "";
  }
}

}  // namespace replay::server
