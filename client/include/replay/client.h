#pragma once
// The client of replayd.
//
//   replay::Client client({.address = "127.0.0.1:7070"});
//   client.CreateBuffer("rollouts", {.capacity_items = 2268, .policy = "positive_bias", .delta = "0.25"});
//
//   auto writer = client.NewWriter("rollouts");                // generator
//   writer->InsertGroup(group);                                // pipelined; returns when there is room in the window
//   if (auto done = writer->Flush(5s); !done) std::cerr << done.error().ToString() << "\n";
//
//   auto sampler = client.NewSampler("rollouts", {.count = 64, .prefetch = 2});  // trainer
//   for (int64_t step = 12; step < 1000; ++step) {            // the step that will use the batch
//     auto batch = sampler->Next(step, 30s);
//     if (!batch) { std::cerr << batch.error().ToString() << "\n"; continue; }  // says why: "12 of 64 items present"
//     for (const replay::Draw& draw : batch->draws) Train(batch->trajectory(draw).token_ids());
//     client.PublishVersion({.version = step + 1, .step = step + 1});
//   }
//
// Nothing here throws and nothing waits for ever: each call takes a timeout (0: now; the server ends it after its own
// limits.max_wait, an hour by default) and returns a value or an Error that explains itself. A Client may be used from several
// threads; a Writer and a Sampler belong to one thread each. All network work happens on one background thread of the Client.
// Writer and Sampler make a lost connection again with capped, jittered back-off, and may outlive their Client. A call of the
// Client itself fails at once if there is no server; calls at one time use a connection each, so that one which waits holds up
// no other. A callback runs on the background thread: it must not block
// or throw, and a blocking call within it is refused.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/buffer_options.h"
#include "replay/error.h"
#include "replay/groups.h"
#include "replay/history.h"
#include "replay/stats.h"
#include "replay/trajectory.h"

