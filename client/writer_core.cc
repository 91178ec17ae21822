// The background half of a Writer; see writer_core.h.
#include "client/writer_core.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <utility>

namespace replay {
namespace {

constexpr uint64_t kFlushBytes = 1 << 20;  // handed to the socket at once; the queue holds frames by reference
constexpr auto kNever = Clock::time_point::max();

// An answer that will be the same however often the request is sent, or however its parts are: no use in splitting it.
bool ConcernsTheBuffer(ErrorCode code) { return code == ErrorCode::kNotFound || code == ErrorCode::kBufferDropped; }

}  // namespace

// Lives as long as the Writer: waits for the first work, then makes one connection after the other. An exception here is memory
// that ran out: one more trouble that may pass.
Awaitable<void> WriterCore::Run(std::shared_ptr<WriterCore> self) {
  while (!self->stopping_) {
    std::optional<Error> error;
    try {
      self->TakeDueBundles();
      if (!self->window_.has_to_send()) {
        self->trouble_since_.reset();  // Patience is for what waits to be sent: with nothing there it begins anew.
        co_await self->wake_.WaitUntil(self->NextDue());
        continue;
      }
      self->connection_ = std::make_shared<Connection>(self->reactor_);
      error = co_await self->connection_->Open(Clock::now() + self->reactor_->options.connect_timeout);
      if (!error) {
        self->OnConnected(self->connection_->server());
        error = co_await self->Converse(self->connection_);
      }
    } catch (const std::exception& exception) {
      error = Error{ErrorCode::kInternal, exception.what()};
    }
    self->connection_.reset();
    self->window_.OnBroken();
    if (self->stopping_) break;
    try {
      self->OnTrouble(*error);
      self->TakeDueBundles();
      if (self->PatienceIsOver()) self->EndUnsent(*error);
    } catch (const std::exception&) {  // Tried again after the pause.
    }
    const auto resume = Clock::now() + self->back_off_.Next();
    while (!self->stopping_ && Clock::now() < resume) co_await self->pause_.WaitUntil(resume);
  }
  try {
    {
      const std::lock_guard lock(self->mutex_);
      if (!self->open_.units.empty()) self->CloseOpenBundle();
    }
    self->TakeDueBundles();
    self->EndUnsent({ErrorCode::kUnavailable, "the writer was closed"});
  } catch (const std::exception&) {  // Whoever waits for the end must not wait for ever.
  }
  self->ended_.set_value();
}

// One connection's life: sends here, receives beside. Returns why it ended, when both have.
Awaitable<Error> WriterCore::Converse(std::shared_ptr<Connection> connection) {
  sent_on_connection_ = 0;
  resume_at_ = {};
  receiving_ = true;
  asio::co_spawn(reactor_->executor(), Receive(shared_from_this(), connection), asio::detached);
  try {
    while (connection->is_open() && !stopping_) {
      TakeDueBundles();
      if (std::optional<Error> error = co_await SendWhatIsDue(*connection)) break;
      const bool held = window_.has_to_send() && !writer_expired_;
      if (connection->is_open() && !stopping_) co_await wake_.WaitUntil(held ? resume_at_ : NextDue());
    }
  } catch (const std::exception& exception) {
    connection->Close({ErrorCode::kInternal, exception.what()});
  }
  connection->Close({ErrorCode::kUnavailable, "the writer is closing"});
  while (receiving_) co_await receiver_ended_.WaitUntil(kNever);
  co_return connection->why_closed();
}

Awaitable<std::optional<Error>> WriterCore::SendWhatIsDue(Connection& connection) {
  NewWriterOnceQuiet();
  if (writer_expired_ || Clock::now() < resume_at_) co_return std::nullopt;
  while (window_.has_to_send()) {
    EndWhatIsTooLarge(connection.server().max_payload_bytes);
    const Window::Request* request = window_.Send();
    if (request == nullptr) break;
    const RequestHead head{.id = ++sent_on_connection_, .timeout_ms = static_cast<uint32_t>(options_.insert_timeout.count())};
    const InsertHead insert{.buffer = buffer_,
                            .writer = window_.writer(),
                            .sequence = request->sequence,
                            .acknowledged_through = window_.acknowledged_through(),
                            .level = options_.level};
    connection.output().AddBytes(EncodeInsert(builder_, head, insert, request->bundle.frames, request->bundle.columns));
    for (const Frame& frame : request->bundle.frames) connection.output().AddFrame(frame);
    for (const EncodedColumn& each : request->bundle.columns) connection.output().AddFrame(each.column);
    if (window_.sent_count() == 1)
      connection.SetDeadline(Clock::now() + options_.insert_timeout + reactor_->options.call_timeout);
    if (connection.output().pending_bytes() >= kFlushBytes) {
      if (auto error = co_await connection.Flush()) co_return error;
      if (writer_expired_ || Clock::now() < resume_at_) co_return std::nullopt;
    }
  }
  if (connection.output().empty()) co_return std::nullopt;
  co_return co_await connection.Flush();
}

// Replies come in the order of the requests. Each moves the deadline on: the server takes them one after the other, and each
// may be held back for insert_timeout.
Awaitable<void> WriterCore::Receive(std::shared_ptr<WriterCore> self, std::shared_ptr<Connection> connection) {
  ReceivedReply reply;
  try {
    for (uint64_t id = 1;; ++id) {
      if (std::optional<Error> error = co_await connection->Receive(id, &reply)) break;
      if (self->window_.sent_count() == 0) {
        connection->Close({ErrorCode::kProtocolViolation, "the server sent a reply that nobody asked for"});
        break;
      }
      self->OnReply(reply);
      connection->ClearDeadline();
      if (self->window_.sent_count() > 0)
        connection->SetDeadline(Clock::now() + self->options_.insert_timeout + self->reactor_->options.call_timeout);
    }
  } catch (const std::exception& exception) {
    connection->Close({ErrorCode::kInternal, exception.what()});
  }
  self->receiving_ = false;
  self->receiver_ended_.Notify();
  self->wake_.Notify();
}

void WriterCore::TakeDueBundles() {
  const std::lock_guard lock(mutex_);
  const bool due = flushing_ || wanted_bytes_ || open_.frames.size() >= batch_limit_ || open_.bytes >= options_.batch_bytes ||
                   Clock::now() >= opened_at_ + options_.linger;
  if (!open_.units.empty() && due && requests_ < options_.max_in_flight) CloseOpenBundle();
  for (; !closed_.empty(); closed_.pop_front()) window_.Add(std::move(closed_.front()));
}

// When the open bundle must be looked at again without anything else happening.
Clock::time_point WriterCore::NextDue() {
  const std::lock_guard lock(mutex_);
  return open_.units.empty() || requests_ >= options_.max_in_flight ? kNever : opened_at_ + options_.linger;
}

void WriterCore::OnConnected(const ServerHello& server) {
  const bool first = !generation_, empty = generation_ && *generation_ != server.generation;
  generation_ = server.generation;
  uint64_t lost = 0;
  if (empty) {
    lost = std::exchange(acknowledged_, 0);
    window_.Renumber(RandomKey(), true);
    writer_expired_ = false;
    UpdateRoom();
  }
  std::optional<Error> news;
  {
    const std::lock_guard lock(mutex_);
    if (!first) ++progress_.reconnects;
    progress_.content_lost += lost;
    if (lost > 0)
      news = content_lost_ =
          Error{ErrorCode::kContentLost, reactor_->address.ToString() + " restarted empty: " + std::to_string(lost) +
                                             " trajectories that it had acknowledged are gone"};
  }
  if (news) Report(*news);
}

void WriterCore::OnReply(const ReceivedReply& reply) {
  Result<InsertReceipt> result = DecodeInsert(reply);
  if (!result) return OnRefused(result.error());
  const Bundle bundle = window_.End();
  acknowledged_ += bundle.frames.size() - std::min<uint64_t>(result->refused, bundle.frames.size());
  trouble_since_.reset();
  back_off_.Reset();
  End(bundle, result);
  if (window_.has_to_send()) wake_.Notify();
}

// The oldest request was answered with an error: it was not stored, but for an earlier attempt nobody knows of.
void WriterCore::OnRefused(Error error) {
  switch (error.code) {
    case ErrorCode::kTimedOut:  // Held back for insert_timeout, e.g. by pacing. It goes on waiting.
      trouble_since_.reset();
      window_.SendAgain();
      if (options_.insert_timeout < options_.back_off_first) resume_at_ = Clock::now() + options_.back_off_first;
      SetTrouble(error);
      break;
    case ErrorCode::kUnavailable:  // Draining.
      OnTrouble(error);
      window_.SendAgain();
      resume_at_ = Clock::now() + back_off_.Next();
      if (PatienceIsOver() && window_.sent_count() == 0) EndUnsent(error);
      break;
    case ErrorCode::kWriterExpired:
      SetTrouble(error);
      writer_expired_ = true;
      if (window_.OldestIsUncertain()) {
        error = {ErrorCode::kOutcomeUnknown,
                 "sent before and never answered, and the server has forgotten this writer: " + error.message};
        End(window_.End(), error);
      } else {
        window_.SendAgain();
      }
      break;
    default:
      trouble_since_.reset();
      Fail(window_.End(), error);
  }
  wake_.Notify();
}

// `bundle` will not be stored as it is. Only what deserves it shall fail: each call's trajectories are offered on their own.
void WriterCore::Fail(Bundle bundle, const Error& error) {
  if (bundle.units.size() == 1 || ConcernsTheBuffer(error.code)) return End(bundle, error);
  if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kResourceExhausted) {  // too many at once
    const std::lock_guard lock(mutex_);
    batch_limit_ = std::max<uint32_t>(1, static_cast<uint32_t>(bundle.frames.size() / 2));
  }
  for (Bundle& part : std::move(bundle).Split()) window_.Add(std::move(part));
  UpdateRoom();
}

