#include "server/cohorts.h"

#include <algorithm>

#include "server/check.h"

namespace replay::server {

uint64_t Cohorts::Hash(uint32_t run, uint64_t epoch, int64_t version) {
  return SlotIndex::Hash({static_cast<uint64_t>(version), epoch * 0xff51afd7ed558ccd + run});
}

void Cohorts::ReadRegistry(Run* run) const {
  const uint64_t epoch = versions_->CurrentEpoch(run->key);
  if (epoch < run->epoch) return;
  run->epoch = epoch;
  const int64_t nothing = INT64_MIN;
  const int64_t step = versions_->NewestStep(run->key, epoch, nothing);
  if (step == nothing) return;
  run->published = true;
  run->step = step;
}

uint32_t Cohorts::FindOrAddRun(const Key128& key) {
  const uint64_t hash = SlotIndex::Hash(key);
  uint32_t at = run_index_.Find(hash, [&](uint32_t slot) { return runs_[slot].key == key; });
  if (at != kNoSlot) return at;
  if (free_runs_.empty()) {
    at = static_cast<uint32_t>(runs_.size());
    runs_.emplace_back();
  } else {
    at = free_runs_.back();
    free_runs_.pop_back();
  }
  runs_[at] = Run();
  runs_[at].key = key;
  runs_[at].step = INT64_MIN;
  ReadRegistry(&runs_[at]);
  run_index_.Insert(hash, at);
  return at;
}

bool Cohorts::Place(Cohort* cohort) {
  Run& run = runs_[cohort->run];
  cohort->step = versions_->StepOf(run.key, cohort->epoch, cohort->version);
  cohort->current = cohort->epoch >= run.epoch;
  const bool rises = !run.published && cohort->step > run.step;
  if (rises) run.step = cohort->step;
  const Steps steps{run.step, cohort->step};
  cohort->withheld = cohort->current && (steps.created > steps.now || steps.staleness() > max_staleness_);
  cohort->expired = cohort->current && steps.staleness() > evict_staleness_;
  newest_step_ = std::max(newest_step_, cohort->step);
  oldest_step_ = std::min(oldest_step_, cohort->step);
  if (cohort->expired) expired_items_ += cohort->live;
  if (cohort->current) current_items_ += cohort->live;
  if (cohort->withheld) withheld_items_ += cohort->live;
  return rises;
}

void Cohorts::PlaceAll() {
  current_items_ = withheld_items_ = expired_items_ = 0;
  newest_step_ = INT64_MIN;
  oldest_step_ = INT64_MAX;
  for (Cohort& cohort : cohorts_)
    if (cohort.used()) Place(&cohort);
}

void Cohorts::SetEvictStaleness(int64_t staleness) {
  evict_staleness_ = staleness;
  PlaceAll();
}

void Cohorts::SetMaxStaleness(int64_t max_staleness) {
  max_staleness_ = max_staleness;
  PlaceAll();
}

uint32_t Cohorts::Add(const TrajectoryFacts& facts) {
  const auto is_same = [&](uint32_t at) {
    const Cohort& cohort = cohorts_[at];
    return cohort.used() && cohort.version == facts.min_version && cohort.epoch == facts.epoch &&
           runs_[cohort.run].key == facts.run;
  };
  uint32_t at = last_cohort_;
  if (at >= cohorts_.size() || !is_same(at)) {
    const uint32_t run = FindOrAddRun(facts.run);
    const uint64_t hash = Hash(run, facts.epoch, facts.min_version);
    at = cohort_index_.Find(hash, is_same);
    if (at == kNoSlot) {
      if (free_cohorts_.empty()) {
        at = static_cast<uint32_t>(cohorts_.size());
        cohorts_.emplace_back();
      } else {
        at = free_cohorts_.back();
        free_cohorts_.pop_back();
      }
      cohorts_[at] = Cohort();
      cohorts_[at].epoch = facts.epoch;
      cohorts_[at].version = facts.min_version;
      cohorts_[at].run = run;
      const bool rises = Place(&cohorts_[at]);
      ++runs_[run].cohorts;
      cohort_index_.Insert(hash, at);
      if (rises && (max_staleness_ != INT64_MAX || evict_staleness_ != INT64_MAX)) {
        PlaceAll();
        Place(&cohorts_[at]);  // Still without an item, so PlaceAll passed it over.
      }
    }
    last_cohort_ = at;
  }
  Count(&cohorts_[at], 1);
  return at;
}

void Cohorts::Count(Cohort* cohort, int by) {
  cohort->live += static_cast<uint32_t>(by);
  if (cohort->current) current_items_ += static_cast<uint64_t>(by);
  if (cohort->withheld) withheld_items_ += static_cast<uint64_t>(by);
  if (cohort->expired) expired_items_ += static_cast<uint64_t>(by);
}

void Cohorts::Hold(uint32_t at) {
  Count(&cohorts_[at], -1);
  ++cohorts_[at].held;
}

void Cohorts::Unhold(uint32_t at) {
  --cohorts_[at].held;
  Count(&cohorts_[at], 1);
}

void Cohorts::Remove(uint32_t at, bool held) {
  Cohort& cohort = cohorts_[at];
  if (held)
    --cohort.held;
  else
    Count(&cohort, -1);
  if (cohort.used()) return;
  cohort_index_.Erase(Hash(cohort.run, cohort.epoch, cohort.version), at);
  free_cohorts_.push_back(at);
  Run& run = runs_[cohort.run];
  if (--run.cohorts > 0) return;
  run_index_.Erase(SlotIndex::Hash(run.key), cohort.run);
  free_runs_.push_back(cohort.run);
}

bool Cohorts::OnPublish(PolicyVersions::Snapshot versions) {
  versions_ = std::move(versions);
  for (Run& run : runs_)
    if (run.cohorts > 0) ReadRegistry(&run);
  std::vector<bool> was_current;
  for (const Cohort& cohort : cohorts_) was_current.push_back(cohort.current);
  PlaceAll();
  for (size_t at = 0; at < cohorts_.size(); ++at)
    if (cohorts_[at].live > 0 && was_current[at] && !cohorts_[at].current) return true;
  return false;
}

uint64_t Cohorts::CountDrawable(const StepWindow& window) {
  if (!window.step && window.max_staleness == max_staleness_ && window.min_staleness == 0) return drawable();
  if (window.step && Steps{*window.step, newest_step_}.staleness() >= window.min_staleness &&
      (window.max_staleness == INT64_MAX || Steps{*window.step, oldest_step_}.staleness() <= window.max_staleness))
    return current_items_;
  uint64_t count = 0;
  newest_step_ = INT64_MIN;
  oldest_step_ = INT64_MAX;
  for (size_t at = 0; at < cohorts_.size(); ++at) {
    const Cohort& cohort = cohorts_[at];
    if (!cohort.used()) continue;
    newest_step_ = std::max(newest_step_, cohort.step);
    oldest_step_ = std::min(oldest_step_, cohort.step);
    if (MayDraw(static_cast<uint32_t>(at), window)) count += cohort.live;
  }
  return count;
}

int64_t Cohorts::NewestStep() const {
  bool any = false;
  int64_t newest = 0;
  for (const Run& run : runs_) {
    if (run.cohorts == 0) continue;
    newest = any ? std::max(newest, run.step) : run.step;
    any = true;
  }
  return newest;
}

Cohorts::VersionRange Cohorts::Versions() const {
  VersionRange range;
  bool any = false;
  for (const Cohort& cohort : cohorts_) {
    if (!cohort.used()) continue;
    range.oldest = any ? std::min(range.oldest, cohort.version) : cohort.version;
    range.newest = any ? std::max(range.newest, cohort.version) : cohort.version;
    any = true;
  }
  return range;
}

uint64_t Cohorts::memory_bytes() const {
  return cohorts_.capacity() * sizeof(Cohort) + runs_.capacity() * sizeof(Run) +
         (free_cohorts_.capacity() + free_runs_.capacity()) * sizeof(uint32_t) + cohort_index_.memory_bytes() +
         run_index_.memory_bytes();
}

void Cohorts::Persist(Archive& archive) {
  archive(cohorts_, runs_, free_cohorts_, free_runs_, current_items_, withheld_items_, expired_items_, max_staleness_,
          evict_staleness_);
  if (!archive.loading() || archive.failed()) return;
  for (uint32_t at = 0; at < runs_.size(); ++at)
    if (runs_[at].cohorts > 0) run_index_.Insert(SlotIndex::Hash(runs_[at].key), at);
  for (uint32_t at = 0; at < cohorts_.size(); ++at) {
    const Cohort& cohort = cohorts_[at];
    if (!cohort.used()) continue;
    cohort_index_.Insert(Hash(cohort.run, cohort.epoch, cohort.version), at);
    newest_step_ = std::max(newest_step_, cohort.step);
    oldest_step_ = std::min(oldest_step_, cohort.step);
  }
}

void Cohorts::CheckInvariants(uint64_t live, uint64_t held) const {
  uint64_t items = 0, held_items = 0, current = 0, withheld = 0, used = 0;
  for (const Cohort& cohort : cohorts_) {
    if (!cohort.used()) continue;
    const Run& run = runs_[cohort.run];
    CHECK(run.cohorts > 0);
    CHECK(cohort.current == (cohort.epoch >= run.epoch)) << "epoch " << cohort.epoch << ", the run's is " << run.epoch;
    const Steps steps{run.step, cohort.step};
    CHECK(cohort.withheld == (cohort.current && (steps.created > steps.now || steps.staleness() > max_staleness_)))
        << "step " << cohort.step << ", the run's is " << run.step;
    CHECK(cohort.step <= newest_step_) << cohort.step << " is above the bound " << newest_step_;
    CHECK(cohort.step >= oldest_step_) << cohort.step << " is below the bound " << oldest_step_;
    items += cohort.live + cohort.held;
    held_items += cohort.held;
    current += cohort.current ? cohort.live : 0;
    withheld += cohort.withheld ? cohort.live : 0;
    ++used;
  }
  CHECK(items == live) << items << " items in cohorts, " << live << " live";
  CHECK(held_items == held) << held_items << " items held in cohorts, " << held << " held";
  CHECK(current == current_items_ && withheld == withheld_items_) << current << " current and " << withheld << " withheld";
  CHECK(used == cohort_index_.size() && used + free_cohorts_.size() == cohorts_.size()) << used << " cohorts";
}

}  // namespace replay::server
