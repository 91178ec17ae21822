#pragma once
// ReplayService: the verbs, and all waiting for a condition.
//
// Each buffer lives on one I/O thread, its home. A call on the home thread is decided at once or waits there; a call from
// another thread is sent over whole, once per request. What all threads share is an immutable value that is replaced whole
// (directory, version registry) by the control thread, threads[0], or an atomic reservation (memory).
//
// Waiting. Per buffer one FIFO of inserts and one of samples. Whoever changes a buffer pumps it: while the head of a queue can
// be decided, it is decided there and then and woken with its result, so that no wake-up is lost or stolen, and nobody behind
// the head is looked at. A waiter leaves at its deadline, when its peer goes away, when the buffer is dropped or when the daemon drains.

#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "schema/message.h"
#include "server/buffer.h"
#include "server/codec.h"
#include "server/config.h"
#include "server/io_thread.h"
#include "server/joined_sample.h"
#include "server/storage_thread.h"

namespace replay::server {

using SteadyTime = std::chrono::steady_clock::time_point;
// The time of a Buffer.
inline uint64_t MillisecondsOf(SteadyTime time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count());
}

// Who calls: what a waiter is known by.
struct Caller {
  int fd = -1;
  const std::string* peer = nullptr;
  SteadyTime deadline;
};

// A call that waits; lives in the frame of the coroutine that waits.
struct Waiter : PeerWatch::Listener {
  enum class End : uint8_t { kPending, kDecided, kTimedOut, kPeerGone, kBufferDropped, kDraining };
  Waiter(IoThread& home, const Caller& caller, Verb waiting_verb)
      : timer(home.executor()), who(caller), verb(waiting_verb), since(std::chrono::steady_clock::now()) {}
  virtual ~Waiter() = default;
  // Decides the call if it can be decided now.
  virtual bool Attempt() = 0;
  virtual std::string Why() const = 0;
  virtual WaitReason Reason() const = 0;
  // How much deciding it costs, in trajectories: bounds the work of one pump.
  virtual uint32_t Cost() const { return 1; }
  // The first end counts: a peer that leaves after its call was decided changes nothing.
  void Finish(End how) {
    if (end != End::kPending) return;
    end = how;
    timer.cancel();
  }
  void OnPeerGone() override { Finish(End::kPeerGone); }

  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor> timer;
  const Caller who;
  const Verb verb;
  const SteadyTime since;
  End end = End::kPending;
  std::string buffer;  // for the list of waiters
};

// What a waiter that was not decided is told.
Verdict EndVerdict(const Waiter& waiter);

// Waits until what was decided survives; lives in the frame of the coroutine that waits.
struct KeepWaiter {
  KeepWaiter(IoThread& home, const BufferHost& waited_for) : timer(home.executor()), host(waited_for) {}
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor> timer;
  uint64_t record = 0;
  const BufferHost& host;
  AcknowledgementLevel level = AcknowledgementLevel::kDisk;
};

// A buffer and its queues. `buffer` and all below it belong to the home thread; null once dropped.
struct BufferHost : std::enable_shared_from_this<BufferHost> {
  BufferHost(IoThread& home_thread, std::unique_ptr<Buffer> hosted);

  IoThread& home;
  const std::string name;
  std::unique_ptr<Buffer> buffer;
  std::list<Waiter*> insert_waiters;
  std::list<Waiter*> sample_waiters;
  std::list<Waiter*> admit_waiters;  // for admission: apart, since they wait while members of their groups come in
  SteadyTime last_produced;          // the last Insert, or when a reservation was last held
  bool pump_posted = false;
  // The time of the buffer is this much ahead of the steady clock, which begins anew when the machine does.
  uint64_t time_offset_ms = 0;
  // Where it is kept on disk: what it has decided, until it is handed over.
  Journal journal;
  uint64_t record_bytes = 0, frame_bytes = 0, state_bytes = 0;  // handed over since the state was saved; of that state
  bool saving = false;

