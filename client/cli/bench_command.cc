// bench: what one server gives to C clients at once, inserting and then sampling. Encoding, checksums and the reading of replies
// are inside the measurement, as they are for a generator or a trainer. It uses a buffer of its own and drops it.
//
//   insert   each client keeps `depth` requests of `batch` trajectories under way
//   sample   each client asks for `batch` draws, one request after the other

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace replay::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchArguments {
  uint32_t clients = 1;
  std::optional<uint64_t> payload_bytes = 16 << 10;
  uint32_t batch = 16;
  uint32_t depth = 4;
  milliseconds duration{5'000};
  std::optional<uint64_t> capacity_bytes = 64 << 20;
  std::string phase = "both";
};

// What one client measured, then the sum of all.
struct Measurement {
  std::vector<double> latencies_ms;  // one for each request
  uint64_t trajectories = 0;
  uint64_t bytes = 0;  // of frames
  double seconds = 0;
  std::optional<Error> error;

  void Add(Measurement other) {
    latencies_ms.insert(latencies_ms.end(), other.latencies_ms.begin(), other.latencies_ms.end());
    trajectories += other.trajectories;
    bytes += other.bytes;
    seconds = std::max(seconds, other.seconds);
    if (!error) error = std::move(other.error);
  }
  double Percentile(double percent) const {  // of sorted latencies
    if (latencies_ms.empty()) return 0;
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(latencies_ms.size())));
    return latencies_ms[std::clamp<size_t>(rank, 1, latencies_ms.size()) - 1];
  }
};

// About `bytes` as a frame: ids i32, mask u8, log-probs f32 make 9 bytes a token, the other fields about 300.
Trajectory MakeTrajectory(uint64_t bytes, std::mt19937_64* random) {
  const uint64_t length = std::max<uint64_t>(1, bytes > 300 ? (bytes - 300) / 9 : 1);
  Trajectory t;
  t.created_at_unix_ns = 1;
  t.token_ids.resize(length);
  for (int32_t& id : t.token_ids) id = static_cast<int32_t>((*random)() % 128'000);
  t.loss_mask.assign(length, 1);
  t.behaviour_logprobs.assign(length, -0.5f);
  t.correct = (*random)() % 2 == 0 ? Correctness::kYes : Correctness::kNo;
  return t;
}

class Bench {
 public:
  Bench(const Context& context, const BenchArguments& arguments) : context_(context), arguments_(arguments) {}
  int Run();

 private:
  Measurement InsertLoop(uint32_t client_index, Clock::time_point end);
  Measurement SampleLoop(Clock::time_point end);
  template <typename Loop>
  Measurement RunClients(Loop loop);
  int Measure(Client* client);
  void Show(const char* phase, const Measurement& m);
  bool GoOn(Clock::time_point end) const { return Clock::now() < end && !stop_->stopped(); }

  const Context& context_;
  const BenchArguments& arguments_;
  const std::string buffer_ = Format("bench-%08x", static_cast<unsigned>(std::random_device()()));
  std::optional<StopRequest> stop_;  // while there is a buffer to drop
  Table table_{{"", ">REQUESTS/S", ">TRAJECTORIES/S", ">MiB/S", ">P50 ms", ">P90 ms", ">P99 ms", ">P99.9 ms", ">MAX ms"}};
};

Measurement Bench::InsertLoop(uint32_t client_index, Clock::time_point end) {
  std::mt19937_64 random(client_index + 1);
  std::vector<Trajectory> batch;
  for (uint32_t i = 0; i < arguments_.batch; ++i) batch.push_back(MakeTrajectory(*arguments_.payload_bytes, &random));

  Measurement measurement;
  std::mutex mutex;
  std::condition_variable ended;
  uint32_t in_flight = 0;
  Client client(context_.client_options());  // After what its callbacks use, so that it ends before.
  const auto done = [&](Clock::time_point sent, const Result<InsertReceipt>& receipt) {
    const std::lock_guard lock(mutex);
    --in_flight;
    if (receipt) {
      measurement.latencies_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - sent).count());
      measurement.trajectories += receipt->count;
    } else if (!measurement.error) {
      measurement.error = receipt.error();
    }
    ended.notify_one();
  };
  const Clock::time_point start = Clock::now();
  for (uint64_t request = 0; GoOn(end); ++request) {
    for (uint32_t i = 0; i < batch.size(); ++i)
      batch[i].trajectory_id = Format("%u-%llu-%u", client_index, static_cast<unsigned long long>(request), i);
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return in_flight < arguments_.depth; });
    if (measurement.error) break;
    ++in_flight;
    lock.unlock();
    const Clock::time_point sent = Clock::now();
    client.InsertAsync(buffer_, batch, context_.timeout, [&done, sent](Result<InsertReceipt> receipt) { done(sent, receipt); });
  }
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return in_flight == 0; });  // Each call ends by its own deadline.
  measurement.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return measurement;
}

