// Buffer::Sample: refuse or wait, pick, fetch, record.

#include <algorithm>
#include <array>
#include <utility>

#include "server/buffer_state.h"

namespace replay::server {

using std::to_string;

namespace {

// "" or that the parts of a composed batch are not as many draws as it says.
std::string WhyPartsDisagree(const SampleRequest& request) {
  uint64_t sum = 0;
  for (const SamplePart& part : request.parts) sum += part.count;
  if (request.parts.empty() || sum == request.count) return "";
  return "count is " + to_string(request.count) + ": the parts have " + to_string(sum);
}

}  // namespace

void SampleResult::Clear() {
  draws.clear();
  frames.clear();
  columns.clear();
  part_counts.clear();
  step = 0;
  withheld = 0;
  payload_bytes = 0;
  planned = false;
  unit_sizes.clear();
  lease = 0;
}

std::string Buffer::State::WhySampleRefused(const SampleRequest& request) const {
  if (request.count == 0) return "count is 0: a Sample draws at least 1";
  if (options.max_draws_per_sample > 0 && request.count > options.max_draws_per_sample)
    return "count is " + to_string(request.count) + ", max_draws_per_sample of the buffer is " +
           to_string(options.max_draws_per_sample);
  if (const uint64_t draws = uint64_t{request.count} * largest_group;
      by_group() && options.max_draws_per_sample > 0 && draws > options.max_draws_per_sample)
    return "count is " + to_string(request.count) + " groups of up to " + to_string(largest_group) +
           " trajectories, max_draws_per_sample of the buffer is " + to_string(options.max_draws_per_sample);
  if (request.count > kMaxSampleCount)
    return "count is " + to_string(request.count) + ": at most " + to_string(kMaxSampleCount) + " are allowed";
  if (request.max_staleness && *request.max_staleness < 0)
    return "max_staleness is " + to_string(*request.max_staleness) + ": it must not be negative";
  return "";
}

// "" or what is wrong with the key.
std::string Buffer::State::WhyKeyRefused(const SampleRequest& request) const {
  if (options.lease_ms > 0)
    return "consumer is \"" + request.consumer +
           "\": the buffer has a lease, and what is held cannot be planned for a consumer";
  if (!request.step) return "step is missing: a Sample with a consumer says the step that will use the batch";
  if (request.world_size == 0 || request.world_size > kMaxWorldSize)
    return "world_size is " + to_string(request.world_size) + ": with a consumer it must be 1 to " + to_string(kMaxWorldSize);
  if (request.rank >= request.world_size)
    return "rank is " + to_string(request.rank) + ": it must be below world_size, " + to_string(request.world_size);
  if (std::string error = WhyPartsDisagree(request); !error.empty()) return error;  // before they are multiplied
  const uint64_t total = uint64_t{request.count} * request.world_size;
  const uint64_t most = options.max_draws_per_sample > 0 ? options.max_draws_per_sample : kMaxSampleCount;
  if (total > most)
    return "count is " + to_string(request.count) + " for each of " + to_string(request.world_size) + " ranks: at most " +
           to_string(most) + " draws in all are allowed" + (options.max_draws_per_sample > 0 ? " (max_draws_per_sample)" : "");
  return "";
}

const SampleRequest& Buffer::State::ForAllRanks(const SampleRequest& request) {
  if (request.consumer.empty()) return request;
  keyed_request = request;
  keyed_request.count *= request.world_size;
  for (SamplePart& part : keyed_request.parts) part.count *= request.world_size;
  return keyed_request;
}

StepWindow Buffer::State::WindowOf(const SampleRequest& request) const {
  const int64_t of_buffer = options.max_staleness.value_or(INT64_MAX);
  return {.step = request.step, .max_staleness = std::min(of_buffer, request.max_staleness.value_or(INT64_MAX))};
}

View* Buffer::State::FindView(std::string_view view_name) const {
  const auto found =
      std::find_if(views.begin(), views.end(), [view_name](const auto& view) { return view->options().name == view_name; });
  return found == views.end() ? nullptr : found->get();
}

std::string Buffer::State::Plan(const SampleRequest& request) {
  if (std::string refused = WhySampleRefused(request); !refused.empty()) return refused;
  parts.clear();
  const StepWindow window = WindowOf(request);
  whole = {request.count, false, IsDistinct(options.selector), nullptr, selector.get(), {&unit_cohorts, window, 0, 0}};
  whole.drawable.in_window = unit_cohorts.CountDrawable(window);
  whole.drawable.count = selector->CountDrawable(unit_cohorts, window, whole.drawable.in_window);
  // "" or the error; `at` is "parts[2]." in front of the field.
  const auto add = [&](const std::string& at, uint32_t count, const std::string& view_name, const StepWindow& part_window,
                       bool or_next) -> std::string {
    Part part = whole;
    part.count = count;
    part.or_next = or_next;
    part.drawable.window = part_window;
    if (!view_name.empty()) {
      View* const view = FindView(view_name);
      if (view == nullptr) {
        std::string declared;
        for (const auto& each : views) declared += (declared.empty() ? "" : ", ") + each->options().name;
        return at + "view is \"" + view_name + "\": the buffer declares " + (declared.empty() ? "no view" : "only " + declared);
      }
      part.view = view;
      part.part_selector = &view->selector();
      part.distinct = IsDistinct(view->options().selector);
      part.drawable.in_window = view->CountInWindow(unit_cohorts, part_window);
    } else if (part_window.max_staleness != window.max_staleness) {
      part.drawable.in_window = unit_cohorts.CountDrawable(part_window);
    }
    if (part.view || part_window.max_staleness != window.max_staleness)
      part.drawable.count = part.part_selector->CountDrawable(unit_cohorts, part_window, part.drawable.in_window);
    if (part.distinct && !or_next && count > options.capacity_items)
      return at + "count is " + to_string(count) + ", but selector " +
             std::string(ToString(part.view ? part.view->options().selector : options.selector)) +
             " draws different items and the buffer holds at most " + to_string(options.capacity_items);
    parts.push_back(part);
    return "";
  };
  if (request.parts.empty()) return add("", request.count, request.view, window, false);

  if (!request.view.empty()) return "view is \"" + request.view + "\": with parts each of them names its own";
  if (request.parts.size() > kMaxSampleParts)
    return "parts has " + to_string(request.parts.size()) + " entries: at most " + to_string(kMaxSampleParts) + " are allowed";
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const SamplePart& part = request.parts[i];
    const std::string at = "parts[" + to_string(i) + "].";
    if (part.count == 0) return at + "count is 0: a part draws at least 1";
    if (part.max_staleness && *part.max_staleness < 0)
      return at + "max_staleness is " + to_string(*part.max_staleness) + ": it must not be negative";
    if (part.or_next && i + 1 == request.parts.size()) return at + "or_next is set: there is no part behind it";
    StepWindow part_window = window;
    part_window.max_staleness = std::min(window.max_staleness, part.max_staleness.value_or(INT64_MAX));
    if (std::string error = add(at, part.count, part.view, part_window, part.or_next); !error.empty()) return error;
    // Its passes are noted a batch at a time.
    const SelectorKind kind = parts[i].view ? parts[i].view->options().selector : options.selector;
    for (size_t j = 0; j < i && kind == SelectorKind::kEpoch; ++j)
      if (parts[j].view == parts[i].view)
        return at + "view is \"" + part.view + "\", as that of parts[" + to_string(j) +
               "]: selector epoch draws one part of a batch";
  }
  return WhyPartsDisagree(request);
}

