#include "server/policy_versions.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace replay::server {
namespace {

constexpr size_t kPerChunk = 256;

std::pair<uint64_t, uint64_t> Order(const Key128& key) { return {key.high, key.low}; }

std::string Describe(const PolicyVersion& version) {
  return "version " + std::to_string(version.version) + " at step " + std::to_string(version.step) + " of epoch " +
         std::to_string(version.epoch);
}

uint64_t BytesOf(const PolicyVersion& version) {
  return sizeof version + version.run_id.size() + version.label.size() + version.uri.size();
}

}  // namespace

// Versions in order of (epoch, version), which is the order they were published in: full chunks, which never change again, and
// a tail, which each Publish copies.
struct PolicyVersions::Run {
  using Chunk = std::vector<PolicyVersion>;
  Key128 key;
  std::vector<std::shared_ptr<const Chunk>> full;  // [kPerChunk] each
  Chunk tail;                                      // 1 to kPerChunk

  const PolicyVersion& newest() const { return tail.back(); }

  // The last version that is not after (epoch, version), or null.
  const PolicyVersion* FindLast(uint64_t epoch, int64_t version) const {
    const auto after = [&](const PolicyVersion& entry) {
      return std::tie(epoch, version) < std::tie(entry.epoch, entry.version);
    };
    const Chunk* chunk = &tail;
    if (after(tail.front())) {
      const auto next = std::partition_point(full.begin(), full.end(), [&](const auto& one) { return !after(one->front()); });
      if (next == full.begin()) return nullptr;
      chunk = std::prev(next)->get();
    }
    return &*std::prev(std::partition_point(chunk->begin(), chunk->end(), [&](const auto& entry) { return !after(entry); }));
  }
};

PolicyVersions::Snapshot PolicyVersions::Empty() { return std::make_shared<const PolicyVersions>(); }

PolicyVersions::Snapshot PolicyVersions::Restore(const std::vector<PolicyVersion>& kept, uint64_t published) {
  auto registry = std::make_shared<PolicyVersions>();
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Run>> runs;  // in the order of runs_
  std::string run_id;
  std::shared_ptr<Run> run;
  for (const PolicyVersion& version : kept) {
    if (!run || version.run_id != run_id) {
      run_id = version.run_id;
      const Key128 key = HashId(run_id);
      std::shared_ptr<Run>& known = runs[Order(key)];
      if (!known) known = std::make_shared<Run>();
      known->key = key;
      run = known;
    }
    if (run->tail.size() == kPerChunk) {
      run->full.push_back(std::make_shared<const Run::Chunk>(std::move(run->tail)));
      run->tail.clear();
    }
    run->tail.push_back(version);
    registry->bytes_ += BytesOf(version);
  }
  for (auto& [order, each] : runs) registry->runs_.push_back(std::move(each));
  registry->count_ = kept.size();
  registry->published_ = published;
  return registry;
}

const PolicyVersions::Run* PolicyVersions::FindRun(const Key128& run) const {
  const auto at =
      std::partition_point(runs_.begin(), runs_.end(), [&](const auto& one) { return Order(one->key) < Order(run); });
  return at != runs_.end() && (*at)->key == run ? at->get() : nullptr;
}

