#include "trainer/publisher.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "trainer/model/checkpoint.h"
#include "trainer/numbered_folders.h"

namespace replay::trainer {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "version-";

}  // namespace

Publisher::Publisher(Client& client, const PublisherOptions& options) : client_(client), options_(options) {}

std::string Publisher::FolderOf(int64_t version) const {
  return options_.folder + "/" + std::string(kPrefix) + std::to_string(version);
}

Result<Done> Publisher::JoinRegistry(int64_t version) {
  const Result<std::vector<PolicyVersion>> known = client_.Versions(options_.run_id);
  if (!known) return known.error();
  for (const PolicyVersion& each : *known) {
    if (each.epoch > epoch_ || (each.epoch == epoch_ && each.version >= version))
      epoch_ = each.epoch + (each.version >= version ? 1 : 0);
  }
  return Done{};
}

std::string Publisher::Publish(int64_t version, const model::Transformer& transformer) {
  const std::string folder = FolderOf(version);
  std::error_code error;
  try {
    fs::create_directories(options_.folder, error);
    fs::remove_all(folder, error);  // of a process before this one
    // Not synced to disk: a version is of use to those who run now, a checkpoint is what survives.
    model::SaveModel(folder, transformer, {.sync = false});
  } catch (const model::CheckpointError& failure) {
    return failure.what();
  }
  if (std::string failure = Register(version); !failure.empty()) return failure;
  // Higher ones, of a run that had come further, do not count: nobody reads them.
  std::vector<int64_t> older = NumberedFolders(options_.folder, kPrefix);
  std::erase_if(older, [&](int64_t each) { return each >= version; });
  for (size_t i = 0; i + std::max(options_.keep, 2u) < older.size() + 1; ++i) fs::remove_all(FolderOf(older[i]), error);
  return "";
}

std::string Publisher::PublishAgain() { return published_ < 0 ? "" : Register(published_); }

std::string Publisher::Register(int64_t version) {
  published_ = version;
  const Result<PolicyVersion> done = client_.PublishVersion({.run_id = options_.run_id,
                                                             .epoch = epoch_,
                                                             .version = version,
                                                             .step = version,
                                                             .uri = "file://" + fs::absolute(FolderOf(version)).string()});
  return done ? "" : done.error().ToString();
}

}  // namespace replay::trainer