Buffer::State::Shortage Buffer::State::WhatIsShort(const SampleRequest& request) {
  const uint64_t live = units.live() - held, needed_at_all = min_size();
  // Whether it is the members of groups that are not complete which are lacking.
  const auto too_few = [&](uint64_t needed) -> Shortage {
    const uint64_t pending = by_group() ? (reservations.pending() > 0 ? reservations.size() : 0) : reservations.pending();
    return {pending > 0 && live + pending >= needed ? WaitReason::kGroupIncomplete : WaitReason::kMinSize, live, needed};
  };
  if (live < needed_at_all) return too_few(needed_at_all);
  if (pacing.DrawMustWait(uint64_t{request.count} * largest_group, request.given_back)) return {WaitReason::kPacing};
  for (const Part& part : parts)
    if (!part.view && part.distinct && !part.or_next && live < part.count) return too_few(part.count);
  const auto lack = [](const Part& part, uint64_t needed) -> Shortage {
    const Drawable& drawable = part.drawable;
    const bool in_view = !part.view || part.view->members() >= needed;
    if (in_view && drawable.in_window < needed) return {WaitReason::kStaleness, drawable.in_window, needed, &part};
    return {WaitReason::kFilter, drawable.count, needed, &part};
  };
  if (whole.drawable.count < needed_at_all) return lack(whole, needed_at_all);
  uint32_t carried = 0;
  for (Part& part : parts) {
    part.count += std::exchange(carried, 0);
    const uint64_t needed = part.distinct ? part.count : std::min(part.count, 1u);
    if (part.drawable.count >= needed) continue;
    if (!part.or_next) return lack(part, needed);
    const auto taken = static_cast<uint32_t>(part.distinct ? part.drawable.count : 0);
    carried = part.count - taken;
    part.count = taken;
  }
  return {};
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
  if (request.consumer.empty()) return s.SampleAnew(request, result);
  result->Clear();
  if (std::string refused = s.WhyKeyRefused(request); !refused.empty())
    return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  const Plans::Plan* plan = nullptr;
  if (Verdict verdict = s.plans.Find(request, &plan); !verdict.done()) return verdict;
  const bool planned = plan != nullptr;
  if (!planned) {
    SampleResult batch;
    if (Verdict verdict = s.SampleAnew(s.ForAllRanks(request), &batch); !verdict.done()) return verdict;
    plan = s.plans.Keep(request, std::move(batch));
  }
  Plans::Deal(*plan, request.rank, result);
  result->planned = planned;
  return Verdict::Done();
}

