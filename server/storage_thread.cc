#include "server/storage_thread.h"

#include <string>

#include "server/log.h"

namespace replay::server {

StorageError StorageThread::Open(const ServerConfig& config) {
  if (!config.storage_path.empty()) {
    if (StorageError error = folder_.Open(config.storage_path, config.storage_reserve_bytes); error.failed()) return error;
    if (StorageError error = Database::Open(folder_, &database_); error.failed()) return error;
  }
  versions_.emplace(database_.get());
  if (StorageError error = versions_->Load(); error.failed()) return error;
  if (keeps_data())
    Log(LogLevel::kInfo, "storage open",
        {{"path", folder_.path()},
         {"reserve_bytes", std::to_string(folder_.reserve_bytes())},
         {"policy_versions", std::to_string(versions_->newest()->count())}});
  return {};
}

void StorageThread::Start() {
  if (!keeps_data()) return;
  work_.emplace(executor());
  runner_ = std::thread([this] { context_.run(); });
}

void StorageThread::Stop() {
  work_.reset();
  if (runner_.joinable()) runner_.join();
}

}  // namespace replay::server
