#include "server/version_registry.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "server/log.h"
#include "server/version_codec.h"

namespace replay::server {
namespace {

constexpr size_t kDeletedAtOnce = 1'000;

Verdict NotStored(const StorageError& error) {
  const bool full = error.problem == StorageProblem::kFull;
  return Verdict::Failed(full ? ErrorCode::kStorageFull : ErrorCode::kStorageFailed, error.message);
}

}  // namespace

StorageError VersionRegistry::Load() {
  if (database_ == nullptr) return {};
  StorageError refused;
  StorageError error = database_->ForEach(Rows::kVersions, "", [&](std::string_view key, std::string_view value) {
    const auto refuse = [&](const std::string& why) {
      refused = {StorageProblem::kIo, "the policy version of row " + std::to_string(rows_) + " of \"versions\" " + why};
      return false;
    };
    PolicyVersion version;
    const auto number = FromBigEndian(key);
    if (!number || !DecodeVersion(value, &version)) return refuse("cannot be read");
    std::string why;
    PolicyVersions::Snapshot next = newest_->Publish(version, &why);
    if (!next) return refuse("contradicts those before it: " + why);
    newest_ = std::move(next);
    next_row_ = *number + 1;
    ++rows_;
    return true;
  });
  if (error.failed()) return error;
  if (refused.failed()) return refused;
  return DeleteForgotten();
}

Verdict VersionRegistry::Publish(const PolicyVersion& version) {
  std::string why;
  ErrorCode code{};
  PolicyVersions::Snapshot next = newest_->Publish(version, &why, &code);
  if (!next) return Verdict::Failed(code, why);
  if (database_ != nullptr) {
    const Database::Change row{Rows::kVersions, BigEndian(next_row_), EncodeVersion(version)};
    const StorageError error = database_->Write({&row, 1});
    if (error.failed()) return NotStored(error);
    ++next_row_;
    ++rows_;
  }
  newest_ = std::move(next);
  if (rows_ > delete_above_) {
    const StorageError error = DeleteForgotten();
    if (error.failed()) Log(LogLevel::kWarning, "rows of forgotten policy versions stay", {{"error", error.message}});
  }
  return Verdict::Done();
}

StorageError VersionRegistry::DeleteForgotten() {
  std::vector<Database::Change> deleted;
  StorageError error;
  if (rows_ > newest_->count())
    error = database_->ForEach(Rows::kVersions, "", [&](std::string_view key, std::string_view value) {
      PolicyVersion version;
      if (DecodeVersion(value, &version) && !newest_->Has(version))
        deleted.push_back({Rows::kVersions, std::string(key), std::nullopt});
      return true;
    });
  for (size_t done = 0; done < deleted.size() && !error.failed(); done += kDeletedAtOnce) {
    const auto some = std::span(deleted).subspan(done, std::min(kDeletedAtOnce, deleted.size() - done));
    error = database_->Write(some);
    if (!error.failed()) rows_ -= some.size();
  }
  delete_above_ = rows_ + newest_->count() + kDeletedAtOnce;  // Tried again then, also after an error.
  return error;
}

}  // namespace replay::server