Verdict Buffer::State::SampleAnew(const SampleRequest& request, SampleResult* result) {
  result->Clear();
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
    if (parts[i].count > 0) parts[i].part_selector->Commit(parts.size() == 1 ? picks : part_picks[i]);
  }
  const std::vector<uint32_t>& drawn_units = by_group() ? batch_units : batch_slots;
  selector->OnDrawn(drawn_units);
  for (const auto& view : views) view->OnDrawn(drawn_units);
  starving = false;
  pacing.OnDraw(drawn_picks.slots.size(), request.given_back);
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

bool Buffer::State::IsPlannedOrRefused(const SampleRequest& request) {
  if (request.consumer.empty()) return false;
  const Plans::Plan* plan = nullptr;
  return !WhyKeyRefused(request).empty() || !plans.Find(request, &plan).done() || plan != nullptr;
}

WaitReason Buffer::WhatSampleWaitsFor(const SampleRequest& asked) const {
  State& s = *state_;
  if (s.IsPlannedOrRefused(asked)) return WaitReason::kNone;
  const SampleRequest& request = s.ForAllRanks(asked);
  return s.Plan(request).empty() ? s.WhatIsShort(request).reason : WaitReason::kNone;
}

std::string Buffer::WhySampleWaits(const SampleRequest& asked) const {
  State& s = *state_;
  if (s.IsPlannedOrRefused(asked)) return "";
  const SampleRequest& request = s.ForAllRanks(asked);
  return s.Plan(request).empty() ? s.WhyShort(request, s.WhatIsShort(request)) : "";
}

std::string Buffer::State::WhyShort(const SampleRequest& request, const Shortage& shortage) const {
  const std::string counts =
      to_string(shortage.present) + " of " + to_string(shortage.needed) + (by_group() ? " groups " : " items ");
  const std::string are_held = held > 0 ? "; " + to_string(held) + " more are held under leases" : "";
  switch (shortage.reason) {
    case WaitReason::kMinSize:
      return counts + "present" + are_held;
    case WaitReason::kGroupIncomplete:
      return counts + "present; " + to_string(reservations.pending()) + " members wait for the rest of " +
             to_string(reservations.size()) + " reserved groups" + are_held;
    case WaitReason::kPacing:
      return pacing.WhyDrawWaits(uint64_t{request.count} * largest_group, request.given_back);
    case WaitReason::kStaleness: {
      const Drawable& drawable = shortage.part->drawable;
      const View* const view = shortage.part->view;
      std::string others = to_string((view ? view->members() : units.live() - held) - drawable.in_window) +
                           " are newer than step " + to_string(request.step ? *request.step : unit_cohorts.NewestStep());
      if (drawable.window.max_staleness != INT64_MAX)
        others += ", staler than max_staleness " + to_string(drawable.window.max_staleness);
      return counts + (view ? "of view " + view->options().name + " " : "") + "may be drawn; " + others +
             (view ? "" : " or of an older epoch");
    }
    case WaitReason::kFilter: {
      const Drawable& drawable = shortage.part->drawable;
      std::string why = counts;
      if (shortage.part->view) why += "of view " + shortage.part->view->options().name + " ";
      why += "may be drawn";
      if (drawable.in_window > drawable.count)
        why += "; " + to_string(drawable.in_window - drawable.count) + " have priority 0";
      return why;
    }
    default:
      return "";
  }
}

}  // namespace replay::server
