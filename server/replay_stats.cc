// The rest of replay_service.h: what the daemon shows of itself, Stats and Waiters.

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/replay_service.h"

namespace replay::server {

// What one thread knows, copied on that thread: no counter is shared.
Awaitable<void> ReplayService::StatsOn(IoThread& thread, const std::string& buffer, ServerStats& stats) {
  for (size_t i = 0; i < thread.requests.size(); ++i) stats.requests[i] += thread.requests[i];
  for (size_t i = 0; i < thread.errors.size(); ++i) stats.errors[i] += thread.errors[i];
  stats.received_bytes += thread.received_bytes;
  stats.sent_bytes += thread.sent_bytes;
  for (const auto& [name, host] : *thread.directory) {
    if (&host->home != &thread || !host->buffer || (!buffer.empty() && buffer != name)) continue;
    BufferStats& shown = stats.buffers.emplace_back(host->buffer->Stats());
    shown.producers = host->producers.load(std::memory_order_relaxed);
    shown.consumers = host->consumers.load(std::memory_order_relaxed);
    for (const auto& [queue, waits] :
         {std::pair(&host->insert_waiters, &shown.insert_waits), std::pair(&host->sample_waiters, &shown.sample_waits),
          std::pair(&host->admit_waiters, &shown.insert_waits)}) {
      for (const Waiter* waiter : *queue) ++(*waits)[static_cast<size_t>(waiter->Reason())];
    }
    shown.waiting_inserts = host->insert_waiters.size() + host->admit_waiters.size();
    shown.waiting_samples = host->sample_waiters.size();
  }
  stats.waiting_versions += thread.version_waiters.size();
  co_return;
}

// After StatsOn of all threads: who waits for memory does so on the connection's thread, whichever the buffer's is.
Awaitable<void> ReplayService::MemoryWaitsOn(IoThread& thread, ServerStats& stats) {
  for (const Waiter* waiter : thread.memory_waiters) {
    for (BufferStats& shown : stats.buffers) {
      if (shown.name != waiter->buffer) continue;
      ++shown.waiting_inserts;
      ++shown.insert_waits[static_cast<size_t>(WaitReason::kMemory)];
    }
  }
  co_return;
}

Awaitable<void> ReplayService::Stats(IoThread& thread, const std::string& buffer, ServerStats& stats) {
  stats = {};
  stats.requests.resize(static_cast<size_t>(Verb::kCount));
  stats.errors.resize(static_cast<size_t>(ErrorCode::kCount));
  stats.generation = generation();
  stats.uptime_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  stats.connections = connections.load(std::memory_order_relaxed);
  stats.accepted_connections = accepted_connections.load(std::memory_order_relaxed);
  stats.memory_used_bytes = static_cast<uint64_t>(budget_.used_bytes());
  stats.spill_reads = spill_reads.load(std::memory_order_relaxed);
  stats.spill_read_bytes = spill_read_bytes.load(std::memory_order_relaxed);
  stats.spill_read_errors = spill_read_errors.load(std::memory_order_relaxed);
  stats.keeps_data = storage_.keeps_data();
  stats.storage_full = storage_.is_full();
  stats.storage_failed = storage_.has_failed();
  stats.memory_limit_bytes = static_cast<uint64_t>(budget_.limit_bytes());
  for (auto& asked : threads_) {
    Awaitable<void> work = StatsOn(*asked, buffer, stats);
    co_await RunOn(*asked, thread, std::move(work));
  }
  for (auto& asked : threads_) {
    Awaitable<void> work = MemoryWaitsOn(*asked, stats);
    co_await RunOn(*asked, thread, std::move(work));
  }
  std::sort(stats.buffers.begin(), stats.buffers.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

Awaitable<void> ReplayService::WaitersOn(IoThread& thread, const std::string& buffer, std::vector<WaiterInfo>& waiters) {
  for (const auto& [name, host] : *thread.directory) {
    if (&host->home != &thread) continue;
    ListWaiters(host->insert_waiters, buffer, waiters);
    ListWaiters(host->sample_waiters, buffer, waiters);
    ListWaiters(host->admit_waiters, buffer, waiters);
  }
  ListWaiters(thread.memory_waiters, buffer, waiters);
  ListWaiters(thread.version_waiters, buffer, waiters);
  co_return;
}

Awaitable<void> ReplayService::Waiters(IoThread& thread, const std::string& buffer, std::vector<WaiterInfo>& waiters) {
  for (auto& asked : threads_) {
    Awaitable<void> work = WaitersOn(*asked, buffer, waiters);
    co_await RunOn(*asked, thread, std::move(work));
  }
}

}  // namespace replay::server