namespace replay {

using std::chrono::milliseconds;

struct InsertReceipt {
  uint64_t first_item = 0;  // Insertion number of the first trajectory; the others follow.
  uint32_t count = 0;
  uint32_t refused = 0;  // Not stored and not in count: of groups whose members have one reward, where zero_spread is "refuse".
  bool duplicate = false;  // An earlier attempt had arrived.
  std::string level{};     // "memory": survives nothing | "process": kill -9 | "disk": power loss
  uint64_t live = 0;       // Items in the buffer afterwards.
  bool pending = false;    // Of InsertMembers: a group is not complete yet, and nobody sees it. first_item is 0 then.
};

struct Draw {
  uint32_t frame = 0;                 // Index of its trajectory in the batch; repeats share one.
  uint32_t draw_count = 0;            // Including this draw.
  double probability = 0;             // P(this slot returns this item | the state when the sample began)
  int64_t staleness = 0;              // Gradient steps.
  int64_t steps_since_last_use = -1;  // -1: first use.
  uint64_t item = 0;                  // Insertion number.
  float reward = 0;                   // As updated last; the trajectory keeps what was inserted.
  uint32_t revision = 0;              // How often the item was updated.
  std::optional<float> advantage{};   // As updated last; none: that of the trajectory counts.
  uint32_t part = 0;                  // Of a composed batch: the part it was drawn for. `probability` is that within the part.
};

struct Batch {
  std::vector<Draw> draws;                   // [count]
  std::vector<TrajectoryView> trajectories;  // distinct
  int64_t step = 0;                          // What staleness was measured against.
  uint64_t withheld = 0;                     // Live items newer than step, too stale, or of an older epoch.
  bool planned = false;                      // Drawn before, for this consumer and step: counted then.
  std::vector<uint32_t> group_sizes;         // Where the buffer's unit is the group: the draws of each, one behind the other.
  uint64_t lease = 0;                        // Where the buffer holds what is drawn: for Acknowledge.
  // n of each part, or of the batch that has none: trajectories (or groups) it could draw when it began. Empty: an older server.
  std::vector<uint64_t> candidates;
  // (n * probability)^-beta, 1 for a uniform draw (Schaul et al. 2016, arXiv 1511.05952, section 3.4). Not divided by the batch's
  // largest, as they do to bound it: that changes with who else was drawn, and beta = 1 would no longer make the mean over a part
  // that over its candidates. Means nothing for lifo, fifo, epoch and unused_first: they have their order. NaN: n is not known.
  double importance_weight(const Draw& draw, double beta = 1) const;
  const TrajectoryView& trajectory(const Draw& draw) const { return trajectories[draw.frame]; }
};

struct StoredTrajectory {
  TrajectoryView trajectory;
  uint64_t item = 0;
  uint32_t draw_count = 0;
  float reward = 0;  // As updated last.
  uint32_t revision = 0;
  std::vector<std::pair<std::string, TagValue>> late_tags{};  // As updated, in place of those of the same name.
};

struct PolicyVersion {
  std::string run_id{};
  uint64_t epoch = 0;
  int64_t version = 0;
  int64_t step = 0;
  std::string label{};
  std::string uri{};  // Where the weights are. The registry never carries the weights themselves.
  int64_t published_at_unix_ns = 0;
};

struct Cost {  // Busy time since the last report.
  double generation_seconds = 0;
  uint64_t generated_trajectories = 0;
  uint64_t generated_tokens = 0;
  double training_seconds = 0;
  uint64_t trained_draws = 0;
  uint64_t trained_tokens = 0;
  uint32_t workers = 0;   // 0: the reporter does not generate
  uint32_t trainers = 0;  // 0: the reporter does not train
};

struct WaiterInfo {
  std::string buffer, verb, detail, peer;
  WaitReason reason = WaitReason::kNone;
  uint64_t waited_ms = 0, remaining_ms = 0;
};

struct ServerInfo {
  std::string version;
  uint64_t generation = 0;  // Another number than before: the server came up empty.
  double round_trip_ms = 0;
};

struct ClientOptions {
  std::string address = "127.0.0.1:7070";  // "host:port" or "unix:/path"
  std::string name{};                      // Shown by the server in `waiters` and its log.
  milliseconds connect_timeout{5'000};
  milliseconds call_timeout{30'000};  // Longest time for a reply beyond the wait a call asked for.
};

// What is known later than the insert: the trajectory itself does not change.
struct ItemUpdate {
  std::string trajectory_id{};
  std::optional<float> priority{};  // 0 (never drawn by the selector prioritized) to 1e9
  std::optional<float> reward{};    // Where nobody said whether it is correct, that is decided by it anew.
  std::optional<Correctness> correct{};
  std::optional<uint32_t> revision{};                    // Only if the item has this one.
  std::optional<float> advantage{};                      // One for each token is a column.
  std::vector<std::pair<std::string, TagValue>> tags{};  // Each in place of the one of its name, also for the views.
  std::vector<Column> columns{};                         // Likewise: reference log-probs, advantages, verdicts on steps …
};

struct UpdateResult {
  enum class Outcome : uint8_t { kDone, kNotThere, kOtherRevision };
  Outcome outcome = Outcome::kDone;
  uint32_t revision = 0;  // Of the item now.
};

// A part of a composed batch.
struct SamplePart {
  uint32_t count = 1;
  std::string view{};                      // Empty: the whole buffer, by its selector.
  std::optional<int64_t> max_staleness{};  // Beside those of the Sample and the buffer; the smallest counts.
  int64_t min_staleness = 0;               // Nothing fresher, so that a replayed part leaves the fresh ones to another; 0: any.
  bool or_next = false;                    // What is lacking is drawn by the next part, instead of waiting for it.
  std::string buffer{};                    // Empty: that of the Sample. Then or_next goes to a part of the same buffer only.
};

struct SampleOptions {
  uint32_t count = 1;
  std::optional<int64_t> step{};           // The gradient step that will use the batch.
  std::optional<int64_t> max_staleness{};  // Beside that of the buffer; the smaller one counts.
  uint32_t given_back = 0;                 // Earlier draws that were never used.
  std::string view{};                      // Draw from this view.
  std::vector<std::string> columns{};      // Send these columns along, where a trajectory has them; at most 16.
  // Instead of count and view: all of them or none, in this order. If they name several buffers (8 at most), one of these after
  // the other is drawn from, all within the one timeout.
  std::vector<SamplePart> parts{};
  // With a consumer, a repeatable batch: all `world_size` ranks of (consumer, step) share one draw, each gets `count` slots of it,
  // and the same ones when it asks again. The newest 4 steps of a consumer are kept. Needs `step`.
  // Of a buffer with parts, rank and world_size (= parts) say whose part is drawn from, also without a consumer.
  std::string consumer{};
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

struct WriterOptions {
  uint32_t max_in_flight = 128;  // Requests sent and not yet answered.
  uint64_t max_in_flight_bytes = 64 << 20;
  uint32_t batch_trajectories = 64;     // A request is sent when it holds this many …
  uint64_t batch_bytes = 1 << 20;       // … or this many bytes …
  milliseconds linger{2};               // … or after this time.
  milliseconds insert_timeout{60'000};  // How long the server may hold an insert back (pacing, memory) before it says why;
                                        // the Writer then offers it again.
  milliseconds give_up_after{300'000};  // Without a server that takes inserts; then those sent before end as kOutcomeUnknown,
                                        // those never sent as kUnavailable.
  std::string level{};  // What an insert is to survive before it is acknowledged, see InsertReceipt; "": the buffer's.
  milliseconds back_off_first{50};
  milliseconds back_off_most{5'000};
};

struct SamplerOptions {
  uint32_t count = 1;
  std::string view{};                  // as in SampleOptions
  std::vector<std::string> columns{};  // likewise
  std::vector<SamplePart> parts{};     // likewise; then count is the sum of theirs
  std::string consumer{};              // likewise; prefetch is then at most 1
  uint32_t rank = 0;                   // likewise, with world_size
  uint32_t world_size = 1;
  uint32_t prefetch = 1;         // Batches asked for ahead. They count as draws when the server makes them.
  int64_t max_prefetch_age = 0;  // A prefetched batch made for a step this much older than Next's is dropped and given back.
  milliseconds wait_timeout{60'000};
};

class Writer;
class Sampler;

class Client {
 public:
  explicit Client(ClientOptions options);  // Connects at the first call.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<ServerInfo> Ping();
  Result<Done> CreateBuffer(const std::string& name, const BufferOptions& options);
  Result<Done> AlterBuffer(const std::string& name, const BufferOptions& options);  // changes the options that are set
  Result<Done> DropBuffer(const std::string& name);

  // All or nothing; groups must be whole. The server may hold it back (pacing, memory) up to `timeout`. If the connection
  // breaks before the reply, Insert and Sample end as kOutcomeUnknown (a Writer sends again, and stores once).
  Result<InsertReceipt> Insert(const std::string& buffer, std::span<const Trajectory> trajectories, milliseconds timeout);
  Result<Batch> Sample(const std::string& buffer, const SampleOptions& options, milliseconds timeout);
  // Those that are there, at most 512 ids a call; Delete likewise. With these columns, where a trajectory has them; at most 16.
  Result<std::vector<StoredTrajectory>> Get(const std::string& buffer, std::span<const std::string> ids,
                                            std::span<const std::string> columns = {});
  // Oldest first, the items inserted after insertion number `after`.
  Result<std::vector<StoredTrajectory>> Scan(const std::string& buffer, uint64_t after, uint32_t limit,
                                             std::span<const std::string> columns = {});
  Result<uint32_t> Delete(const std::string& buffer, std::span<const std::string> ids);

  // Each by itself, in this order, at most 512 a call; a result for each.
  Result<std::vector<UpdateResult>> Update(const std::string& buffer, std::span<const ItemUpdate> updates);
  // Of a buffer with prompt_history: its prompts of one source with an index above `after`, at most `limit` (4096) a page.
  Result<HistoryPage> History(const std::string& buffer, const std::string& source, int64_t after = -1, uint32_t limit = 4096);

  // Where the buffer holds what is drawn: it was used, and leaves once it has had max_draws; `give_back`: as if it had not been
  // drawn. All of the lease, or the named insertion numbers. How many trajectories it ended for. A lease ends by itself when it
  // expires, and when the connection that sampled is closed: with its Sampler, or with this Client.
  Result<uint32_t> Acknowledge(const std::string& buffer, uint64_t lease, std::span<const uint64_t> items = {},
                               bool give_back = false);

  // Announces a group, or renews its lease. With `batch`, waits up to `timeout` until it is admitted.
  Result<ReservedGroup> ReserveGroup(const std::string& buffer, const Reservation& reservation,
                                     milliseconds timeout = milliseconds(0));
  // Members of reserved groups, any number of them in any order.
  Result<InsertReceipt> InsertMembers(const std::string& buffer, std::span<const Trajectory> members, milliseconds timeout);
  // Complete with the members that are there; or without any of them.
  Result<ReservedGroup> CommitGroup(const std::string& buffer, const std::string& group_id);
  Result<ReservedGroup> DropGroup(const std::string& buffer, const std::string& group_id);
  Result<Admission> Admit(const std::string& buffer, const AdmissionRequest& request, milliseconds timeout = milliseconds(0));

  Result<PolicyVersion> PublishVersion(const PolicyVersion& version);
  // The newest version later than (epoch, version), waiting for one; any version if `version` is absent.
  Result<PolicyVersion> WaitVersion(const std::string& run_id, uint64_t epoch, std::optional<int64_t> version,
                                    milliseconds timeout);
  Result<std::vector<PolicyVersion>> Versions(const std::string& run_id);
  Result<Done> ReportCost(const std::string& buffer, const Cost& cost);
  Result<ServerStats> Stats(const std::string& buffer = "");  // of all buffers when empty
  Result<std::vector<WaiterInfo>> Waiters(const std::string& buffer = "");

  // The same without blocking: `done` is called once, on the background thread; on this one if the arguments are refused.
  void InsertAsync(const std::string& buffer, std::span<const Trajectory> trajectories, milliseconds timeout,
                   std::function<void(Result<InsertReceipt>)> done);
  void SampleAsync(const std::string& buffer, const SampleOptions& options, milliseconds timeout,
                   std::function<void(Result<Batch>)> done);

  std::unique_ptr<Writer> NewWriter(const std::string& buffer, WriterOptions options = {});
  std::unique_ptr<Sampler> NewSampler(const std::string& buffer, SamplerOptions options = {});

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

// Inserts with many requests under way on a connection of its own. Each request carries (writer id, sequence), so that one
// which is sent again after a broken connection is stored once. Several calls may share a request; if it is refused, each is
// offered on its own, so that only what deserves it fails. If the server comes back empty, what it had acknowledged is reported
// once as kContentLost, by OnResult and Flush; what was under way is sent to the new one.
class Writer {
 public:
  // Flushes for at most a second; what is then unacknowledged is dropped. Call Flush to know.
  ~Writer();
  // Checks and encodes on this thread (errors are returned at once), queues, and returns; blocks while the window is full, at
  // most `timeout`. One call is one atomic unit: it is stored whole or not at all.
  Result<Done> InsertGroup(std::span<const Trajectory> group, milliseconds timeout = milliseconds(60'000));
  Result<Done> Insert(const Trajectory& trajectory, milliseconds timeout = milliseconds(60'000));
  // Waits until everything is acknowledged. The first failure since the last Flush is returned, then forgotten.
  Result<Done> Flush(milliseconds timeout);
  // Called on the background thread for each request that ended.
  void OnResult(std::function<void(const Result<InsertReceipt>&)> callback);

  struct Progress {
    uint64_t accepted = 0, duplicate = 0, failed = 0, in_flight = 0;  // trajectories
    uint64_t refused = 0;  // Not stored, of requests that succeeded: see InsertReceipt. In none of the others.
    uint64_t reconnects = 0, content_lost = 0;  // content_lost: acknowledged trajectories a restarted server no longer has
  };
  Progress progress() const;

  class Impl;
  explicit Writer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

// Draws ahead on a connection of its own, one request under way at a time: after Next(s), batches for s+1 … s+prefetch. A batch
// says in `step` which step it was drawn for, and its staleness is relative to that; it is never used for an earlier one.
class Sampler {
 public:
  ~Sampler();
  // The batch for gradient step `step`. A prefetched batch that is too old for it is dropped and given back to pacing.
  Result<Batch> Next(int64_t step, milliseconds timeout);
  struct Progress {
    uint64_t batches = 0, dropped_stale = 0, reconnects = 0;
    double waited_seconds = 0;
  };
  Progress progress() const;

  class Impl;
  explicit Sampler(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace replay
