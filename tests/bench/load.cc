#include "tests/bench/load.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <thread>

#include "schema/protocol.capnp.h"
#include "tests/bench/process.h"

namespace replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReplyBufferBytes = 256 << 10;

double ThreadCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// One for each thread, its pages touched once.
std::span<uint8_t> ReceiveBuffer(size_t bytes) {
  static thread_local std::unique_ptr<uint8_t[]> memory;
  static thread_local size_t capacity = 0;
  if (bytes > capacity) {
    memory.reset(new uint8_t[bytes]());
    capacity = bytes;
  }
  return {memory.get(), bytes};
}

void CheckSampleReply(std::span<const uint8_t> message, uint32_t expected_draws, Load* load) {
  Preamble preamble;
  std::memcpy(&preamble, message.data(), sizeof preamble);
  load->payload_bytes += preamble.payload_bytes;
  if (expected_draws == 0) return;
  ControlReader reader(message.data() + sizeof preamble, preamble.control_words);
  const auto reply = reader.Root<schema::Reply>();
  if (reply.getCode() != schema::ErrorCode::OK) Fail(std::string("sample failed: ") + reply.getMessage().cStr());
  if (reply.getSample().getDraws().size() != expected_draws) Fail("a sample has another number of draws than was asked for");
}

}  // namespace

void LatencyHistogram::Add(double microseconds, uint64_t count) {
  const double octaves = std::log2(std::max(microseconds, 0.1) / 0.1);
  const auto bucket = static_cast<size_t>(octaves * kPerOctave);
  buckets_[std::min(bucket, buckets_.size() - 1)] += count;
  count_ += count;
  worst_ = std::max(worst_, microseconds);
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  worst_ = std::max(worst_, other.worst_);
}

double LatencyHistogram::Percentile(double fraction) const {
  uint64_t before = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    before += buckets_[i];
    if (before > 0 && static_cast<double>(before) >= fraction * static_cast<double>(count_))
      return std::min(worst_, 0.1 * std::exp2((static_cast<double>(i) + 1) / kPerOctave));
  }
  return 0;
}

void Load::Merge(const Load& other) {
  operations += other.operations;
  payload_bytes += other.payload_bytes;
  seconds = std::max(seconds, other.seconds);
  client_cpu_seconds += other.client_cpu_seconds;
  latency.Merge(other.latency);
}

namespace {

// Who of the requests under way was sent when: one entry for each send.
class SendTimes {
 public:
  void Sent(uint32_t count) { sends_.push_back({Clock::now(), count}); }
  void Answered(uint32_t count, LatencyHistogram* latency) {
    const auto now = Clock::now();
    while (count > 0) {
      Entry& first = sends_.front();
      const uint32_t taken = std::min(count, first.count);
      latency->Add(std::chrono::duration<double, std::micro>(now - first.at).count(), taken);
      count -= taken;
      if ((first.count -= taken) == 0) sends_.pop_front();
    }
  }

 private:
  struct Entry {
    Clock::time_point at;
    uint32_t count;
  };
  std::deque<Entry> sends_;
};

}  // namespace

Load KeepWindow(const PipelineOptions& options, const std::function<uint32_t(uint32_t)>& send,
                const std::function<uint32_t()>& receive) {
  Load load;
  SendTimes times;
  const auto begin = Clock::now();
  uint64_t sent = 0;
  bool more = true;
  while (more || sent > load.operations) {
    while (more && sent - load.operations < options.depth) {
      const uint64_t room = std::min(options.depth - (sent - load.operations), options.max_operations - sent);
      const uint32_t count = send(static_cast<uint32_t>(room));
      times.Sent(count);
      sent += count;
      more = sent < options.max_operations;
    }
    const uint32_t replies = receive();
    load.operations += replies;
    times.Answered(replies, &load.latency);
    if (options.seconds > 0 && SecondsSince(begin) > options.seconds) more = false;
  }
  load.seconds = SecondsSince(begin);
  load.payload_bytes = load.operations * options.payload_bytes;
  return load;
}

Load RunPipeline(Stream& stream, RequestRing& ring, const ReplyCounter& count_replies, const PipelineOptions& options) {
  const std::span<uint8_t> buffer = ReceiveBuffer(kReplyBufferBytes);
  size_t held = 0;
  const auto send = [&](uint32_t most) {
    const RequestRing::Run run = ring.Take(most);
    stream.Send(run.bytes);
    return run.count;
  };
  const auto receive = [&] {
    uint32_t replies = 0;
    while (replies == 0) {
      held += stream.Receive(buffer.subspan(held));
      const size_t used = count_replies(buffer.first(held), &replies);
      std::memmove(buffer.data(), buffer.data() + used, held - used);
      held -= used;
    }
    ring.Acknowledge(replies);
    return replies;
  };
  return KeepWindow(options, send, receive);
}

Load RunSample(Stream& stream, const SampleOptions& options) {
  Load load;
  const std::span<uint8_t> buffer = ReceiveBuffer(options.reply_bytes_most);
  const auto begin = Clock::now();
  auto now = begin;
  while (now - begin < std::chrono::duration<double>(options.seconds)) {
    stream.Send(options.requests[load.operations % options.requests.size()]);
    size_t held = 0;
    std::optional<uint64_t> size;
    if (options.redis_reply_bytes > 0) size = options.redis_reply_bytes;
    while (!size || held < *size) {
      held += stream.Receive(buffer.subspan(held));
      if (!size) size = MessageBytes(buffer.first(held));
      if (size && *size > buffer.size()) Fail("a reply is larger than the bench's buffer");
    }
    if (options.redis_reply_bytes > 0) {
      if (buffer[0] != '*' || held != *size) Fail("Redis answered something else than the values");
      load.payload_bytes += options.payload_bytes;
    } else {
      CheckSampleReply(buffer.first(held), options.expected_draws, &load);
    }
    ++load.operations;
    const auto then = std::exchange(now, Clock::now());
    load.latency.Add(std::chrono::duration<double, std::micro>(now - then).count());
  }
  load.seconds = std::chrono::duration<double>(now - begin).count();
  return load;
}

Load RunClients(uint32_t clients, int core, const std::function<Load(uint32_t client)>& one) {
  std::vector<Load> loads(clients);
  std::vector<std::exception_ptr> failures(clients);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      try {
        PinThread(core);
        const double before = ThreadCpuSeconds();
        loads[i] = one(i);
        loads[i].client_cpu_seconds = ThreadCpuSeconds() - before;
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  Load all;
  for (const Load& load : loads) all.Merge(load);
  return all;
}

}  // namespace replay::bench
