// What a Sample asks of a Buffer: whether it can ever be met, from what it draws, and what it waits for.

#include <algorithm>
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
  if (in_parts() && (request.world_size != options.parts || request.rank >= options.parts))
    return "rank is " + to_string(request.rank) + " and world_size " + to_string(request.world_size) +
           ": the buffer has parts = " + to_string(options.parts) + ", so world_size must be that and rank below it";
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

View* Buffer::State::FindView(std::string_view view_name, uint32_t rank) const {
  const auto of_rank = in_parts() ? ViewsOfRank(rank) : std::span(views);
  if (view_name.empty()) return in_parts() ? of_rank[0].get() : nullptr;
  const auto found = std::find_if(options.views.begin(), options.views.end(),
                                  [view_name](const ViewOptions& view) { return view.name == view_name; });
  if (found == options.views.end()) return nullptr;
  return of_rank[static_cast<size_t>(found - options.views.begin()) + (in_parts() ? 1 : 0)].get();
}

std::string Buffer::State::Plan(const SampleRequest& request) {
  if (std::string refused = WhySampleRefused(request); !refused.empty()) return refused;
  parts.clear();
  const StepWindow window = WindowOf(request);
  whole = {request.count, false, IsDistinct(options.selector), nullptr, selector.get(), {&unit_cohorts, window, 0, 0}};
  whole.drawable.in_window = unit_cohorts.CountDrawable(window);
  whole.drawable.count = selector->CountDrawable(unit_cohorts, window, whole.drawable.in_window);
  // With a key and parts each rank draws from its own; `count` is of all ranks then.
  const uint32_t ranks = in_parts() && !request.consumer.empty() ? options.parts : 1;
  // "" or the error; `at` is "parts[2]." in front of the field.
  const auto add = [&](const std::string& at, uint32_t count, const std::string& view_name, const StepWindow& part_window,
                       bool or_next, uint32_t rank) -> std::string {
    Part part = whole;
    part.count = count / ranks;
    part.or_next = or_next;
    part.drawable.window = part_window;
    View* const view = FindView(view_name, rank);
    if (view == nullptr && !view_name.empty()) {
      std::string declared;
      for (const ViewOptions& each : options.views) declared += (declared.empty() ? "" : ", ") + each.name;
      return at + "view is \"" + view_name + "\": the buffer declares " + (declared.empty() ? "no view" : "only " + declared);
    }
    if (view != nullptr) {
      part.view = view;
      part.part_selector = &view->selector();
      part.distinct = IsDistinct(view->options().selector);
      part.drawable.in_window = view->CountInWindow(unit_cohorts, part_window);
    } else if (part_window != window) {
      part.drawable.in_window = unit_cohorts.CountDrawable(part_window);
    }
    if (part.view || part_window != window)
      part.drawable.count = part.part_selector->CountDrawable(unit_cohorts, part_window, part.drawable.in_window);
    if (part.distinct && !or_next && part.count > options.capacity_items)
      return at + "count is " + to_string(part.count) + ", but selector " +
             std::string(ToString(part.view ? part.view->options().selector : options.selector)) +
             " draws different items and the buffer holds at most " + to_string(options.capacity_items);
    parts.push_back(part);
    return "";
  };
  const uint32_t first_rank = ranks == 1 ? request.rank : 0;
  for (uint32_t rank = first_rank; request.parts.empty() && rank < first_rank + ranks; ++rank)
    if (std::string error = add("", request.count, request.view, window, false, rank); !error.empty()) return error;
  if (request.parts.empty()) return "";

  if (!request.view.empty()) return "view is \"" + request.view + "\": with parts each of them names its own";
  if (request.parts.size() > kMaxSampleParts)
    return "parts has " + to_string(request.parts.size()) + " entries: at most " + to_string(kMaxSampleParts) + " are allowed";
  const size_t count = request.parts.size();
  const auto place = [&](size_t i) {
    return "parts[" + to_string(request.part_places.empty() ? i : request.part_places[i]) + "]";
  };
  for (size_t at_rank = 0; at_rank < ranks * count; ++at_rank) {
    const size_t i = at_rank % count, of_rank = at_rank - i;
    const SamplePart& part = request.parts[i];
    const std::string at = place(i) + ".";
    if (part.count == 0) return at + "count is 0: a part draws at least 1";
    if (part.max_staleness && *part.max_staleness < 0)
      return at + "max_staleness is " + to_string(*part.max_staleness) + ": it must not be negative";
    if (part.min_staleness < 0) return at + "min_staleness is " + to_string(part.min_staleness) + ": it must not be negative";
    if (part.or_next && i + 1 == count) return at + "or_next is set: there is no part behind it";
    StepWindow part_window = window;
    part_window.max_staleness = std::min(window.max_staleness, part.max_staleness.value_or(INT64_MAX));
    part_window.min_staleness = part.min_staleness;
    if (part.min_staleness > part_window.max_staleness)
      return at + "min_staleness is " + to_string(part.min_staleness) +
             ": nothing could be drawn, since max_staleness of the part, the Sample or the buffer is " +
             to_string(part_window.max_staleness);
    const uint32_t rank = first_rank + static_cast<uint32_t>(at_rank / count);
    if (std::string error = add(at, part.count, part.view, part_window, part.or_next, rank); !error.empty()) return error;
    // Its passes are noted a batch at a time.
    const SelectorKind kind = parts[at_rank].view ? parts[at_rank].view->options().selector : options.selector;
    for (size_t j = 0; j < i && kind == SelectorKind::kEpoch; ++j)
      if (parts[of_rank + j].view == parts[at_rank].view)
        return at + "view is \"" + part.view + "\", as that of " + place(j) + ": selector epoch draws one part of a batch";
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

bool Buffer::State::IsPlannedOrRefused(const SampleRequest& request) {
  if (request.consumer.empty()) return false;
  const Plans::Plan* plan = nullptr;
  return !WhyKeyRefused(request).empty() || !plans.Find(request, &plan).done() || plan != nullptr;
}

std::string Buffer::WhySampleRefused(const SampleRequest& asked) const {
  State& s = *state_;
  if (s.IsPlannedOrRefused(asked)) return s.WhyKeyRefused(asked);
  return s.Plan(s.ForAllRanks(asked));
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
      if (drawable.window.min_staleness > 0)
        others += ", fresher than min_staleness " + to_string(drawable.window.min_staleness);
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
