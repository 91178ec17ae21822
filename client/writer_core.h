#pragma once
// What a Writer is made of. Two halves: the program's thread encodes and fills the open bundle (writer.cc), the background thread
// sends bundles and takes the replies (writer_core.cc). Between them stand one mutex and the open bundle, the closed ones, and
// the counts.
//
//   InsertGroup ──► open bundle ──(full | linger over | Flush)──► closed ──► Window ──► connection
//        ▲                                                                     │
//        └──────────────── room: fewer requests and bytes unanswered ◄─────────┘ replies
//
// How a request ends, and what is done before:
//   receipt                  stored; `duplicate` if an earlier attempt had arrived
//   no reply                 sent again after reconnecting, same sequence: stored once. After give_up_after without a server:
//                            kOutcomeUnknown, or kUnavailable if it never was sent
//   timed_out, unavailable   held back by pacing or memory, or draining: sent again (kUnavailable counts towards give_up_after)
//   another generation       the server came up empty: numbered anew for a new writer id and sent again; what had been
//                            acknowledged is counted as content_lost and reported once
//   writer_expired           nothing more is sent until all replies are in, then the rest goes out under a new writer id;
//                            what had been sent before on a broken connection might be stored already: kOutcomeUnknown
//   another error            of a request with several calls in it: each call is sent on its own, so that only what deserves
//                            it fails; else the error is the result

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/connection.h"
#include "client/window.h"

namespace replay {

class WriterCore : public std::enable_shared_from_this<WriterCore> {
 public:
  WriterCore(std::shared_ptr<Reactor> reactor, std::string buffer, const WriterOptions& options);
  void Start();
  void Stop();  // waits for the coroutines to end, except on the background thread

  // --- The program's thread -----------------------------------------------------------------------------------------------------
  Result<Done> Insert(std::span<const Trajectory> group, milliseconds timeout);
  Result<Done> Flush(milliseconds timeout);
  void OnResult(std::function<void(const Result<InsertReceipt>&)> callback) {
    const std::lock_guard lock(mutex_);
    callback_ = std::make_shared<const std::function<void(const Result<InsertReceipt>&)>>(std::move(callback));
  }
  Writer::Progress progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

 private:
  bool HasRoom(const EncodedGroup& group) const;  // locked
  void CloseOpenBundle();                         // locked
  std::string Unanswered() const;                 // locked: "3 requests of 12 trajectories are unanswered"
  Error TimedOut(const std::string& what) const;  // locked
  void Wake();

  // --- The background thread ------------------------------------------------------------------------------------------------------
  static Awaitable<void> Run(std::shared_ptr<WriterCore> self);
  Awaitable<Error> Converse(std::shared_ptr<Connection> connection);
  Awaitable<std::optional<Error>> SendWhatIsDue(Connection& connection);
  static Awaitable<void> Receive(std::shared_ptr<WriterCore> self, std::shared_ptr<Connection> connection);
  void TakeDueBundles();
  Clock::time_point NextDue();
  void OnConnected(const ServerHello& server);
  void OnReply(const ReceivedReply& reply);
  void OnRefused(Error error);
  void Fail(Bundle bundle, const Error& error);
  void EndWhatIsTooLarge(uint64_t max_payload_bytes);
  void OnTrouble(const Error& error);   // no server to talk to
  void SetTrouble(const Error& error);  // shown to a program that waits
  bool PatienceIsOver() const { return trouble_since_ && Clock::now() >= *trouble_since_ + options_.give_up_after; }
  void NewWriterOnceQuiet();
  void EndUnsent(const Error& why);
  void End(const Bundle& bundle, const Result<InsertReceipt>& result);
  void Report(const Result<InsertReceipt>& result);
  void UpdateRoom();

  // Constant after construction.
  const std::shared_ptr<Reactor> reactor_;
  const std::string buffer_;
  const WriterOptions options_;

  // Under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  Bundle open_;
  Clock::time_point opened_at_;
  std::deque<Bundle> closed_;
  uint32_t batch_limit_;                  // trajectories of a bundle: less than the option once the server refused more
  uint64_t requests_ = 0;                 // closed and in the window
  uint64_t unanswered_bytes_ = 0;         // with the open bundle's
  std::optional<uint64_t> wanted_bytes_;  // the program's thread waits for room for so many
  bool flushing_ = false;
  bool reporting_ = false;  // Flush returns after the last callback has
  bool wake_posted_ = false;
  Writer::Progress progress_;
  std::optional<Error> first_failure_, content_lost_;
  std::optional<Error> trouble_;  // why nothing moves
  std::shared_ptr<const std::function<void(const Result<InsertReceipt>&)>> callback_;

  // The background thread's.
  Window window_;
  ControlBuilder builder_;
  std::shared_ptr<Connection> connection_;
  BackOff back_off_;
  Signal wake_, pause_, receiver_ended_;
  uint64_t sent_on_connection_ = 0;  // requests are numbered 1, 2, 3 … on each connection
  bool receiving_ = false;
  bool stopping_ = false;
  bool writer_expired_ = false;  // no more is sent under this id
  Clock::time_point resume_at_{};
  std::optional<Clock::time_point> trouble_since_;
  std::optional<uint64_t> generation_;
  uint64_t acknowledged_ = 0;  // trajectories, by the present generation
  std::promise<void> ended_;
};

}  // namespace replay