// The server would end the conversation over it.
void WriterCore::EndWhatIsTooLarge(uint64_t max_payload_bytes) {
  while (const Window::Request* next = window_.Next()) {
    if (next->bundle.bytes <= max_payload_bytes) break;
    Bundle bundle = window_.EndNext();
    const uint64_t bytes = bundle.bytes;
    Fail(std::move(bundle),
         {ErrorCode::kInvalidArgument, "the insert has " + std::to_string(bytes) + " bytes: this server takes at most " +
                                           std::to_string(max_payload_bytes) + " at once"});
  }
}

void WriterCore::OnTrouble(const Error& error) {
  if (!trouble_since_) trouble_since_ = Clock::now();
  SetTrouble(error);
}

void WriterCore::SetTrouble(const Error& error) {
  const std::lock_guard lock(mutex_);
  trouble_ = error;
}

// After WRITER_EXPIRED nothing is sent until every reply is in; then what is left gets a new writer id.
void WriterCore::NewWriterOnceQuiet() {
  if (!writer_expired_ || window_.sent_count() > 0) return;
  writer_expired_ = false;
  for (const Bundle& bundle : window_.Renumber(RandomKey(), false))
    End(bundle, Error{ErrorCode::kOutcomeUnknown, "sent before and never answered, and the server has forgotten this writer"});
  UpdateRoom();
  resume_at_ = Clock::now() + back_off_.Next();  // in case the server forgets the new one as fast
}

