#include "server/plans.h"

#include <algorithm>
#include <utility>

#include "schema/limits.h"
#include "server/frame_note.h"
#include "server/requests_archive.h"

namespace replay::server {

using std::to_string;

namespace {

bool IsSameBatch(const SampleRequest& a, const SampleRequest& b) {
  return a.count == b.count && a.world_size == b.world_size && a.max_staleness == b.max_staleness && a.view == b.view &&
         a.parts == b.parts && a.columns == b.columns;
}

}  // namespace

template <typename List>
auto Plans::Look(List& consumers, const std::string& name) {
  return std::find_if(consumers.begin(), consumers.end(), [&name](const Consumer& each) { return each.name == name; });
}

Verdict Plans::Find(const SampleRequest& request, const Plan** plan) const {
  *plan = nullptr;
  const auto consumer = Look(consumers_, request.consumer);
  if (consumer == consumers_.end()) return Verdict::Done();
  const int64_t step = *request.step;
  const auto found =
      std::find_if(consumer->plans.begin(), consumer->plans.end(), [&](const Plan& each) { return each.step == step; });
  const auto key = [&] { return "consumer \"" + request.consumer + "\", step " + to_string(step); };
  if (found == consumer->plans.end()) {
    if (consumer->plans.size() == kKeptPlans && step < consumer->plans.front().step)
      return Verdict::Failed(ErrorCode::kPlanExpired,
                             key() + ": the plans of its newest " + to_string(kKeptPlans) + " steps are kept, from step " +
                                 to_string(consumer->plans.front().step) + " on; another consumer name draws anew");
    return Verdict::Done();
  }
  if (!IsSameBatch(found->arguments, request))
    return Verdict::Failed(ErrorCode::kKeyReused, key() + ": it was drawn with other arguments, count " +
                                                      to_string(found->arguments.count) + " for each of " +
                                                      to_string(found->arguments.world_size) + " ranks");
  *plan = &*found;
  return Verdict::Done();
}

bool Plans::Touch(const std::string& name) {
  const auto consumer = Look(consumers_, name);
  if (consumer == consumers_.end() || consumer == consumers_.begin()) return false;
  consumers_.splice(consumers_.begin(), consumers_, consumer);
  return true;
}

const Plans::Plan* Plans::Keep(const SampleRequest& request, SampleResult&& batch, bool in_parts) {
  auto consumer = Look(consumers_, request.consumer);
  if (consumer == consumers_.end()) {
    if (consumers_.size() == kMaxConsumers) consumers_.pop_back();
    consumer = consumers_.insert(consumers_.begin(), Consumer{.name = request.consumer, .plans = {}});
  }
  std::deque<Plan>& plans = consumer->plans;
  const auto place = std::find_if(plans.begin(), plans.end(), [&](const Plan& each) { return each.step > *request.step; });
  Plan plan{.step = *request.step, .arguments = request, .batch = std::move(batch), .in_parts = in_parts};
  // Not the oldest of five: Find would have refused it.
  const bool drops = plans.size() == kKeptPlans;
  const auto kept = plans.insert(place, std::move(plan));
  const size_t index = static_cast<size_t>(kept - plans.begin()) - (drops ? 1 : 0);
  if (drops) plans.pop_front();
  return &plans[index];
}

void Plans::Deal(const Plan& plan, uint32_t rank, SampleResult* result) {
  result->Clear();
  const SampleResult& batch = plan.batch;
  const uint32_t world_size = plan.arguments.world_size;
  result->step = batch.step;
  result->withheld = batch.withheld;
  // In a buffer with parts those of the request stand there once for each rank.
  const size_t parts = batch.part_counts.size() / (plan.in_parts ? world_size : 1);
  result->part_counts.assign(parts, 0);
  // Likewise, also where no parts were asked for.
  const size_t of_rank = batch.candidates.size() / (plan.in_parts ? world_size : 1);
  const auto candidates = batch.candidates.begin() + static_cast<std::ptrdiff_t>(plan.in_parts ? rank * of_rank : 0);
  result->candidates.assign(candidates, candidates + static_cast<std::ptrdiff_t>(of_rank));
  std::vector<uint32_t> frame_of(batch.frames.size(), UINT32_MAX);
  size_t part = 0;
  uint64_t part_end = batch.part_counts.empty() ? 0 : batch.part_counts[0];
  // Draw by draw, or where groups are drawn, group by group.
  const std::vector<uint32_t>& sizes = batch.unit_sizes;
  size_t next_unit = 0, unit_end = 0;
  bool is_dealt = false;
  for (size_t i = 0; i < batch.draws.size(); ++i) {
    if (i == unit_end) {
      is_dealt = plan.in_parts ? next_unit / plan.arguments.count == rank : next_unit % world_size == rank;
      if (is_dealt && !sizes.empty()) result->unit_sizes.push_back(sizes[next_unit]);
      unit_end += sizes.empty() ? 1 : sizes[next_unit];
      ++next_unit;
    }
    if (!is_dealt) continue;
    DrawnItem& draw = result->draws.emplace_back(batch.draws[i]);
    uint32_t& frame = frame_of[draw.frame];
    if (frame == UINT32_MAX) {
      frame = static_cast<uint32_t>(result->frames.size());
      result->frames.push_back(batch.frames[draw.frame]);
      result->payload_bytes += result->frames.back().size();
    }
    draw.frame = frame;
    if (batch.part_counts.empty()) continue;
    while (i >= part_end) part_end += batch.part_counts[++part];
    ++result->part_counts[part % parts];
  }
  for (const ColumnOf& each : batch.columns) {
    if (frame_of[each.frame] == UINT32_MAX) continue;
    result->columns.push_back({frame_of[each.frame], each.column});
    result->payload_bytes += each.column.size();
  }
}

void Plans::Spill(uint64_t written) {
  const auto spill = [written](Frame& frame) {
    if (!frame.is_absent() && frame.number() <= written) frame = MakeAbsent(frame);
  };
  for (Consumer& consumer : consumers_) {
    for (Plan& plan : consumer.plans) {
      for (Frame& frame : plan.batch.frames) spill(frame);
      for (ColumnOf& each : plan.batch.columns) spill(each.column);
    }
  }
}

void Plans::Plan::Persist(Archive& archive) { archive(step, arguments, batch, in_parts); }

void Plans::Persist(Archive& archive) { archive(consumers_); }

uint64_t Plans::size() const {
  uint64_t plans = 0;
  for (const Consumer& consumer : consumers_) plans += consumer.plans.size();
  return plans;
}

uint64_t Plans::memory_bytes() const {
  uint64_t bytes = 0;
  for (const Consumer& consumer : consumers_) {
    bytes += sizeof(Consumer);
    for (const Plan& plan : consumer.plans)
      bytes += sizeof(Plan) + plan.batch.draws.capacity() * sizeof(DrawnItem) + plan.batch.frames.capacity() * sizeof(Frame) +
               plan.batch.columns.capacity() * sizeof(ColumnOf);
  }
  return bytes;
}

}  // namespace replay::server
