#pragma once
// What the daemon keeps on disk, and the one thread that may block on it. Without storage.path nothing is kept and there is no
// such thread; the registry then belongs to the control thread. Open, Start and Stop are of the thread that owns this.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <memory>
#include <optional>
#include <thread>

#include "schema/wire.h"
#include "server/config.h"
#include "server/version_registry.h"
#include "storage/data_folder.h"
#include "storage/database.h"

namespace replay::server {

class StorageThread {
 public:
  ~StorageThread() { Stop(); }

  // Before all else: opens the folder and loads what is there, on the caller's thread.
  StorageError Open(const ServerConfig& config);
  bool keeps_data() const { return database_ != nullptr; }
  VersionRegistry& versions() { return *versions_; }

  void Start();
  // After those that send work have ended.
  void Stop();
  Executor executor() { return context_.get_executor(); }

 private:
  // Of runner_ once it runs.
  DataFolder folder_;
  std::unique_ptr<Database> database_;
  std::optional<VersionRegistry> versions_;

  asio::io_context context_{1};
  std::optional<asio::executor_work_guard<Executor>> work_;
  std::thread runner_;
};

}  // namespace replay::server
