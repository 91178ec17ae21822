#include <sys/epoll.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <thread>

#include "schema/protocol.capnp.h"
#include "tests/bench/crowd.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/systems.h"

namespace replay::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kWaiters = 1000;
constexpr uint32_t kMinSize = 64;

double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// One blocked Sample on each of many connections.
class Crowd {
 public:
  Crowd(Daemon& daemon, const std::string& buffer, uint32_t timeout_ms)
      : daemon_(daemon), buffer_(buffer), timeout_ms_(timeout_ms) {
    for (uint32_t i = 0; i < kWaiters; ++i) streams_.push_back(daemon.Connect(Transport::kUnix));
    const Bytes request = SampleRequest(buffer, 1, timeout_ms);
    for (Stream& stream : streams_) {
      sent_.push_back(Clock::now());
      stream.Send(request);
    }
  }

  void AwaitBlocked() {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (daemon_.Stats(buffer_).waiting_samples < kWaiters) {
      if (Clock::now() > deadline) Fail("the daemon shows fewer than 1,000 waiting samples");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Milliseconds from each one's due time to its answer, which must have this code. The due time is `due`, or, if that is
  // not given, each one's own deadline.
  std::vector<double> AwaitAnswers(schema::ErrorCode code, std::optional<Clock::time_point> due) {
    const Stream poll(epoll_create1(0));
    for (uint32_t i = 0; i < kWaiters; ++i) {
      epoll_event event{.events = EPOLLIN, .data = {.u32 = i}};
      epoll_ctl(poll.fd(), EPOLL_CTL_ADD, streams_[i].fd(), &event);
    }
    std::vector<double> late;
    while (late.size() < kWaiters) {
      epoll_event events[64];
      const int count = epoll_wait(poll.fd(), events, 64, static_cast<int>(timeout_ms_) + 5'000);
      if (count <= 0) Fail("only " + std::to_string(late.size()) + " of 1,000 waiters were answered in time");
      const auto now = Clock::now();
      for (int i = 0; i < count; ++i) {
        const uint32_t index = events[i].data.u32;
        if (ReadCode(streams_[index]) != code) Fail("a waiter was answered with another code than expected");
        epoll_ctl(poll.fd(), EPOLL_CTL_DEL, streams_[index].fd(), nullptr);
        late.push_back(Milliseconds(now - due.value_or(sent_[index] + std::chrono::milliseconds(timeout_ms_))));
      }
    }
    return late;
  }

 private:
  static schema::ErrorCode ReadCode(Stream& stream) {
    Preamble preamble;
    stream.ReceiveAll({reinterpret_cast<uint8_t*>(&preamble), sizeof preamble});
    std::vector<uint64_t> words(preamble.control_words);
    stream.ReceiveAll({reinterpret_cast<uint8_t*>(words.data()), words.size() * 8});
    Bytes payload(preamble.payload_bytes);
    stream.ReceiveAll(payload);
    ControlReader reader(words.data(), preamble.control_words);
    return reader.Root<schema::Reply>().getCode();
  }

  Daemon& daemon_;
  const std::string buffer_;
  const uint32_t timeout_ms_;
  std::vector<Stream> streams_;
  std::vector<Clock::time_point> sent_;
};

void InsertSome(Daemon& daemon, const std::string& buffer, uint32_t count, uint64_t first_id) {
  RequestRing ring = MakeInsertRing({buffer, 4096, count, first_id, false});
  Stream stream = daemon.Connect(Transport::kUnix);
  RunPipeline(stream, ring, CountReplies, {1, 4096, 0, count});
}

double WorstDistance(const std::vector<double>& late) {
  double worst = 0;
  for (double ms : late) worst = std::max(worst, std::abs(ms));  // too early counts as well
  return worst;
}

nlohmann::json TimeOutAndCost(Daemon& daemon, bool quick) {
  daemon.CreateBuffer({"timeout", 1000, 64 << 20, kMinSize});
  InsertSome(daemon, "timeout", kMinSize - 1, 0);
  const int64_t rss = daemon.process().RssBytes();
  const int threads = daemon.process().ThreadCount();
  Crowd crowd(daemon, "timeout", quick ? 2'000 : 5'000);
  crowd.AwaitBlocked();
  const double rss_each_kib = static_cast<double>(daemon.process().RssBytes() - rss) / 1024 / kWaiters;
  const int more_threads = daemon.process().ThreadCount() - threads;
  const double late = WorstDistance(crowd.AwaitAnswers(schema::ErrorCode::TIMED_OUT, std::nullopt));
  daemon.DropBuffer("timeout");
  return {{"rss_each_kib", rss_each_kib}, {"threads_added", more_threads}, {"timeout_late_ms", late}};
}

double Wake(Daemon& daemon) {
  daemon.CreateBuffer({"wake", 1000, 64 << 20, kMinSize});
  InsertSome(daemon, "wake", kMinSize - 1, 0);
  Crowd crowd(daemon, "wake", 30'000);
  crowd.AwaitBlocked();
  RequestRing ring = MakeInsertRing({"wake", 4096, 1, kMinSize, false});
  Stream stream = daemon.Connect(Transport::kUnix);
  const auto inserted = Clock::now();
  stream.Send(ring.Take(1).bytes);
  const double late = WorstDistance(crowd.AwaitAnswers(schema::ErrorCode::OK, inserted));
  daemon.DropBuffer("wake");
  return late;
}

// Inserts a second into a buffer whose min_size is out of reach, 128 under way.
double InsertRate(Daemon& daemon, RequestRing& ring, bool with_waiters) {
  daemon.CreateBuffer({"busy", 1'000'000, 2ull << 30, 1'000'000});
  std::optional<Crowd> crowd;
  if (with_waiters) {
    crowd.emplace(daemon, "busy", 60'000);
    crowd->AwaitBlocked();
  }
  const Load load = RunClients(1, kServerCore, [&](uint32_t) {
    Stream stream = daemon.Connect(Transport::kUnix);
    return RunPipeline(stream, ring, CountReplies, {128, 4096, 0, ring.count()});
  });
  crowd.reset();
  daemon.DropBuffer("busy");
  return static_cast<double>(load.operations) / load.seconds;
}

}  // namespace

nlohmann::json MeasureWaiters(const std::string& replayd, bool quick) {
  const ScratchDirectory scratch;
  Daemon daemon({replayd, {}}, scratch);
  PinThread(kServerCore + 1);
  nlohmann::json results = TimeOutAndCost(daemon, quick);
  results["wake_late_ms"] = Wake(daemon);

  RequestRing ring = MakeInsertRing({"busy", 4096, 50'000, 0, false});
  std::vector<double> ratios, rates;
  for (int repeat = -1; repeat < (quick ? 7 : 15); ++repeat) {
    const bool waiters_first = repeat % 2 == 0;
    const double first = InsertRate(daemon, ring, waiters_first), second = InsertRate(daemon, ring, !waiters_first);
    if (repeat < 0) continue;  // memory is touched for the first time
    ratios.push_back(waiters_first ? first / second : second / first);
    rates.push_back(waiters_first ? second : first);
  }
  results["insert_ratio"] = Median(ratios);
  results["inserts_per_s_without_waiters"] = Median(rates);
  PinThread(-1);
  daemon.Stop();
  std::cerr << "waiters: " << results.dump() << "\n";
  return results;
}

}  // namespace replay::bench
