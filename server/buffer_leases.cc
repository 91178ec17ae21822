// What a Buffer holds back: units under a lease, and the members of groups that are not complete.

#include <algorithm>
#include <utility>

#include "server/buffer_state.h"
#include "server/requests_archive.h"

namespace replay::server {

using std::to_string;

namespace {

constexpr int64_t kMaxAdmitStaleness = 1'000'000;  // gradient steps; with the largest batch the product fits 64 bits

}  // namespace

// --- Leases --------------------------------------------------------------------------------------------------------------

uint64_t Buffer::State::Hold(const std::vector<uint32_t>& drawn_units, uint64_t holder) {
  std::vector<Leases::Unit> list;
  list.reserve(drawn_units.size());
  for (const uint32_t unit : drawn_units) {
    Item& row = units[unit];
    row.held = 1;
    Exit(unit);
    unit_cohorts.Hold(row.cohort);
    const uint32_t first = by_group() ? groups.first(unit) : unit;
    list.push_back({unit, row.number, items[first].number, by_group() ? groups.count(unit) : 1});
  }
  held += list.size();
  return leases.Open(holder, now_ms + options.lease_ms, std::move(list));
}

uint32_t Buffer::State::EndLease(const std::vector<Leases::Unit>& ended, bool used) {
  uint32_t trajectories = 0;
  for (const Leases::Unit& was : ended) {
    Item& row = units[was.slot];
    if (row.number != was.number) continue;  // has left meanwhile
    trajectories += was.count;
    if (!used) TakeDrawBack(was.slot);
    if (options.max_draws > 0 && row.draws >= options.max_draws) {
      RemoveUnit(was.slot, RemoveReason::kMaxDraws);
      continue;
    }
    row.held = 0;
    --held;
    unit_cohorts.Unhold(row.cohort);
    if (unit_cohorts.OfCurrentEpoch(row.cohort)) Enter(was.slot);
  }
  if (!used && trajectories > 0) pacing.OnDraw(0, trajectories);
  if (unit_cohorts.expired() > 0) EvictStale();
  Retain();
  return trajectories;
}

void Buffer::State::TakeDrawBack(uint32_t unit) {
  --units[unit].draws;
  if (by_group()) groups.ForEach(unit, [this](uint32_t member) { --items[member].draws; });
}

Verdict Buffer::Acknowledge(const AcknowledgeRequest& request, uint32_t* count) {
  State& s = *state_;
  *count = 0;
  if (request.lease == 0) return Verdict::Failed(ErrorCode::kInvalidArgument, "lease is 0: it is that of a SampleReply");
  const std::vector<Leases::Unit> ended = s.leases.Close(request.lease, request.items);
  if (ended.empty())
    return Verdict::Failed(ErrorCode::kNotFound,
                           "lease " + to_string(request.lease) + (request.items.empty() ? "" : " with these items") +
                               " is not open: it has been acknowledged, has expired, or its connection has "
                               "ended");
  *count = s.EndLease(ended, /*used=*/!request.give_back);
  s.Note(Operation::kAcknowledge, request);
  return Verdict::Done();
}

bool Buffer::EndLeasesOf(uint64_t holder) {
  State& s = *state_;
  const std::vector<Leases::Unit> ended = s.leases.CloseOf(holder);
  if (ended.empty()) return false;  // as of nearly every connection
  s.EndLease(ended, /*used=*/false);
  s.Note(Operation::kEndLeases, holder);
  return true;
}

void Buffer::EndAllLeases() {
  State& s = *state_;
  const std::vector<Leases::Unit> ended = s.leases.CloseAll();
  if (!ended.empty()) s.EndLease(ended, /*used=*/false);
  s.Note(Operation::kEndAllLeases);
}

// --- Reserved groups -----------------------------------------------------------------------------------------------------

std::string Buffer::State::WhyReserveRefused(const ReserveRequest& request) const {
  const uint64_t most = std::min<uint64_t>(options.max_insert > 0 ? options.max_insert : kMaxTrajectoriesPerInsert,
                                           by_group() ? kMaxTrajectoriesPerInsert : options.fresh_capacity());
  if (request.size == 0 || request.size > most)
    return "size is " + to_string(request.size) + ": it must be 1 to " + to_string(most) +
           ", the least of max_insert and what the buffer keeps";
  for (const auto& [field, value] : {std::pair("lease", request.lease_ms), std::pair("deadline", request.deadline_ms)})
    if (value < 100 || value > kMaxLeaseMs)
      return std::string(field) + " is " + to_string(value) + " ms: it must be 100 to " + to_string(kMaxLeaseMs);
  return "";
}

Verdict Buffer::Reserve(const ReserveRequest& request, ReserveResult* result, bool behind_others) {
  State& s = *state_;
  *result = {};
  const Key128 key = HashId(request.group_id);
  Reservations::Group* group = s.reservations.Find(key);
  const auto group_is = [&] { return "group \"" + request.group_id + "\" is "; };
  if (request.action != ReserveRequest::Action::kReserve) {
    if (group == nullptr)
      return Verdict::Failed(ErrorCode::kNotFound,
                             group_is() + "not reserved: it is complete, was dropped, or has never been reserved");
    result->size = group->size;
    result->present = static_cast<uint32_t>(group->members.size());
    if (request.action == ReserveRequest::Action::kDrop)
      s.DropReserved(group);
    else
      result->first_item = s.CommitReserved(group);
    s.Retain();
    s.Note(Operation::kReserve, request);
    return Verdict::Done();
  }
  if (s.options.closed) return Verdict::Failed(ErrorCode::kClosed, s.ClosedMessage());
  if (std::string refused = s.WhyReserveRefused(request); !refused.empty())
    return Verdict::Failed(ErrorCode::kInvalidArgument, std::move(refused));
  if (group == nullptr) {
    if (s.reservations.size() >= kMaxReservedGroups)
      return Verdict::Failed(ErrorCode::kResourceExhausted,
                             to_string(s.reservations.size()) + " groups are reserved: no more are allowed");
    if (request.batch > 0) {
      AdmitResult admission;
      const Verdict admitted = Admit({.count = request.size, .batch = request.batch}, &admission, behind_others);
      if (!admitted.done()) return admitted;
    }
    group = s.reservations.Add({.key = key,
                                .id = request.group_id,
                                .size = request.size,
                                .missing = request.missing,
                                .lease_ms = request.lease_ms,
                                .deadline_ms = s.now_ms + request.deadline_ms});
  } else if (group->size != request.size || group->missing != request.missing) {
    return Verdict::Failed(ErrorCode::kAlreadyExists, group_is() + "reserved with size " + to_string(group->size) +
                                                          ", and with another size or policy now: a repeated request renews it "
                                                          "only with the same");
  }
  group->expires_ms = s.now_ms + group->lease_ms;
  result->size = group->size;
  result->present = static_cast<uint32_t>(group->members.size());
  s.Note(Operation::kReserve, request);
  return Verdict::Done();
}

bool Buffer::HoldsReservation() const { return state_->reservations.AnyHeld(state_->now_ms); }

void Buffer::State::DropReserved(Reservations::Group* group) {
  const uint64_t dropped = reservations.Take(group).size();
  rejected += dropped;
  dropped_members += dropped;
}

uint64_t Buffer::State::CommitReserved(Reservations::Group* group) {
  std::vector<Reservations::Member> members = reservations.Take(group);
  if (members.empty()) return 0;
  std::vector<TrajectoryFacts> facts;
  std::vector<Frame> frames;
  std::vector<ColumnOf> of_all;
  for (Reservations::Member& member : members) {
    for (Frame& column : member.columns) of_all.push_back({static_cast<uint32_t>(frames.size()), std::move(column)});
    facts.push_back(member.facts);
    frames.push_back(std::move(member.frame));
  }
  const uint64_t first = items.next_number();
  const uint64_t available = pacing.paces() ? Available() : 0;
  if (CountStored(facts) == 0) {
    rejected += facts.size();
    zero_spread_refused += facts.size();
    return 0;
  }
  if (by_group()) ListGroups(facts);
  AddAll(facts, frames, of_all, pacing.OnInsert(facts.size(), available));
  accepted += facts.size();
  if (unit_cohorts.expired() > 0) EvictStale();  // They may have waited long.
  return first;
}

bool Buffer::State::EndReservations() {
  bool ended = false;
  while (Reservations::Group* group = reservations.NextOver(now_ms)) {
    ended = true;
    ++expired_groups;
    if (group->missing == MissingMembers::kDrop)
      DropReserved(group);
    else
      CommitReserved(group);
  }
  return ended;
}

std::string Buffer::State::WhyPartialRefused(const InsertRequest& request, ErrorCode* code) {
  *code = ErrorCode::kInvalidArgument;
  if (by_group())
    if (std::string refused = WhyGroupsRefused(request.facts); !refused.empty()) return refused;
  *code = ErrorCode::kFailedPrecondition;
  uint64_t bytes = 0;
  std::unordered_map<Reservations::Group*, uint32_t> arriving;
  for (size_t i = 0; i < request.facts.size(); ++i) {
    const TrajectoryFacts& facts = request.facts[i];
    const std::string at = "trajectories[" + to_string(i) + "]: ";
    Reservations::Group* const group = facts.group == Key128{} ? nullptr : reservations.Find(facts.group);
    if (group == nullptr)
      return at + "its group is not reserved: with partial, ReserveGroup comes first and has neither ended nor been completed";
    if (facts.group_size != group->size)
      return at + "group_size is " + to_string(facts.group_size) + ": group \"" + group->id + "\" was reserved with " +
             to_string(group->size);
    for (const Reservations::Member& member : group->members) {
      if (member.facts.index_in_group == facts.index_in_group)
        return at + "index_in_group is " + to_string(facts.index_in_group) + ": group \"" + group->id + "\" has that member";
      if (by_group() && (member.facts.run != facts.run || member.facts.epoch != facts.epoch))
        return at + "run_id or epoch is not that of the other members of group \"" + group->id +
               "\": where the unit is the group, its members are of one run and epoch";
    }
    if (items.Find(facts.id) != kNoSlot || reservations.Holds(facts.id)) {
      *code = ErrorCode::kAlreadyExists;
      return at + "its trajectory_id is that of a live item or of another member";
    }
    ++arriving[group];
    bytes += request.frames[i].size();
  }
  for (const ColumnOf& each : request.columns) bytes += each.column.size() + Frame::kOverheadBytes;
  if (std::string why = columns.WhyRefused(request.columns); !why.empty()) return why;
  const uint64_t pending = BytesOf(reservations.frame_bytes() + bytes, reservations.pending() + request.facts.size());
  if (options.capacity_bytes > 0 && pending > options.capacity_bytes / 2) {
    *code = ErrorCode::kResourceExhausted;
    return "members of incomplete groups would have " + to_string(pending) + " bytes: at most half of capacity_bytes, " +
           to_string(options.capacity_bytes / 2) + ", may wait for their groups";
  }
  completed.clear();
  for (const auto& [group, count] : arriving)
    if (group->members.size() + count == group->size) completed.push_back(group);
  std::sort(completed.begin(), completed.end(), [](auto* a, auto* b) { return a->id < b->id; });
  return "";
}

bool Buffer::State::WillBeRefused(const Reservations::Group& group, std::span<const TrajectoryFacts> arriving) const {
  if (options.zero_spread == ZeroSpread::kKeep) return false;
  std::vector<float> rewards;
  for (const Reservations::Member& member : group.members) rewards.push_back(member.facts.reward);
  for (const TrajectoryFacts& facts : arriving)
    if (facts.group == group.key) rewards.push_back(facts.reward);
  return std::all_of(rewards.begin(), rewards.end(), [&](float reward) { return reward == rewards[0]; });
}

Verdict Buffer::State::InsertMembers(const InsertRequest& request, InsertResult* result) {
  uint64_t completing = 0;
  for (const Reservations::Group* group : completed) completing += WillBeRefused(*group, request.facts) ? 0 : group->size;
  if (completing > 0 && pacing.InsertMustWait(completing, pacing.paces() ? Available() : 0))
    return Verdict::Wait(WaitReason::kPacing);
  BeginNote(request);
  auto next = request.columns.begin();
  for (size_t i = 0; i < request.facts.size(); ++i) {
    Reservations::Group* const group = reservations.Find(request.facts[i].group);
    std::vector<Frame> own;
    for (; next != request.columns.end() && next->frame == i; ++next) own.push_back(std::move(next->column));
    reservations.AddMember(group, request.facts[i], std::move(request.frames[i]), std::move(own));
    group->expires_ms = now_ms + group->lease_ms;
  }
  // Only now: a group is also complete if several of its members came together.
  for (const TrajectoryFacts& facts : request.facts) {
    const Reservations::Group* const group = reservations.Find(facts.group);
    result->pending |= group->members.size() < group->size;
  }
  for (Reservations::Group* group : completed) {
    const Key128 key = group->key;
    const uint64_t first = CommitReserved(group);
    if (first == 0)
      for (const TrajectoryFacts& facts : request.facts) result->refused += facts.group == key;
    if (result->first_item == 0) result->first_item = first;
  }
  result->count = static_cast<uint32_t>(request.facts.size() - result->refused);
  if (result->pending) result->first_item = 0;
  return Verdict::Done();
}

// --- Admission -----------------------------------------------------------------------------------------------------------

Verdict Buffer::Admit(const AdmitRequest& request, AdmitResult* result, bool behind_others) const {
  const State& s = *state_;
  const std::optional<int64_t> max_staleness = request.max_staleness ? request.max_staleness : s.options.max_staleness;
  if (request.batch == 0) return Verdict::Failed(ErrorCode::kInvalidArgument, "batch is 0: it must be at least 1");
  if (!max_staleness)
    return Verdict::Failed(ErrorCode::kInvalidArgument,
                           "max_staleness is missing: neither the request nor the buffer has one, so everything is admitted");
  if (*max_staleness < 0 || *max_staleness > kMaxAdmitStaleness)
    return Verdict::Failed(ErrorCode::kInvalidArgument, "max_staleness is " + to_string(*max_staleness) + ": it must be 0 to " +
                                                            to_string(kMaxAdmitStaleness));
  if (s.options.closed) return Verdict::Failed(ErrorCode::kClosed, s.ClosedMessage());
  result->live = s.items.live();
  result->reserved = s.reservations.announced();
  const int64_t allowed = (*max_staleness + 1) * request.batch;
  result->credits = allowed - static_cast<int64_t>(result->live + result->reserved);
  if (request.count > allowed)
    return Verdict::Failed(ErrorCode::kInvalidArgument, "count is " + to_string(request.count) + ": at most " +
                                                            to_string(allowed) +
                                                            " = (max_staleness + 1) * batch are ever "
                                                            "admitted");
  const bool waits = request.count > 0 && (behind_others || result->credits < request.count);
  return waits ? Verdict::Wait(WaitReason::kStaleness) : Verdict::Done();
}

}  // namespace replay::server
