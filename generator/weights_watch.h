#pragma once
// WeightsWatch waits, on a thread of its own, for policy versions that a trainer publishes, and holds the newest one ready.
//
// The registry of the daemon carries the uri of the weights, a folder ("file:///data/run/weights/version-12"); this only says
// which is the newest. A daemon that cannot be reached is asked again, with a growing pause.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "replay/client.h"

namespace replay {

class WeightsWatch {
 public:
  WeightsWatch(Client& client, std::string run_id);  // `client` outlives it
  ~WeightsWatch();
  WeightsWatch(const WeightsWatch&) = delete;
  WeightsWatch& operator=(const WeightsWatch&) = delete;

  // The newest version that was not taken yet, at once or within `timeout`.
  std::optional<PolicyVersion> TakeNewer(milliseconds timeout);
  // Why the last question failed; empty while all is well.
  std::string trouble() const;

 private:
  void Watch();

  Client& client_;
  const std::string run_id_;
  mutable std::mutex mutex_;  // guards what follows, up to stop_
  std::condition_variable changed_;
  std::optional<PolicyVersion> newest_;  // not taken yet
  std::string trouble_;
  bool stop_ = false;
  std::thread thread_;  // last: it starts when all else is there
};

// The folder that a uri names: "file:///a/b" or a plain path. Empty if it is of another kind.
std::string FolderOfUri(const std::string& uri);

}  // namespace replay
