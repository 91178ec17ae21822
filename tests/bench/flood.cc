#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "tests/bench/crowd.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/systems.h"

namespace replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Whose latency is measured runs before the flooding client on the core they share, so that it is the daemon that is measured.
void PreferThisThread() {
  sched_param priority{.sched_priority = 10};
  if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) != 0)
    std::cerr << "flood: no real-time priority here, so pings include the client's own waits for a core\n";
}

// Pings one after another until told to stop.
LatencyHistogram PingUntil(Stream stream, const std::atomic<bool>& stop) {
  const Bytes request = PingRequest();
  Bytes reply(4096);
  LatencyHistogram latency;
  while (!stop.load(std::memory_order_relaxed)) {
    const auto begin = Clock::now();
    stream.Send(request);
    uint32_t replies = 0;
    for (size_t held = 0; replies == 0;) {
      held += stream.Receive(std::span(reply).subspan(held));
      CountReplies(std::span(reply).first(held), &replies);
    }
    latency.Add(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return latency;
}

// Sends `total` requests as fast as the daemon takes them. Reads nothing until the daemon has taken nothing for half a second
// (or all is sent), then reads everything. Returns how many requests were sent before the first read.
class Flooder {
 public:
  Flooder(Stream stream, Bytes requests, uint32_t request_count, uint64_t total)
      : stream_(std::move(stream)), requests_(std::move(requests)), request_count_(request_count), total_(total) {}

  uint64_t Run() {
    uint64_t sent_before_reading = 0;
    bool reading = false;
    while (answered_ < total_) {
      pollfd poll_fd{stream_.fd(), static_cast<short>((Sending() ? POLLOUT : 0) | (reading ? POLLIN : 0)), 0};
      const int ready = poll(&poll_fd, 1, reading ? 30'000 : 500);
      if (ready == 0 && reading) Fail("flood: nothing moved for 30 s");
      if (poll_fd.revents & POLLOUT) SendSome();
      if (poll_fd.revents & POLLIN) ReceiveSome();
      if (!reading && (ready == 0 || !Sending())) {
        reading = true;
        sent_before_reading = rounds_ * request_count_ + at_ * request_count_ / requests_.size();
      }
    }
    return sent_before_reading;
  }

 private:
  bool Sending() const { return rounds_ * request_count_ < total_; }

  void SendSome() {
    const ssize_t sent = send(stream_.fd(), requests_.data() + at_, requests_.size() - at_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) FailErrno("flood: send");
    if (sent > 0) at_ += static_cast<size_t>(sent);
    if (at_ < requests_.size()) return;
    at_ = 0;
    ++rounds_;
  }

  // Replies may be larger than any buffer: control parts are read, payloads skipped.
  void ReceiveSome() {
    held_ += stream_.Receive(std::span(buffer_).subspan(held_));
    size_t used = 0;
    for (;;) {
      const uint64_t skipped = std::min<uint64_t>(skip_, held_ - used);
      used += skipped;
      skip_ -= skipped;
      const auto size = CheckReply({buffer_.data() + used, held_ - used});
      if (skip_ > 0 || !size) break;
      used += size->control_bytes;
      skip_ = size->payload_bytes;
      ++answered_;
    }
    std::memmove(buffer_.data(), buffer_.data() + used, held_ - used);
    held_ -= used;
  }

  Stream stream_;
  const Bytes requests_;
  const uint32_t request_count_;
  const uint64_t total_;
  size_t at_ = 0;
  uint64_t rounds_ = 0;
  uint64_t answered_ = 0;
  Bytes buffer_ = Bytes(1 << 20);
  size_t held_ = 0;
  uint64_t skip_ = 0;
};

void Append(Bytes* bytes, const Bytes& more) { bytes->insert(bytes->end(), more.begin(), more.end()); }

// Pings, inserts of 1 KB and samples of one, in turns.
Bytes MixedRequests(uint32_t count) {
  const FrameTemplate frame(1024);
  const uint32_t sizes[] = {frame.bytes()};
  const Bytes ping = PingRequest(), sample = SampleRequest("flood", 1, 1'000), insert = InsertRequest("flood", 0, 0, sizes);
  Bytes frame_bytes(frame.bytes()), all;
  for (uint32_t i = 0; i < count / 3; ++i) {
    Append(&all, insert);
    frame.Write(i, frame_bytes.data());
    Append(&all, frame_bytes);
    Append(&all, sample);
    Append(&all, ping);
  }
  return all;
}

struct Outcome {
  LatencyHistogram ping;
  uint64_t sent_before_reading = 0;
};

Outcome PingDuring(Daemon& daemon, const std::function<uint64_t()>& work) {
  Outcome outcome;
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  Stream stream = daemon.Connect(Transport::kUnix);
  std::thread pinger([&] {
    try {
      PreferThisThread();
      outcome.ping = PingUntil(std::move(stream), stop);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    outcome.sent_before_reading = work();
  } catch (...) {
    failure = std::current_exception();
  }
  stop = true;
  pinger.join();
  if (failure) std::rethrow_exception(failure);
  return outcome;
}

nlohmann::json Describe(const std::vector<Outcome>& runs) {
  std::vector<double> worst, p99;
  nlohmann::json result;
  for (const Outcome& run : runs) {
    worst.push_back(run.ping.worst() / 1e3);
    p99.push_back(run.ping.Percentile(0.99) / 1e3);
  }
  return {{"worst_ms", Median(worst)},
          {"p99_ms", Median(p99)},
          {"worst_ms_of_each_run", worst},
          {"pings", runs[0].ping.count()},
          {"sent_before_reading", runs[0].sent_before_reading}};
}

}  // namespace

nlohmann::json MeasureFlood(const std::string& replayd, bool quick) {
  constexpr uint32_t kRequests = 12'000;
  const uint64_t total = quick ? 204'000 : 1'008'000;  // whole rounds
  const ScratchDirectory scratch;
  Daemon daemon({replayd, {}}, scratch);
  daemon.CreateBuffer({"flood", kRequests / 6, 64 << 20});
  daemon.CreateBuffer({"large", 2048, 1 << 30});
  PinThread(kServerCore + 1);  // both clients; the daemon has the other core
  {
    RequestRing ring = MakeInsertRing({"large", 64 << 10, 1024, 0});
    Stream stream = daemon.Connect(Transport::kUnix);
    RunPipeline(stream, ring, CountReplies, {16, 64 << 10, 0, 1024});
  }
  const Bytes mixed = MixedRequests(kRequests), samples = SampleRequest("large", 256, 1'000);
  std::vector<Outcome> idle, flooded, large;
  for (int run = 0; run < 3; ++run) {
    idle.push_back(PingDuring(daemon, [] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return uint64_t{0};
    }));
    flooded.push_back(
        PingDuring(daemon, [&] { return Flooder(daemon.Connect(Transport::kUnix), mixed, kRequests, total).Run(); }));
    // 16 MB each, hundreds ahead.
    large.push_back(
        PingDuring(daemon, [&] { return Flooder(daemon.Connect(Transport::kUnix), samples, 1, quick ? 100 : 400).Run(); }));
  }
  PinThread(-1);
  daemon.Stop();
  const nlohmann::json results = {
      {"requests", total}, {"idle", Describe(idle)}, {"flood", Describe(flooded)}, {"large_samples", Describe(large)}};
  std::cerr << "flood: " << results.dump() << "\n";
  return results;
}

}  // namespace replay::bench