Measurement Bench::SampleLoop(Clock::time_point end) {
  Client client(context_.client_options());
  SampleOptions options;
  options.count = arguments_.batch;
  Measurement measurement;
  const Clock::time_point start = Clock::now();
  while (GoOn(end)) {
    const Clock::time_point sent = Clock::now();
    const Result<Batch> batch = client.Sample(buffer_, options, context_.timeout);
    if (!batch) {
      measurement.error = batch.error();
      break;
    }
    measurement.latencies_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - sent).count());
    measurement.trajectories += batch->draws.size();
    for (const TrajectoryView& view : batch->trajectories) measurement.bytes += view.frame_bytes().size();
  }
  measurement.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return measurement;
}

template <typename Loop>
Measurement Bench::RunClients(Loop loop) {
  std::vector<Measurement> each(arguments_.clients);
  std::vector<std::thread> threads;
  const Clock::time_point end = Clock::now() + arguments_.duration;
  for (uint32_t i = 0; i < arguments_.clients; ++i) threads.emplace_back([&each, &loop, i, end] { each[i] = loop(i, end); });
  for (std::thread& thread : threads) thread.join();
  Measurement sum;
  for (Measurement& one : each) sum.Add(std::move(one));
  std::sort(sum.latencies_ms.begin(), sum.latencies_ms.end());
  return sum;
}

void Bench::Show(const char* phase, const Measurement& m) {
  const double seconds = std::max(m.seconds, 1e-9);
  const double requests = static_cast<double>(m.latencies_ms.size()) / seconds;
  const double trajectories = static_cast<double>(m.trajectories) / seconds;
  const double mib = static_cast<double>(m.bytes) / seconds / (1 << 20);
  if (context_.json) {
    PrintJson({{"phase", phase},
               {"clients", arguments_.clients},
               {"payload_bytes", *arguments_.payload_bytes},
               {"batch", arguments_.batch},
               {"depth", arguments_.depth},
               {"seconds", m.seconds},
               {"requests", m.latencies_ms.size()},
               {"trajectories", m.trajectories},
               {"bytes", m.bytes},
               {"requests_per_second", requests},
               {"trajectories_per_second", trajectories},
               {"mib_per_second", mib},
               {"p50_ms", m.Percentile(50)},
               {"p90_ms", m.Percentile(90)},
               {"p99_ms", m.Percentile(99)},
               {"p999_ms", m.Percentile(99.9)},
               {"max_ms", m.Percentile(100)}});
  }
  const auto ms = [&m](double percent) { return Format("%.3f", m.Percentile(percent)); };
  table_.Add({phase, Format("%.0f", requests), Format("%.0f", trajectories), Format("%.1f", mib), ms(50), ms(90), ms(99),
              ms(99.9), ms(100)});
}