PolicyVersions::Snapshot PolicyVersions::Publish(const PolicyVersion& version, std::string* error, ErrorCode* code) const {
  const auto fail = [&](ErrorCode failed, std::string message) {
    *error = std::move(message);
    if (code) *code = failed;
    return nullptr;
  };
  const Key128 key = HashId(version.run_id);
  auto changed = std::make_shared<Run>();
  if (const Run* run = FindRun(key)) {
    const PolicyVersion& newest = run->newest();
    const std::string both = "run \"" + version.run_id + "\": " + Describe(version) + " after " + Describe(newest) + ": ";
    if (version.epoch < newest.epoch) return fail(ErrorCode::kFailedPrecondition, both + "the epoch must not be lower");
    if (version.epoch == newest.epoch && version.version <= newest.version)
      return fail(ErrorCode::kFailedPrecondition,
                  both + "within an epoch the version must be higher; a trainer that restarts opens a higher epoch");
    if (version.epoch == newest.epoch && version.step < newest.step)
      return fail(ErrorCode::kFailedPrecondition,
                  both + "within an epoch the step must not be lower; a trainer that restarts opens a higher epoch");
    *changed = *run;
  } else if (runs_.size() >= kMaxRuns) {
    return fail(ErrorCode::kResourceExhausted, "run \"" + version.run_id + "\" would be one more than " +
                                                   std::to_string(kMaxRuns) + " runs: none is forgotten");
  }
  error->clear();

  changed->key = key;
  if (changed->tail.size() == kPerChunk) {
    changed->full.push_back(std::make_shared<const Run::Chunk>(std::move(changed->tail)));
    changed->tail.clear();
  }
  changed->tail.push_back(version);
  auto next = std::make_shared<PolicyVersions>(*this);
  next->bytes_ += BytesOf(version);
  ++next->count_;
  ++next->published_;
  while (!changed->full.empty() &&
         (changed->full.size() * kPerChunk + changed->tail.size() > kMaxVersionsKept || next->bytes_ > kMaxVersionBytes)) {
    for (const PolicyVersion& forgotten : *changed->full.front()) next->bytes_ -= BytesOf(forgotten);
    next->count_ -= kPerChunk;
    changed->full.erase(changed->full.begin());
  }
  if (next->bytes_ > kMaxVersionBytes) {
    return fail(ErrorCode::kResourceExhausted, "run \"" + version.run_id + "\": all versions together have " +
                                                   std::to_string(next->bytes_) + " bytes: at most " +
                                                   std::to_string(kMaxVersionBytes) +
                                                   " are kept, and this run has no older ones to forget");
  }
  const auto at = std::partition_point(next->runs_.begin(), next->runs_.end(),
                                       [&](const auto& one) { return Order(one->key) < Order(key); });
  if (at != next->runs_.end() && (*at)->key == key)
    *at = std::move(changed);
  else
    next->runs_.insert(at, std::move(changed));
  next->last_ = std::make_shared<const PolicyVersion>(version);
  return next;
}

const PolicyVersion* PolicyVersions::Newest(const std::string& run_id) const {
  const Run* run = FindRun(HashId(run_id));
  return run ? &run->newest() : nullptr;
}

const PolicyVersion* PolicyVersions::Later(const std::string& run_id, uint64_t epoch, const int64_t* version) const {
  const PolicyVersion* newest = Newest(run_id);
  if (newest == nullptr || version == nullptr) return newest;
  return std::tie(newest->epoch, newest->version) > std::tie(epoch, *version) ? newest : nullptr;
}

bool PolicyVersions::Has(const PolicyVersion& version) const {
  const Run* run = FindRun(HashId(version.run_id));
  const PolicyVersion* found = run ? run->FindLast(version.epoch, version.version) : nullptr;
  return found != nullptr && found->epoch == version.epoch && found->version == version.version;
}

std::vector<PolicyVersion> PolicyVersions::List(const std::string& run_id, size_t most) const {
  std::vector<const Run*> shown;
  if (run_id.empty()) {
    for (const auto& run : runs_) shown.push_back(run.get());
  } else if (const Run* run = FindRun(HashId(run_id))) {
    shown.push_back(run);
  }
  std::vector<PolicyVersion> versions;
  for (const Run* run : shown) {
    const size_t first = versions.size();
    size_t left = most / shown.size();
    for (auto at = run->tail.rbegin(); at != run->tail.rend() && left > 0; ++at, --left) versions.push_back(*at);
    for (auto chunk = run->full.rbegin(); chunk != run->full.rend() && left > 0; ++chunk)
      for (auto at = (*chunk)->rbegin(); at != (*chunk)->rend() && left > 0; ++at, --left) versions.push_back(*at);
    std::reverse(versions.begin() + static_cast<ptrdiff_t>(first), versions.end());
  }
  return versions;
}

uint64_t PolicyVersions::CurrentEpoch(Key128 run) const {
  const Run* found = FindRun(run);
  return found ? found->newest().epoch : 0;
}

int64_t PolicyVersions::NewestStep(Key128 run, uint64_t epoch, int64_t fallback) const {
  const Run* found = FindRun(run);
  const PolicyVersion* last = found ? found->FindLast(epoch, INT64_MAX) : nullptr;
  return last && last->epoch == epoch ? last->step : fallback;
}

int64_t PolicyVersions::StepOf(Key128 run, uint64_t epoch, int64_t version) const {
  const Run* found = FindRun(run);
  const PolicyVersion* last = found ? found->FindLast(epoch, version) : nullptr;
  return last && last->epoch == epoch && last->version == version ? last->step : version;
}

}  // namespace replay::server
