#pragma once
// The registry of policy versions: for each run and epoch, which version was published at which gradient step.
//
// Strictly monotonic: within an epoch a version must be higher than the last and its step not lower; a trainer that restarts
// from an older step opens a higher epoch. An immutable value: Publish returns a new one, which replaces the old one whole on
// every thread, so that readers need no lock.
//
// A run keeps its last kMaxVersionsKept versions, and fewer where all runs together come to kMaxVersionBytes; the oldest are
// forgotten (256 at a time) and then count as their own step. There are at most kMaxRuns runs; a further one is refused.
// Publish: O(runs + versions of the run / 256), what did not change is shared between snapshots. Look-ups: O(log runs +
// log versions). List: O(what it returns).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "schema/message.h"
#include "server/verdict.h"

namespace replay::server {

struct PolicyVersion {
  std::string run_id{};
  uint64_t epoch = 0;
  int64_t version = 0;
  int64_t step = 0;
  std::string label{};
  std::string uri{};
  int64_t published_at_unix_ns = 0;
};

class PolicyVersions {
 public:
  using Snapshot = std::shared_ptr<const PolicyVersions>;
  static Snapshot Empty();

  // One that keeps these, which stand in the order of List, and has had so many published.
  static Snapshot Restore(const std::vector<PolicyVersion>& kept, uint64_t published);

  // A registry with `version` added, or null, `code` and `error`, which names both versions and the rule.
  Snapshot Publish(const PolicyVersion& version, std::string* error, ErrorCode* code = nullptr) const;

  // The newest version of a run, or null.
  const PolicyVersion* Newest(const std::string& run_id) const;
  // The newest if it is later than (epoch, version); any if `version` is null.
  const PolicyVersion* Later(const std::string& run_id, uint64_t epoch, const int64_t* version) const;
  // Whether this one is kept, and how many are.
  bool Has(const PolicyVersion& version) const;
  uint64_t count() const { return count_; }
  // How many were ever published, and the last of these; null before the first, and right after Restore.
  uint64_t published() const { return published_; }
  const PolicyVersion* last() const { return last_.get(); }
  // The newest of a run, or of each run when `run_id` is empty, the newest last; `most` in all, each run its share.
  std::vector<PolicyVersion> List(const std::string& run_id, size_t most) const;

  // By the hash of the run id, as an index row knows it.
  uint64_t CurrentEpoch(Key128 run) const;  // 0 if nothing was published
  // Newest published step of an epoch, or `fallback`.
  int64_t NewestStep(Key128 run, uint64_t epoch, int64_t fallback) const;
  // The step a version was published with; a version never published counts as its own step.
  int64_t StepOf(Key128 run, uint64_t epoch, int64_t version) const;

 private:
  struct Run;  // shared between snapshots: only the run that changed is copied
  const Run* FindRun(const Key128& run) const;
  std::vector<std::shared_ptr<const Run>> runs_;  // sorted by key
  uint64_t bytes_ = 0;
  uint64_t count_ = 0;
  uint64_t published_ = 0;
  std::shared_ptr<const PolicyVersion> last_;
};

}  // namespace replay::server