  // Any thread. How many of the records survive kill -9, and a power cut.
  std::atomic<uint64_t> written_records{0};
  std::atomic<uint64_t> kept_records{0};
  std::atomic<bool> keeping_failed{false};
  std::atomic<uint32_t> waiting_for_written{0};  // who waits for those
  std::atomic<uint64_t> written_frame{0};        // Frames with a number up to this one are on disk.
  bool Survives(uint64_t record, AcknowledgementLevel level) const {
    if (level == AcknowledgementLevel::kMemory) return true;
    return (level == AcknowledgementLevel::kDisk ? kept_records : written_records).load() >= record;
  }
  // Connections that have inserted / sampled; any thread.
  std::atomic<uint32_t> producers{0};
  std::atomic<uint32_t> consumers{0};

  // Of the control thread.
  BufferOptions declared;
  bool altering = false;
  uint64_t kept_id = 0;  // constant; 0: it is not kept
};

// What a call of a buffer that is no longer there is told.
Verdict Dropped(const BufferHost& host);

struct InsertCall {
  InsertRequest request;
  SteadyTime received_at;
  InsertResult result;
  Verdict verdict;
};

struct SampleCall {
  SampleRequest request;
  SampleResult result;
  Verdict verdict;
  std::shared_ptr<const Database::View> view;  // What the disk had when it was decided, if some of its frames are absent.
};

struct ReserveCall {
  ReserveRequest request;
  ReserveResult result = {};
  Verdict verdict = {};
};

struct AdmitCall {
  AdmitRequest request;
  AdmitResult result = {};
  Verdict verdict = {};
};

// What kNotFound says of a buffer: "there is no buffer \"rollouts\"".
std::string NoSuchBuffer(const std::string& name);

class ReplayService {
 public:
  // `budget` outlives the threads: frames that are freed with them give their bytes back.
  ReplayService(const ServerConfig& config, std::vector<std::unique_ptr<IoThread>>& threads, MemoryBudget& budget,
                StorageThread& storage);

  // Takes over what was stored, and declares the configuration's buffers; before the threads run. "" or the error.
  std::string DeclareBuffers();

  // --- Called on the session's thread ------------------------------------------------------------------------------------
  // Null: there is no such buffer.
  std::shared_ptr<BufferHost> Find(const IoThread& thread, std::string_view name) const;
  // True: decided, without waiting or leaving the thread. Only on the home thread.
  bool InsertNow(BufferHost& host, InsertCall& call);
  bool SampleNow(BufferHost& host, SampleCall& call);
  Awaitable<void> Insert(IoThread& thread, std::shared_ptr<BufferHost> host, InsertCall& call, Caller caller);
  Awaitable<void> Sample(IoThread& thread, std::shared_ptr<BufferHost> host, SampleCall& call, Caller caller);
  // After SampleNow left a view: reads what is absent of the batch.
  Awaitable<void> FetchSample(IoThread& thread, std::shared_ptr<BufferHost> host, SampleCall& call, Caller caller);
  Awaitable<void> CountRejected(IoThread& thread, std::shared_ptr<BufferHost> host, uint64_t trajectories, Key128 writer,
                                uint64_t sequence);

  struct GetResult {
    Verdict verdict;
    std::vector<StoredItem> items;
    std::vector<uint32_t> found;
    bool more = false;
    uint32_t deleted = 0;
    std::vector<UpdateOutcome> outcomes;
    std::vector<uint32_t> revisions;
    std::vector<PromptOutcomes> prompts;
    std::shared_ptr<const Database::View> view;  // as in SampleCall
  };
  // `request` stays valid until the call returns. Get, Delete, Update and History.
  Awaitable<void> Get(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request, GetResult& result,
                      Caller caller);
  Awaitable<void> Delete(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request, GetResult& result);
  Awaitable<void> Update(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request, GetResult& result);
  Awaitable<void> History(IoThread& thread, std::shared_ptr<BufferHost> host, const Request& request, GetResult& result);
  Awaitable<void> ReportCost(IoThread& thread, std::shared_ptr<BufferHost> host, const CostReport& cost);

  // Of a buffer that is kept: why nothing more is taken in, since it could not be kept either.
  Verdict WhyNotKept(const BufferHost& host) const { return host.kept_id > 0 ? WhyNotKept() : Verdict::Done(); }
  Verdict WhyNotKept() const;
  // Whether the first `record` records of a buffer that is kept survive what `level` says. Waits for it; false: they may not, since
  // the disk has failed, or the daemon stops and the disk is full.
  Awaitable<bool> Kept(IoThread& thread, std::shared_ptr<BufferHost> host, uint64_t record, AcknowledgementLevel level);
  // On each thread, when the daemon stops: waits for the disk no longer. Then saves what is there.
  void GiveUpKeeping(IoThread& thread);
  void SaveAll(IoThread& thread);

