#include "server/policy_versions.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace replay::server {
namespace {

constexpr size_t kPerChunk = 256;

std::pair<uint64_t, uint64_t> Order(const Key128& key) { return {key.high, key.low}; }

std::string Describe(const PolicyVersion& version) {
  return "version " + std::to_string(version.version) + " at step " + std::to_string(version.step) + " of epoch " +
         std::to_string(version.epoch);
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

const PolicyVersions::Run* PolicyVersions::FindRun(const Key128& run) const {
  const auto at =
      std::partition_point(runs_.begin(), runs_.end(), [&](const auto& one) { return Order(one->key) < Order(run); });
  return at != runs_.end() && (*at)->key == run ? at->get() : nullptr;
}

PolicyVersions::Snapshot PolicyVersions::Publish(const PolicyVersion& version, std::string* error) const {
  const Key128 key = HashId(version.run_id);
  auto changed = std::make_shared<Run>();
  if (const Run* run = FindRun(key)) {
    const PolicyVersion& newest = run->newest();
    const std::string both = "run \"" + version.run_id + "\": " + Describe(version) + " after " + Describe(newest) + ": ";
    if (version.epoch < newest.epoch)
      *error = both + "the epoch must not be lower";
    else if (version.epoch == newest.epoch && version.version <= newest.version)
      *error = both + "within an epoch the version must be higher; a trainer that restarts opens a higher epoch";
    else if (version.epoch == newest.epoch && version.step < newest.step)
      *error = both + "within an epoch the step must not be lower; a trainer that restarts opens a higher epoch";
    else
      error->clear();
    if (!error->empty()) return nullptr;
    *changed = *run;
  } else if (runs_.size() >= kMaxRuns) {
    *error = "run \"" + version.run_id + "\" would be one more than " + std::to_string(kMaxRuns) + " runs: none is forgotten";
    return nullptr;
  }
  error->clear();

  changed->key = key;
  if (changed->tail.size() == kPerChunk) {
    changed->full.push_back(std::make_shared<const Run::Chunk>(std::move(changed->tail)));
    changed->tail.clear();
  }
  changed->tail.push_back(version);
  if (changed->full.size() * kPerChunk + changed->tail.size() > kMaxVersionsKept) changed->full.erase(changed->full.begin());

  auto next = std::make_shared<PolicyVersions>(*this);
  const auto at = std::partition_point(next->runs_.begin(), next->runs_.end(),
                                       [&](const auto& one) { return Order(one->key) < Order(key); });
  if (at != next->runs_.end() && (*at)->key == key)
    *at = std::move(changed);
  else
    next->runs_.insert(at, std::move(changed));
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

std::vector<PolicyVersion> PolicyVersions::List(const std::string& run_id) const {
  std::vector<PolicyVersion> versions;
  const Key128 key = HashId(run_id);
  for (const auto& run : runs_) {
    if (!run_id.empty() && run->key != key) continue;
    for (const auto& chunk : run->full) versions.insert(versions.end(), chunk->begin(), chunk->end());
    versions.insert(versions.end(), run->tail.begin(), run->tail.end());
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
