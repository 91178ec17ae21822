#include "generator/weights_watch.h"

#include <algorithm>
#include <utility>

namespace replay {
namespace {

constexpr milliseconds kPatience{1'000};  // of one question: also how long the destructor may take
constexpr milliseconds kFirstPause{100}, kLongestPause{5'000};

}  // namespace

WeightsWatch::WeightsWatch(Client& client, std::string run_id)
    : client_(client), run_id_(std::move(run_id)), thread_([this] { Watch(); }) {}

WeightsWatch::~WeightsWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<PolicyVersion> WeightsWatch::TakeNewer(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) changed_.wait_for(lock, timeout, [&] { return newest_ || stop_; });
  return std::exchange(newest_, std::nullopt);
}

std::string WeightsWatch::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void WeightsWatch::Watch() {
  uint64_t epoch = 0;
  std::optional<int64_t> version;  // the last one seen
  milliseconds pause = kFirstPause;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const Result<PolicyVersion> next = client_.WaitVersion(run_id_, epoch, version, kPatience);
    lock.lock();
    if (next) {
      epoch = next->epoch;
      version = next->version;
      newest_ = *next;
      trouble_.clear();
      pause = kFirstPause;
      changed_.notify_all();
    } else if (next.error().code == ErrorCode::kTimedOut) {
      trouble_.clear();
      pause = kFirstPause;
    } else {
      trouble_ = next.error().ToString();
      changed_.wait_for(lock, pause, [&] { return stop_; });
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

std::string FolderOfUri(const std::string& uri) {
  constexpr std::string_view kFile = "file://";
  if (uri.starts_with(kFile)) return uri.substr(kFile.size());
  return uri.find("://") == std::string::npos ? uri : "";
}

}  // namespace replay