  Awaitable<void> Reserve(IoThread& thread, std::shared_ptr<BufferHost> host, ReserveCall& call, Caller caller);
  Awaitable<void> Admit(IoThread& thread, std::shared_ptr<BufferHost> host, AdmitCall& call, Caller caller);
  Awaitable<Verdict> Acknowledge(IoThread& thread, std::shared_ptr<BufferHost> host, const AcknowledgeRequest& request,
                                 uint32_t& count);
  // The connection of that number has ended. Returns at once; what it holds is given back on the buffer's thread.
  void EndLeasesOf(std::shared_ptr<BufferHost> host, uint64_t session);
  uint64_t NextSession() { return sessions_.fetch_add(1, std::memory_order_relaxed) + 1; }

  Awaitable<Verdict> CreateBuffer(IoThread& thread, const Request& request);
  Awaitable<Verdict> AlterBuffer(IoThread& thread, const Request& request);
  Awaitable<Verdict> DropBuffer(IoThread& thread, const Request& request);

  Awaitable<Verdict> PublishVersion(IoThread& thread, PolicyVersion& version);
  // Waits for a version later than the request's; `result` is it.
  Awaitable<Verdict> WaitVersion(IoThread& thread, const Request& request, Caller caller, PolicyVersion& result);

  Awaitable<void> Stats(IoThread& thread, const std::string& buffer, ServerStats& stats);
  Awaitable<void> Waiters(IoThread& thread, const std::string& buffer, std::vector<WaiterInfo>& waiters);

  // Reserves room for a request's payload before it is read, or with kSample or kGet for that of a reply, waiting for memory if need
  // be.
  Awaitable<Verdict> ReserveMemory(IoThread& thread, uint64_t bytes, const std::string& buffer, Caller caller,
                                   Verb verb = Verb::kInsert);
  // Where frames are read from disk, inserts leave room for that: those that wait for draws must not keep a draw from its frames.
  bool TryReserveForInsert(uint64_t bytes) {
    const auto wanted = static_cast<int64_t>(bytes);
    if (storage_.keeps_data() && budget_.used_bytes() + wanted > budget_.limit_bytes() - ReadRoom()) return false;
    return budget_.TryReserve(wanted);
  }
  MemoryBudget& budget() { return budget_; }

  // On each thread, a few times a second: what has become too old leaves its buffers there.
  void OnTime(IoThread& thread, SteadyTime now);
  // On each thread: while more memory is in use than is meant for what is kept, frames that are on disk as well leave it.
  void Spill(IoThread& thread);
  // On each thread: ends all waiting, refuses new waits.
  void Drain(IoThread& thread);

  // Another one: what was acknowledged before is not here.
  uint64_t generation() const { return storage_.keeps_data() ? storage_.generation() : generation_; }
  const ServerConfig& config() const { return config_; }

  std::atomic<uint64_t> connections{0};  // from accept to the end of the session
  std::atomic<uint64_t> accepted_connections{0};
  std::atomic<uint64_t> spill_reads{0}, spill_read_bytes{0}, spill_read_errors{0};

 private:
  friend struct SampleWaiter;
  friend struct InsertWaiter;