void WriterCore::EndUnsent(const Error& why) {
  const auto [unsent, uncertain] = window_.EndUnsent();
  trouble_since_.reset();
  for (const Bundle& bundle : uncertain)
    End(bundle, Error{ErrorCode::kOutcomeUnknown, why.message + ": it was sent, it may or may not have been stored"});
  for (const Bundle& bundle : unsent) End(bundle, Error{ErrorCode::kUnavailable, why.message + ": it was not stored"});
}

void WriterCore::End(const Bundle& bundle, const Result<InsertReceipt>& result) {
  {
    const std::lock_guard lock(mutex_);
    const uint64_t count = bundle.frames.size();
    progress_.in_flight -= count;
    unanswered_bytes_ -= bundle.bytes;
    if (!result) {
      progress_.failed += count;
      if (!first_failure_) first_failure_ = result.error();
    } else {
      const uint64_t refused = std::min<uint64_t>(result->refused, count);
      (result->duplicate ? progress_.duplicate : progress_.accepted) += count - refused;
      progress_.refused += refused;
      trouble_.reset();
    }
    reporting_ = true;
  }
  Report(result);
  {
    const std::lock_guard lock(mutex_);
    reporting_ = false;
  }
  UpdateRoom();
}

void WriterCore::Report(const Result<InsertReceipt>& result) {
  std::shared_ptr<const std::function<void(const Result<InsertReceipt>&)>> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = callback_;
  }
  if (callback && *callback) (*callback)(result);
}

// Counts anew and wakes the program's thread: not for each reply, but once a quarter of the window is free.
void WriterCore::UpdateRoom() {
  const std::lock_guard lock(mutex_);
  const bool was_full = requests_ >= options_.max_in_flight;
  requests_ = window_.size() + closed_.size();
  if (was_full && !open_.units.empty()) wake_.Notify();  // its turn to become a request
  const uint64_t few = options_.max_in_flight - (options_.max_in_flight + 3) / 4;
  const bool room = wanted_bytes_ && requests_ <= few &&
                    (unanswered_bytes_ == 0 || unanswered_bytes_ + *wanted_bytes_ <= options_.max_in_flight_bytes);
  if (room || progress_.in_flight == 0) changed_.notify_all();
}

}  // namespace replay
