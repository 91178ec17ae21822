#pragma once
// Cohorts: what decides whether and how stale a live item is drawn, kept once for all items that share it.
//
//   cohort    = items of one (run, epoch, oldest version)        step of a cohort = PolicyVersions::StepOf(run, epoch, version)
//   step      = the step given with Sample; absent, for each run: the newest step published in its current epoch, or, when
//               nothing was published, the newest step seen among its items
//   staleness = step - step of the cohort
//   an item is drawable  <=>  its epoch is not older than its run's current one, and min_staleness <= staleness <= max_staleness
//
// An epoch newer than the published one is drawn like the current. What is not drawable stays in the buffer, is counted as
// withheld, and leaves by retention.
//
// A run publishes often and an item is drawn far more often, so items are never walked here: Add, Remove, StepsOf, MayDraw:
// O(1). OnPublish: O(cohorts · log versions). CountDrawable: O(1), or O(cohorts) while a given step is older than some item or
// leaves some item too stale or too fresh. About 70 bytes a cohort; there are as many as policy versions in the buffer. Belongs to
// its buffer's thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "schema/validate.h"
#include "server/archive.h"
#include "server/policy_versions.h"
#include "server/slot_index.h"

namespace replay::server {

// The steps whose items a Sample may draw.
struct StepWindow {
  std::optional<int64_t> step = {};   // that of the Sample; absent: each run's
  int64_t max_staleness = INT64_MAX;  // INT64_MAX: any
  int64_t min_staleness = 0;          // 0: any
  bool operator==(const StepWindow&) const = default;
};

class Cohorts {
 public:
  explicit Cohorts(PolicyVersions::Snapshot versions) : versions_(std::move(versions)) {}

  // Of drawable(). O(cohorts).
  void SetMaxStaleness(int64_t max_staleness);
  // Items staler than this by their run's step are expired: their buffer is to remove them. O(cohorts).
  void SetEvictStaleness(int64_t staleness);
  bool IsExpired(uint32_t cohort) const { return cohorts_[cohort].expired; }
  uint64_t expired() const { return expired_items_; }

  // Counts one more live item; its cohort's index, good while any item of it lives.
  uint32_t Add(const TrajectoryFacts& facts);
  void Remove(uint32_t cohort, bool held = false);
  // Held items are neither drawable nor expired, and not among those of current epochs.
  void Hold(uint32_t cohort);
  void Unhold(uint32_t cohort);
  // True if items that were of their run's current epoch now are of an older one.
  bool OnPublish(PolicyVersions::Snapshot versions);

  const PolicyVersions::Snapshot& versions() const { return versions_; }
  bool OfCurrentEpoch(uint32_t cohort) const { return cohorts_[cohort].current; }
  bool MayDraw(uint32_t cohort, const StepWindow& window) const {
    const Cohort& entry = cohorts_[cohort];
    const int64_t staleness = StepsOf(cohort, window.step).staleness();
    return entry.current && staleness >= window.min_staleness && staleness <= window.max_staleness;
  }
  uint64_t CountDrawable(const StepWindow& window);
  // CountDrawable without a step and with the staleness of SetMaxStaleness. O(1).
  uint64_t drawable() const { return current_items_ - withheld_items_; }
  uint64_t of_current_epoch() const { return current_items_; }

  struct Steps {
    int64_t now;      // the step of the draw
    int64_t created;  // the step of the item
    // now - created; held at the ends of int64, since versions are whatever a client says.
    int64_t staleness() const {
      int64_t difference;
      if (__builtin_sub_overflow(now, created, &difference)) return now < created ? INT64_MIN : INT64_MAX;
      return difference;
    }
  };
  Steps StepsOf(uint32_t cohort, const std::optional<int64_t>& step) const {
    const Cohort& entry = cohorts_[cohort];
    return {step ? *step : runs_[entry.run].step, entry.step};
  }
  // The step of a Sample that gives none; with several runs in one buffer the newest of theirs. 0 without items.
  int64_t NewestStep() const;

  struct VersionRange {
    int64_t oldest = 0;
    int64_t newest = 0;
  };
  VersionRange Versions() const;  // Of the live items' oldest segments. O(cohorts).
  uint64_t memory_bytes() const;
  // All but the registry. Items that were added keep their cohorts' indices.
  void Persist(Archive& archive);
  // Dies with a message if a count contradicts another; the caller says how many items live, and are held. O(cohorts).
  void CheckInvariants(uint64_t live, uint64_t held = 0) const;

 private:
  struct Cohort {
    uint64_t epoch = 0;
    int64_t version = 0;
    int64_t step = 0;
    uint32_t run = 0;
    uint32_t live = 0;  // without the held ones
    uint32_t held = 0;
    bool current = true;    // Not of an older epoch than its run's.
    bool expired = false;   // Current, and so stale that it must go.
    bool withheld = false;  // Current, but newer than its run's step or too stale for it.
    bool used() const { return live + held > 0; }
    void Persist(Archive& archive) { archive(epoch, version, step, run, live, held, current, expired, withheld); }
  };
  struct Run {
    Key128 key;
    uint64_t epoch = 0;  // Never goes back, even if the registry forgets the run.
    int64_t step = 0;
    bool published = false;  // In which case `step` is the published one.
    uint32_t cohorts = 0;    // 0: free
    void Persist(Archive& archive) { archive(key, epoch, step, published, cohorts); }
  };

  // An item of it comes (1) or goes (-1): the sums of all that may be drawn.
  void Count(Cohort* cohort, int by);
  static uint64_t Hash(uint32_t run, uint64_t epoch, int64_t version);
  uint32_t FindOrAddRun(const Key128& key);
  void ReadRegistry(Run* run) const;
  // Sets step, current and withheld; counts the cohort's items. True if the run's step rose, by which others become staler.
  bool Place(Cohort* cohort);
  void PlaceAll();

  PolicyVersions::Snapshot versions_;
  std::vector<Cohort> cohorts_;
  std::vector<Run> runs_;
  std::vector<uint32_t> free_cohorts_, free_runs_;
  SlotIndex cohort_index_, run_index_;
  uint32_t last_cohort_ = 0;     // Of the last Add: the next item is usually of the same.
  uint64_t current_items_ = 0;   // Live items of current epochs.
  uint64_t withheld_items_ = 0;  // Of these: in cohorts that are withheld.
  uint64_t expired_items_ = 0;
  int64_t max_staleness_ = INT64_MAX, evict_staleness_ = INT64_MAX;
  // At least and at most the step of each cohort; made exact by CountDrawable's walk.
  int64_t newest_step_ = INT64_MIN;
  int64_t oldest_step_ = INT64_MAX;
};

}  // namespace replay::server
