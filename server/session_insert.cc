// The part of session.h that takes an Insert in: sizes, memory, payload, validation.

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/session.h"

namespace replay::server {

using std::chrono::steady_clock;

namespace {

// More than this would drive out of the cache what is read meanwhile.
constexpr size_t kPrefetchedBytes = 8 << 10;

void Prefetch(const uint8_t* data, size_t size) {
  constexpr size_t kLine = 64;
  const uint8_t* const end = data + std::min(size, kPrefetchedBytes);
  for (; data < end; data += 4 * kLine) {  // A few lines beyond the end do no harm.
    for (size_t i = 0; i < 4; ++i) __builtin_prefetch(data + i * kLine, /*rw=*/1);
  }
}

}  // namespace

bool Session::FrameSizesFit() const {
  const auto& sizes = request_.frame_bytes;
  uint64_t sum = 0;
  bool fit = !sizes.empty() && sizes.size() <= kMaxTrajectoriesPerInsert;
  for (const uint32_t size : sizes) {
    fit &= size >= kMinFrameBytes && size <= kMaxFrameBytes && size % 8 == 0;
    sum += size;
  }
  if (!request_.columns.empty()) sum += ColumnBytes();
  return fit && sum == preamble_.payload_bytes;
}

std::string Session::WhyFrameSizesDoNotFit() const {
  const auto& sizes = request_.frame_bytes;
  if (sizes.empty()) return "frame_bytes is empty: an Insert has at least one trajectory";
  if (sizes.size() > kMaxTrajectoriesPerInsert)
    return "frame_bytes has " + std::to_string(sizes.size()) + " entries: at most " +
           std::to_string(kMaxTrajectoriesPerInsert) + " are allowed";
  uint64_t sum = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < kMinFrameBytes || sizes[i] > kMaxFrameBytes || sizes[i] % 8 != 0)
      return "frame_bytes[" + std::to_string(i) + "] is " + std::to_string(sizes[i]) + ": it must be a multiple of 8 from " +
             std::to_string(kMinFrameBytes) + " to " + std::to_string(kMaxFrameBytes);
    sum += sizes[i];
  }
  if (!request_.columns.empty()) sum += ColumnBytes();
  return "frame_bytes" + std::string(request_.columns.empty() ? "" : " and columns") + " add up to " + std::to_string(sum) +
         ", payload_bytes is " + std::to_string(preamble_.payload_bytes) + ": they must agree";
}

Session::Rest Session::StartInsert() {
  bytes_in_turn_ += preamble_.payload_bytes;
  bytes_since_send_ += preamble_.payload_bytes;
  if (!FrameSizesFit()) {
    Fail(ErrorCode::kInvalidArgument, WaitReason::kNone, WhyFrameSizesDoNotFit());
    return Rest::kReadPayload;
  }
  FindHost(request_.buffer, /*produces=*/true);
  if (!host_) {
    Fail(ErrorCode::kNotFound, WaitReason::kNone, NoSuchBuffer(request_.buffer));
    return Rest::kReadPayload;
  }
  return input_.available().size() < preamble_.payload_bytes ? Rest::kReadPayload : TakePayloadNow();
}

// The whole payload is in the input buffer. It is validated there, while it is in the cache, and copied to its place last; that
// place, which has long left the cache, is fetched meanwhile. (Without either, waiting for it was a third of an insert of 4 KB.)
Session::Rest Session::TakePayloadNow() {
  if (!service_.TryReserveForInsert(preamble_.payload_bytes)) return Rest::kReadPayload;
  AllocateFrames();
  const uint8_t* at = input_.available().data();
  payload_.clear();
  for (const Frame& frame : frames_) {
    payload_.emplace_back(at, frame.size());
    at += frame.size();
  }
  column_payload_.clear();
  for (const ColumnOf& each : columns_) {
    column_payload_.emplace_back(at, each.column.size());
    at += each.column.size();
  }
  if (frames_.size() == 1) Prefetch(frames_[0].data(), frames_[0].size());
  if (!ValidatePayload()) {
    input_.Consume(preamble_.payload_bytes);
    DropFrames();
    if (&host_->home != &thread_) return Rest::kRejected;
    if (host_->buffer) host_->buffer->CountRejected(payload_.size(), request_.writer, request_.sequence);
    return Rest::kNothing;
  }
  for (size_t i = 0; i < frames_.size(); ++i) std::memcpy(frames_[i].mutable_data(), payload_[i].data(), payload_[i].size());
  for (size_t i = 0; i < columns_.size(); ++i)
    std::memcpy(columns_[i].column.mutable_data(), column_payload_[i].data(), column_payload_[i].size());
  input_.Consume(preamble_.payload_bytes);
  if (&host_->home != &thread_ || !service_.InsertNow(*host_, insert_)) return Rest::kInsert;
  ReplyToInsert();
  return Rest::kNothing;
}

