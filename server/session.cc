#include "server/session.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "server/log.h"

namespace replay::server {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Session::Session(IoThread& thread, ReplayService& service, Socket socket, std::string peer)
    : thread_(thread),
      service_(service),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      label_(peer_),
      input_(thread.input_blocks),
      number_(service.NextSession()),
      connected_at_(steady_clock::now()) {
  place_ = thread_.sessions.insert(thread_.sessions.end(), this);
}

Session::~Session() {
  for (const Use& use : uses_) {
    if (use.produces) use.host->producers.fetch_sub(1, std::memory_order_relaxed);
    if (use.consumes) {
      use.host->consumers.fetch_sub(1, std::memory_order_relaxed);
      service_.EndLeasesOf(use.host, number_);
    }
  }
  thread_.sessions.erase(place_);
  service_.connections.fetch_sub(1, std::memory_order_relaxed);
}

void Session::Shutdown() { ::shutdown(socket_.native_handle(), SHUT_RDWR); }

bool Session::IsStuck(steady_clock::time_point now, const char** why) const {
  const ServerConfig& config = service_.config();
  constexpr steady_clock::time_point kNever{};
  if (!said_hello_ && now - connected_at_ > milliseconds(config.handshake_timeout_ms)) {
    *why = "handshake_timeout";
    return true;
  }
  if (reading_since_ != kNever && now - reading_since_ > milliseconds(config.request_timeout_ms)) {
    *why = "request_timeout";
    return true;
  }
  if (blocked_on_write_since_ != kNever && now - blocked_on_write_since_ > milliseconds(config.send_timeout_ms)) {
    *why = "send_timeout";
    return true;
  }
  return false;
}

Awaitable<void> Session::Run(std::unique_ptr<Session> session) {
  std::string violation;
  try {
    co_await session->Converse();
  } catch (const ProtocolError& error) {
    violation = error.what();
    ++session->thread_.errors[static_cast<size_t>(error.code)];
    session->thread_.encoder.Failure(error.id, error.code, WaitReason::kNone, violation, session->output_);
  } catch (const std::exception& error) {  // Out of memory, or our own bug: this connection only.
    Log(LogLevel::kError, "session failed", {{"peer", session->label_}, {"error", error.what()}});
    co_return;
  }
  if (!violation.empty()) {
    Log(LogLevel::kDebug, "conversation ended", {{"peer", session->label_}, {"error", violation}});
    co_await session->Flush();
    // A close with unread bytes resets the connection and may take the reply with it: half-close, then read a little.
    ::shutdown(session->socket_.native_handle(), SHUT_WR);
    session->preamble_.payload_bytes = kLingerBytes;
    co_await session->DiscardPayload();
  }
}

Awaitable<void> Session::Converse() {
  while (!ended_) {
    const uint8_t* control = NextMessage();
    if (control == nullptr) {
      const Received received = FillNow();
      if (received == Received::kClosed) co_return;
      if (received != Received::kNothing) continue;
      ReleaseScratch();
      if (!co_await WaitForInput()) co_return;
      continue;
    }
    const Rest rest = Handle(control);
    if (rest != Rest::kNothing) co_await Finish(rest);
    host_.reset();
    reading_since_ = {};
    if (bytes_since_send_ >= kBytesPerSend) SendNow();
    if (++requests_in_turn_ >= kRequestsPerTurn || bytes_in_turn_ + output_.pending_bytes() >= kBytesPerTurn)
      co_await EndTurn();
  }
}

const uint8_t* Session::NextMessage() {
  const std::span<const uint8_t> bytes = input_.available();
  if (bytes.size() < sizeof(Preamble)) {
    if (!bytes.empty() && reading_since_ == steady_clock::time_point{}) reading_since_ = last_fill_;
    return nullptr;
  }
  std::memcpy(&preamble_, bytes.data(), sizeof preamble_);
  const uint64_t control_limit = said_hello_ ? kMaxRequestControlBytes : kMaxRequestControlBytesBeforeHello;
  const uint64_t payload_limit = said_hello_ ? std::min(kMaxRequestPayloadBytes, service_.config().in_flight_bytes) : 0;
  if (!IsPreamble(preamble_, control_limit, payload_limit)) {
    const bool other_version = preamble_.magic == Preamble::kMagic && preamble_.version != kProtocolVersion;
    throw ProtocolError(other_version ? ErrorCode::kUnsupportedVersion : ErrorCode::kProtocolViolation,
                        CheckPreamble(preamble_, control_limit, payload_limit));
  }
  const uint64_t size = sizeof(Preamble) + preamble_.control_words * uint64_t{8};
  if (bytes.size() < size) {
    if (reading_since_ == steady_clock::time_point{}) reading_since_ = last_fill_;
    return nullptr;
  }
  received_at_ = reading_since_ == steady_clock::time_point{} ? last_fill_ : reading_since_;
  return bytes.data() + sizeof(Preamble);
}

Received Session::FillNow() {
  if (!SendNow()) return Received::kNothing;
  if (input_.available().empty()) output_.Release();
  boost::system::error_code error;
  const Received received = input_.FillNow(socket_.native_handle(), error, /*alone=*/thread_.sessions.size() == 1);
  if (received == Received::kSome) {
    CountReceived();
    last_fill_ = steady_clock::now();
  }
  return received;
}

// Whoever waits for a peer owes it nothing: the rest of its request may depend on the reply to the one before.
Awaitable<bool> Session::WaitForInput() {
  if (!co_await Flush()) co_return false;
  boost::system::error_code error;
  co_return co_await input_.Wait(socket_, error);
}

void Session::CountReceived() {
  const uint64_t before = std::exchange(received_bytes_, input_.received_bytes());
  thread_.received_bytes += received_bytes_ - before;
}

bool Session::SendNow() {
  bytes_since_send_ = 0;
  if (!gates_.empty() && !MayReply()) return false;
  const uint64_t before = output_.pending_bytes();
  boost::system::error_code error;  // Flush meets it again.
  const bool sent_all = output_.SendNow(socket_.native_handle(), error);
  thread_.sent_bytes += before - output_.pending_bytes();
  return sent_all;
}

void Session::HoldReplies(const std::shared_ptr<BufferHost>& host, AcknowledgementLevel level) {
  if (host->kept_id == 0) return;
  const uint64_t record = host->journal.total();
  if (host->Survives(record, level)) return;
  for (Gate& gate : gates_) {
    if (gate.host != host || gate.level != level) continue;
    gate.record = record;
    return;
  }
  gates_.push_back({host, level, record});
}

bool Session::MayReply() {
  std::erase_if(gates_, [](const Gate& gate) { return gate.host->Survives(gate.record, gate.level); });
  return gates_.empty();
}

// Requests that were sent ahead have been decided by now: they share one commit. A reply that can no longer be true is never sent:
// the connection ends, and its peer asks again.
Awaitable<bool> Session::Flush() {
  while (!gates_.empty()) {
    const Gate gate = gates_.back();
    const bool was_reading = std::exchange(reading_since_, {}) != steady_clock::time_point{};
    const bool kept = co_await service_.Kept(thread_, gate.host, gate.record, gate.level);
    if (was_reading) reading_since_ = steady_clock::now();  // The peer has not been slow.
    if (!kept) {
      ended_ = true;
      Shutdown();
      co_return false;
    }
    gates_.pop_back();
  }
  if (SendNow()) co_return true;
  const uint64_t before = output_.pending_bytes();
  boost::system::error_code error;
  const bool sent_all = co_await output_.Flush(socket_, error, &blocked_on_write_since_);
  thread_.sent_bytes += before - output_.pending_bytes();
  co_return sent_all;
}

void Session::ReleaseScratch() {
  const auto release = [](auto& vector) {
    if (vector.capacity() * sizeof(vector[0]) > kKeptScratchBytes) std::remove_reference_t<decltype(vector)>().swap(vector);
  };
  release(request_.frame_bytes);
  release(request_.columns);
  release(payload_);
  release(frames_);
  release(facts_);
  release(sample_.result.draws);
  release(sample_.result.frames);
  release(sample_.result.columns);
  if (directory_ == thread_.directory) return;
  directory_ = thread_.directory;
  std::erase_if(uses_, [this](const Use& use) { return service_.Find(thread_, use.host->name) != use.host; });  // dropped
  last_use_ = SIZE_MAX;
}

Awaitable<void> Session::EndTurn() {
  requests_in_turn_ = 0;
  bytes_in_turn_ = 0;
  co_await Flush();  // A peer that is gone is noticed at the next read.
  co_await asio::post(thread_.executor(), kUseAwaitable);
}

// --- One request ---------------------------------------------------------------------------------------------------------------

Session::Rest Session::Handle(const uint8_t* control) {
  const std::optional<DecodeFailure> failure = DecodeRequest(control, preamble_.control_words, &request_);
  input_.Consume(sizeof(Preamble) + preamble_.control_words * uint64_t{8});
  if (failure && failure->ends_conversation) throw ProtocolError(failure->code, failure->message, request_.id);
  if (!said_hello_ && (failure || request_.verb != Verb::kHello))
    throw ProtocolError(ErrorCode::kProtocolViolation, "the first request of a connection is Hello", request_.id);
  if (failure) {
    Fail(failure->code, WaitReason::kNone, failure->message);
    return preamble_.payload_bytes > 0 ? Rest::kReadPayload : Rest::kNothing;
  }
  ++thread_.requests[static_cast<size_t>(request_.verb)];
  if (request_.verb != Verb::kInsert && request_.verb != Verb::kUpdate && preamble_.payload_bytes > 0)
    throw ProtocolError(
        ErrorCode::kProtocolViolation,
        "payload_bytes is " + std::to_string(preamble_.payload_bytes) + ": only Insert and Update have a payload", request_.id);
  switch (request_.verb) {
    case Verb::kInsert:
      return StartInsert();
    case Verb::kSample:
      for (const SamplePart& part : request_.sample.parts)
        if (!part.buffer.empty()) FindHost(part.buffer, /*produces=*/false);
      FindHost(request_.buffer, /*produces=*/false);
      if (!host_) return Rest::kOther;
      sample_.request = request_.sample;
      sample_.request.holder = number_;
      sample_.result.Clear();
      if (JoinsBuffers(sample_.request) || &host_->home != &thread_ || !service_.SampleNow(*host_, sample_))
        return Rest::kSample;
      if (sample_.view) return Rest::kFetch;
      ReplyToSample();
      return Rest::kNothing;
    case Verb::kPing:
      thread_.encoder.Done(request_.id, output_);
      return Rest::kNothing;
    case Verb::kHello:
      HandleHello();
      return Rest::kNothing;
    default:
      return Rest::kOther;
  }
}

void Session::HandleHello() {
  if (request_.protocol_version != kProtocolVersion)
    throw ProtocolError(ErrorCode::kUnsupportedVersion,
                        "protocol version " + std::to_string(request_.protocol_version) + " is not supported, only " +
                            std::to_string(kProtocolVersion),
                        request_.id);
  said_hello_ = true;
  if (!request_.client_name.empty()) label_ = peer_ + " " + request_.client_name;
  HelloInfo info;
  info.generation = service_.generation();
  info.max_payload_bytes = std::min(kMaxRequestPayloadBytes, service_.config().in_flight_bytes);
  thread_.encoder.Hello(request_.id, info, output_);
}

Awaitable<void> Session::Finish(Rest rest) {
  switch (rest) {
    case Rest::kReadPayload:
      if (!host_) {  // Only to be skipped: the reply has been made.
        co_await DiscardPayload();
      } else {
        co_await FinishInsert(/*payload_taken=*/false);
      }
      break;
    case Rest::kInsert:
      co_await FinishInsert(/*payload_taken=*/true);
      break;
    case Rest::kRejected:
      co_await CountRejected();
      break;
    case Rest::kSample: {
      sample_.result = {};
      co_await PrepareToWait();
      co_await service_.Sample(thread_, host_, sample_, AsCaller());
      ReplyToSample();
      break;
    }
    case Rest::kFetch: {
      Awaitable<void> fetch = service_.FetchSample(thread_, host_, sample_, AsCaller());
      co_await std::move(fetch);
      ReplyToSample();
      break;
    }
    case Rest::kOther:
      co_await FinishOther();
      request_.updates.clear();
      break;
    case Rest::kNothing:
      break;
  }
}

// --- Sample --------------------------------------------------------------------------------------------------------------------

void Session::ReplyToSample() {
  if (sample_.verdict.done()) {
    thread_.encoder.Sample(request_.id, sample_.result, output_);
    if (request_.sample.consumer.empty()) return;
    // The plan is promised to whoever asks again; on a disk that takes nothing, for as long as this daemon lives.
    if (!service_.WhyNotKept().done()) return;
    HoldReplies(host_);
    for (const SamplePart& part : request_.sample.parts)
      if (const auto host = part.buffer.empty() ? nullptr : service_.Find(thread_, part.buffer)) HoldReplies(host);
  } else {
    Reply(sample_.verdict);
  }
}

// --- Shared --------------------------------------------------------------------------------------------------------------------

void Session::Reply(const Verdict& verdict) {
  if (verdict.done()) {
    thread_.encoder.Done(request_.id, output_);
  } else {
    Fail(verdict.code, verdict.reason, verdict.message);
  }
}

void Session::Fail(ErrorCode code, WaitReason reason, std::string_view message) {
  ++thread_.errors[static_cast<size_t>(code)];
  thread_.encoder.Failure(request_.id, code, reason, message, output_);
}

Caller Session::AsCaller() {
  const auto longest = milliseconds(std::min<int64_t>(request_.timeout_ms, service_.config().max_wait_ms));
  return {socket_.native_handle(), &label_, received_at_ + longest};
}

Awaitable<void> Session::PrepareToWait() {
  reading_since_ = {};
  co_await Flush();
  output_.Release();
  input_.GiveBack();
}

void Session::FindHost(const std::string& name, bool produces) {
  const auto names_it = [&name](const Use& use) { return use.host->name == name; };
  if (directory_ != thread_.directory || last_use_ >= uses_.size() || !names_it(uses_[last_use_])) {
    directory_ = thread_.directory;
    host_ = service_.Find(thread_, name);
    const auto at = std::find_if(uses_.begin(), uses_.end(), [this](const Use& use) { return use.host == host_; });
    last_use_ = host_ ? static_cast<size_t>(at - uses_.begin()) : SIZE_MAX;
    if (!host_) return;
    if (at == uses_.end()) uses_.push_back({host_});
  }
  Use& use = uses_[last_use_];
  host_ = use.host;
  if (!std::exchange(produces ? use.produces : use.consumes, true))
    (produces ? host_->producers : host_->consumers).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace replay::server
