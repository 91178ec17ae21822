#pragma once
// The background thread that the parts of one Client share.
//
//   Client, Writer, Sampler ──own──► Network ──owns──► thread ──runs──► Reactor ◄──use── coroutines
//
// Network belongs to the programs' threads: its last owner waits in its destructor until every coroutine has ended. The
// coroutines therefore never own it; they hold the Reactor, which ends after the last of them.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "replay/client.h"
#include "schema/input_buffer.h"
#include "schema/wire.h"

namespace replay {

using Clock = std::chrono::steady_clock;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;

// A wait that a program asked for, as the protocol and the clock can hold it: 0 … 49 days.
inline milliseconds ClampWait(milliseconds wait) {
  return std::clamp(wait, milliseconds(0), milliseconds(std::numeric_limits<uint32_t>::max()));
}

inline ClientOptions Clamped(ClientOptions options) {
  options.connect_timeout = ClampWait(options.connect_timeout);
  options.call_timeout = ClampWait(options.call_timeout);
  return options;
}

struct Reactor {
  explicit Reactor(ClientOptions client_options) : options(Clamped(std::move(client_options))) {
    address_error = ParseAddress(options.address, &address);
  }
  // Constant.
  const ClientOptions options;
  Address address;
  std::string address_error;  // "" or why `address` cannot be used
  // Any thread.
  asio::io_context context{1};
  Executor executor() { return context.get_executor(); }
  bool OnThread() { return context.get_executor().running_in_this_thread(); }
  // The background thread's.
  InputBlockPool input_blocks;
};

class Network {
 public:
  explicit Network(ClientOptions options)
      : reactor_(std::make_shared<Reactor>(std::move(options))), work_(asio::make_work_guard(reactor_->context)) {
    thread_ = std::thread([reactor = reactor_] { reactor->context.run(); });
  }
  ~Network() {
    work_.reset();
    // Within a callback the thread cannot wait for itself: it ends on its own, right after.
    if (reactor_->OnThread()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  const std::shared_ptr<Reactor>& reactor() const { return reactor_; }

 private:
  std::shared_ptr<Reactor> reactor_;
  asio::executor_work_guard<Executor> work_;
  std::thread thread_;
};

// A coroutine waits here until it is notified or a time has come. A notification without a waiter is kept for the next. One
// waiter at a time, everything on the reactor's thread.
class Signal {
 public:
  explicit Signal(Executor executor) : timer_(executor) {}
  Awaitable<void> WaitUntil(Clock::time_point until) {
    if (!notified_) {
      boost::system::error_code ignored;
      timer_.expires_at(until);
      co_await timer_.async_wait(asio::redirect_error(kUseAwaitable, ignored));
    }
    notified_ = false;
  }
  void Notify() {
    notified_ = true;
    timer_.cancel();
  }

 private:
  Timer timer_;
  bool notified_ = false;
};

// Delays between attempts: doubled from `first` up to `most`, each taken at random from its upper half, so that many clients
// of a restarted server do not come back in step.
class BackOff {
 public:
  BackOff(milliseconds first, milliseconds most, uint64_t seed) : first_(first), most_(most), next_(first), random_(seed | 1) {}
  Clock::duration Next();
  void Reset() { next_ = first_; }

 private:
  const milliseconds first_, most_;
  milliseconds next_;
  uint64_t random_;
};

std::unique_ptr<Writer> MakeWriter(std::shared_ptr<Network> network, std::string buffer, const WriterOptions& options);
std::unique_ptr<Sampler> MakeSampler(std::shared_ptr<Network> network, std::string buffer, const SamplerOptions& options);

}  // namespace replay