// The payload's bytes have been reserved: each frame takes its part over.
void Session::AllocateFrames() {
  frames_.clear();
  for (const uint32_t size : request_.frame_bytes) frames_.push_back(Frame::Allocate(size, &service_.budget()));
  insert_.request.frames = frames_;
  if (!request_.columns.empty()) AllocateColumns();
}

Awaitable<bool> Session::ReadPayload() {
  reading_since_ = steady_clock::now();
  boost::system::error_code error;
  for (size_t i = 0; i < frames_.size() + columns_.size(); ++i) {
    Frame& frame = i < frames_.size() ? frames_[i] : columns_[i - frames_.size()].column;
    uint64_t done = 0;
    for (;;) {
      const Received received = input_.ReadBodyNow(socket_.native_handle(), frame.mutable_data(), frame.size(), &done, error);
      if (received == Received::kSome) break;
      if (received == Received::kClosed || !co_await WaitForInput()) co_return false;
    }
  }
  CountReceived();
  reading_since_ = {};
  payload_.clear();
  for (const Frame& frame : frames_) payload_.push_back(frame.bytes());
  column_payload_.clear();
  for (const ColumnOf& each : columns_) column_payload_.push_back(each.column.bytes());
  co_return true;
}

Awaitable<void> Session::DiscardPayload() {
  reading_since_ = steady_clock::now();
  uint64_t left = preamble_.payload_bytes;
  for (;;) {
    // Whole words: what remains of one stays at the buffer's start, so that the message behind is aligned.
    const uint64_t ready = std::min<uint64_t>(left, input_.available().size() / 8 * 8);
    input_.Consume(ready);
    left -= ready;
    if (left == 0) co_return;
    const Received received = FillNow();
    if (received == Received::kClosed) co_return;
    if (received == Received::kNothing && !co_await WaitForInput()) co_return;
  }
}

bool Session::ValidatePayload() {
  facts_.resize(payload_.size());
  const ValidateOptions options{.check_checksum = service_.config().verify_checksums, .last_run = &last_run_};
  uint64_t columns = request_.columns.size();
  for (size_t i = 0; i < payload_.size(); ++i) {
    bool checksum_failed = false;
    std::string error = ValidateTrajectory(payload_[i], options, &facts_[i], &checksum_failed);
    columns += facts_[i].column_count;
    if (error.empty()) continue;
    Fail(checksum_failed ? ErrorCode::kCorrupted : ErrorCode::kInvalidArgument, WaitReason::kNone,
         "trajectories[" + std::to_string(i) + "]: " + error);
    return false;
  }
  if (!IsOneOfItsOwn(facts_)) {
    if (std::string error = ValidateGroups(facts_, &group_scratch_, request_.partial); !error.empty()) {
      Fail(ErrorCode::kInvalidArgument, WaitReason::kNone, error);
      return false;
    }
  }
  if (columns > 0 && !ValidateColumns()) return false;
  insert_.received_at = received_at_;
  insert_.request.facts = facts_;
  insert_.request.writer = request_.writer;
  insert_.request.sequence = request_.sequence;
  insert_.request.acknowledged_through = request_.acknowledged_through;
  insert_.request.partial = request_.partial;
  insert_.request.level = request_.level;
  return true;
}

// The general path of Insert: the payload is still to come, the buffer lives elsewhere, or the call has to wait.
Awaitable<void> Session::FinishInsert(bool payload_taken) {
  const bool at_home = &host_->home == &thread_;
  const bool tried = payload_taken && at_home;  // By TakePayloadNow.
  if (!payload_taken) {
    if (!co_await ReservePayload()) {
      payload_.clear();
      co_await CountRejected();  // The writer is known all the same.
      co_return;
    }
    AllocateFrames();
    if (!co_await ReadPayload()) {
      DropFrames();
      co_return;  // The next read finds the connection closed.
    }
  }
  if (!payload_taken && !ValidatePayload()) {
    co_await CountRejected();
    DropFrames();
    co_return;
  }
  if (tried || !at_home || !service_.InsertNow(*host_, insert_)) {
    co_await PrepareToWait();
    co_await service_.Insert(thread_, host_, insert_, AsCaller());
  }
  ReplyToInsert();
}

Awaitable<void> Session::CountRejected() {
  co_await service_.CountRejected(thread_, host_, payload_.size(), request_.writer, request_.sequence);
}

void Session::ReplyToInsert() {
  DropFrames();
  if (insert_.verdict.done()) {
    thread_.encoder.Insert(request_.id, insert_.result, output_);
    HoldReplies(host_, insert_.result.level);
  } else {
    Reply(insert_.verdict);
    if (insert_.verdict.code == ErrorCode::kAlreadyExists) HoldReplies(host_);  // What it was told of survives.
  }
}

}  // namespace replay::server
