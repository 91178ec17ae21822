#pragma once
// Who may publish a policy version next, and the rows of the published ones where the daemon keeps data.
//
//   row of Rows::kVersions:   key    how many were published before it, 8 bytes, big-endian
//                             value  schema::PolicyVersion, one Cap'n Proto segment
//
// Published again in the order of their keys, the rows give the registry as it was, with what it had forgotten forgotten: those
// rows are deleted at Load, and whenever there are twice as many as kept ones. Load: one Publish a row, some 10 to 30 us each.
//
// Of one thread, which may block on the disk; without a database of the control thread.

#include <cstdint>
#include <string>

#include "server/policy_versions.h"
#include "server/verdict.h"
#include "storage/database.h"

namespace replay::server {

class VersionRegistry {
 public:
  // `database`, if any, outlives it.
  explicit VersionRegistry(Database* database) : database_(database) {}

  // Once, before the rest: what was published before the daemon started.
  StorageError Load();
  const PolicyVersions::Snapshot& newest() const { return newest_; }
  // Once it is done, `version` survives a power cut, where there is a database. Otherwise nothing has changed, but that after
  // kStorageFailed it may be there when the daemon starts again.
  Verdict Publish(const PolicyVersion& version);

 private:
  StorageError DeleteForgotten();

  Database* const database_;
  PolicyVersions::Snapshot newest_ = PolicyVersions::Empty();
  uint64_t next_row_ = 0;
  uint64_t rows_ = 0;
  uint64_t delete_above_ = 0;  // so many rows
};

}  // namespace replay::server
