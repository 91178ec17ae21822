#pragma once
// One I/O thread: an io_context and what lives on it. Nothing here is touched from another thread except by posting to it.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "schema/input_buffer.h"
#include "schema/wire.h"
#include "server/codec.h"
#include "server/peer_watch.h"
#include "server/policy_versions.h"

namespace replay::server {

struct BufferHost;
struct KeepWaiter;
class Session;
struct Waiter;

// The buffers by name: immutable, replaced whole on every thread when one is created or dropped.
using Directory = std::map<std::string, std::shared_ptr<BufferHost>, std::less<>>;

struct IoThread {
  explicit IoThread(int thread_index) : index(thread_index), peer_watch(context) {}

  const int index;
  asio::io_context context{1};
  InputBlockPool input_blocks;
  ReplyEncoder encoder;
  PeerWatch peer_watch;
  std::shared_ptr<const Directory> directory = std::make_shared<const Directory>();
  PolicyVersions::Snapshot versions = PolicyVersions::Empty();
  std::list<Waiter*> version_waiters;
  std::list<Waiter*> memory_waiters;
  std::list<KeepWaiter*> keep_waiters;  // of all buffers that live here
  bool gives_up_keeping = false;        // The daemon stops, and waits for the disk no longer.
  std::list<Session*> sessions;
  bool draining = false;
  std::array<uint64_t, static_cast<size_t>(Verb::kCount)> requests{};
  std::array<uint64_t, static_cast<size_t>(ErrorCode::kCount)> errors{};
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
  std::thread runner;  // none for the control thread

  Executor executor() { return context.get_executor(); }
};

// Runs `work` on `thread` and comes back: a plain co_await if it is the current one. The coroutine must have been made by the
// caller as a named local, see schema/README.md on g++ 12.
template <typename T>
Awaitable<T> RunOn(IoThread& thread, IoThread& current, Awaitable<T> work) {
  if (&thread == &current) co_return co_await std::move(work);
  co_return co_await asio::co_spawn(thread.executor(), std::move(work), kUseAwaitable);
}

}  // namespace replay::server