int Bench::Measure(Client* client) {
  Measurement inserted;
  if (arguments_.phase == "sample") {  // Something to draw: one batch of each client.
    inserted = InsertLoop(0, Clock::now() + std::min(arguments_.duration, milliseconds(500)));
  } else {
    inserted = RunClients([this](uint32_t index, Clock::time_point end) { return InsertLoop(index, end); });
  }
  if (inserted.error) return Fail(context_, *inserted.error, "insert");
  const Result<ServerStats> stats = client->Stats(buffer_);
  if (!stats) return Fail(context_, stats.error());
  if (!stats->buffers.empty() && stats->buffers[0].items > 0)
    inserted.bytes = inserted.trajectories * (stats->buffers[0].bytes / stats->buffers[0].items);
  if (arguments_.phase != "sample") Show("insert", inserted);
  if (arguments_.phase != "insert" && !stop_->stopped()) {
    const Measurement sampled = RunClients([this](uint32_t, Clock::time_point end) { return SampleLoop(end); });
    if (sampled.error) return Fail(context_, *sampled.error, "sample");
    Show("sample", sampled);
  }
  if (!context_.json) Print(table_.ToString());
  return stop_->stopped() ? kInterrupted : kOk;
}

int Bench::Run() {
  Client client(context_.client_options());
  BufferOptions options;
  options.capacity_bytes = arguments_.capacity_bytes;
  const Result<Done> created = client.CreateBuffer(buffer_, options);
  if (!created) return Fail(context_, created.error());
  stop_.emplace();
  if (!context_.json) {
    Say(Format("%u clients, %s a trajectory, %u a request, %u inserts under way, %s each; buffer %s", arguments_.clients,
               Bytes(*arguments_.payload_bytes).c_str(), arguments_.batch, arguments_.depth,
               Seconds(static_cast<double>(arguments_.duration.count()) / 1e3).c_str(), buffer_.c_str()));
  }
  const int exit_code = Measure(&client);
  const Result<Done> dropped = client.DropBuffer(buffer_);
  if (!dropped) return Fail(context_, dropped.error(), "drop buffer " + buffer_);
  return exit_code;
}

}  // namespace

void AddBenchCommand(CLI::App* app, Context* context) {
  const auto given = std::make_shared<BenchArguments>();
  CLI::App* bench =
      app->add_subcommand("bench", "Measure throughput and latency against a live server, in a buffer of its own");
  bench->footer(
      "Examples:\n"
      "  replayctl bench\n"
      "  replayctl bench --clients 8 --payload-bytes 64KiB --batch 64 --seconds 10\n"
      "  replayctl bench --phase insert --depth 1 --batch 1 --json | jq .p99_ms\n\n"
      "The buffer is called bench-..., and is dropped at the end, also after one Ctrl-C.");
  bench->add_option("--clients", given->clients, "Clients at once, each with its own connection")
      ->check(CLI::Range(1, 1'000))
      ->type_name("N")
      ->capture_default_str();
  AddBytes(bench, "--payload-bytes", &given->payload_bytes, "Size of a trajectory, about")->default_str("16KiB");
  bench->add_option("--batch", given->batch, "Trajectories a request")
      ->check(CLI::Range(1, 8'192))
      ->type_name("N")
      ->capture_default_str();
  bench->add_option("--depth", given->depth, "Inserts each client has under way")
      ->check(CLI::Range(1, 1'024))
      ->type_name("N")
      ->capture_default_str();
  AddDuration(bench, "--seconds", &given->duration, "Length of each phase");
  AddBytes(bench, "--capacity-bytes", &given->capacity_bytes, "Size of the buffer")->default_str("64MiB");
  bench->add_option("--phase", given->phase, "What to measure: insert | sample | both")
      ->check(CLI::IsMember({"insert", "sample", "both"}).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  bench->callback([=] { context->run = [=] { return Bench(*context, *given).Run(); }; });
}

}  // namespace replay::cli