  IoThread& control() { return *threads_[0]; }
  // On the home thread.
  Awaitable<void> InsertAtHome(BufferHost& host, InsertCall& call, Caller caller);
  Awaitable<void> SampleAtHome(BufferHost& host, SampleCall& call, Caller caller);
  template <typename WaiterType, typename Call>
  Awaitable<void> AdmissionAtHome(BufferHost& host, Call& call, Caller caller);
  Awaitable<Verdict> AcknowledgeAtHome(BufferHost& host, const AcknowledgeRequest& request, uint32_t& count);
  // `buffer` is that of the parts that name none.
  Awaitable<void> SampleJoined(IoThread& thread, const std::string& buffer, SampleCall& call, Caller caller);
  // Nobody gets what was drawn. A plan stays, for whoever asks again.
  Awaitable<void> Credit(IoThread& thread, BufferHost& host, const SampleRequest& request, const SampleResult& result);
  Awaitable<void> Wait(IoThread& home, std::list<Waiter*>& queue, Waiter& waiter);
  void Pump(BufferHost& host);
  void EndAll(std::list<Waiter*>& queue, Waiter::End how);
  // How long nobody has inserted or held a reservation, if that is as long as no_producer_after.
  std::optional<SteadyTime::duration> SilenceOf(const BufferHost& host) const;
  std::string WhySampleWaits(const BufferHost& host, const SampleRequest& request) const;
  // Of one buffer, or all when it is empty; who waits for a version waits in none.
  void ListWaiters(const std::list<Waiter*>& queue, const std::string& buffer, std::vector<WaiterInfo>& waiters) const;

  Awaitable<void> PumpAtHome(BufferHost& host);
  Awaitable<void> DeleteAtHome(BufferHost& host, const Request& request, GetResult& result);
  Awaitable<void> UpdateAtHome(BufferHost& host, const Request& request, GetResult& result);
  Awaitable<void> StatsOn(IoThread& thread, const std::string& buffer, ServerStats& stats);
  Awaitable<void> MemoryWaitsOn(IoThread& thread, ServerStats& stats);
  Awaitable<void> WaitersOn(IoThread& thread, const std::string& buffer, std::vector<WaiterInfo>& waiters);

  // On the control thread.
  Awaitable<Verdict> CreateOnControl(const Request& request);
  Awaitable<Verdict> AlterOnControl(const Request& request);
  Awaitable<Verdict> DropOnControl(const Request& request);
  Awaitable<void> DropAtHome(BufferHost& host, std::unique_ptr<Buffer>& dropped);
  Awaitable<Verdict> PublishOnControl(PolicyVersion& version);
  Awaitable<void> InstallVersions(IoThread& thread, PolicyVersions::Snapshot versions);
  // replay_keep.cc
  // replay_fetch.cc
  void LookIfAbsent(const BufferHost& host, SampleCall& call) const;
  Awaitable<Verdict> Fetch(IoThread& thread, const BufferHost& host, std::vector<Frame*> absent,
                           std::shared_ptr<const Database::View> view, Caller caller, Verb verb);
  Awaitable<void> GetAtHome(BufferHost& host, const Request& request, GetResult& result);
  Awaitable<void> CreditAtHome(BufferHost& host, const SampleRequest& request, const SampleResult& result);

  // True: it could not be kept, and is told so; one that was stored before gets its receipt all the same.
  bool RefuseUnkept(BufferHost& host, InsertCall& call) const;
  void StartKeeping(BufferHost& host);
  void KeepNew(BufferHost& host);
  void HandOver(BufferHost& host);
  static bool IsStateDue(const BufferHost& host);
  void SaveState(BufferHost& host);
  void OnKept(BufferHost& host, uint64_t record, bool failed);
  void WakeKept(const BufferHost& host);
  Awaitable<bool> KeptAtHome(BufferHost& host, uint64_t record, AcknowledgementLevel level);
  Awaitable<Verdict> KeepOnControl(std::function<StorageError(KeptBuffers&)> write);
  std::string DeclareLoaded();
  static void WarnOfDifferences(const std::string& name, const BufferOptions& configured, const BufferOptions& kept);
  int64_t ReadRoom() const { return static_cast<int64_t>(config_.in_flight_bytes / 2); }

  Verdict Declare(const std::string& name, BufferOptions options, std::shared_ptr<const Directory>* next);
  Awaitable<void> InstallEverywhere(std::shared_ptr<const Directory> directory);

  const ServerConfig config_;
  std::vector<std::unique_ptr<IoThread>>& threads_;
  MemoryBudget& budget_;
  StorageThread& storage_;
  const uint64_t generation_;
  const SteadyTime started_;
  std::atomic<uint64_t> sessions_{0};
  // Of the control thread.
  uint64_t assigned_bytes_ = 0;
  size_t next_home_ = 0;
  uint64_t next_kept_id_ = 1;
  std::set<std::string> dropping_;  // names whose rows have yet to go
};

}  // namespace replay::server
