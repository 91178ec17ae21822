// The part of session.h that takes column frames in, those of an Insert and those of an Update.

#include <algorithm>
#include <utility>

#include "schema/column.h"
#include "server/session.h"

namespace replay::server {

uint64_t Session::ColumnBytes() const {
  uint64_t sum = 0;
  for (const ColumnSize& column : request_.columns) sum += column.bytes;
  return sum;
}

// The payload's bytes have been reserved.
void Session::AllocateColumns() {
  columns_.clear();
  for (const ColumnSize& size : request_.columns)
    columns_.push_back({size.frame, Frame::Allocate(size.bytes, &service_.budget())});
  insert_.request.columns = columns_;
}

void Session::DropFrames() {
  frames_.clear();
  if (columns_.empty()) return;
  columns_.clear();
  column_payload_.clear();
  insert_.request.columns = {};
}

bool Session::ReadColumns(std::vector<FrameColumn>* parsed) {
  parsed->resize(column_payload_.size());
  for (size_t i = 0; i < column_payload_.size(); ++i) {
    bool checksum_failed = false;
    const std::string error =
        ReadColumn(column_payload_[i], service_.config().verify_checksums, &(*parsed)[i], &checksum_failed);
    if (error.empty()) continue;
    Fail(checksum_failed ? ErrorCode::kCorrupted : ErrorCode::kInvalidArgument, WaitReason::kNone,
         "columns[" + std::to_string(i) + "]: " + error);
    return false;
  }
  return true;
}

// Against the core frames in payload_, which have passed.
bool Session::ValidateColumns() {
  std::vector<FrameColumn> parsed;
  if (!ReadColumns(&parsed)) return false;
  size_t begin = 0;
  for (uint32_t i = 0; i < facts_.size(); ++i) {
    size_t end = begin;
    while (end < parsed.size() && request_.columns[end].frame == i) ++end;
    const std::span<const FrameColumn> own = std::span(parsed).subspan(begin, end - begin);
    begin = end;
    if (own.empty() && facts_[i].column_count == 0) continue;
    const std::string error = CheckColumnsOf(payload_[i], facts_[i].token_count, own);
    if (error.empty()) continue;
    Fail(ErrorCode::kInvalidArgument, WaitReason::kNone, "trajectories[" + std::to_string(i) + "]: " + error);
    return false;
  }
  return true;
}

// Into the updates they belong to.
bool Session::DealColumns() {
  std::vector<FrameColumn> parsed;
  if (!ReadColumns(&parsed)) return false;
  for (size_t i = 0; i < parsed.size(); ++i) {
    ItemUpdate& update = request_.updates[columns_[i].frame];
    std::string error = CheckColumnId(parsed[i], update.id);
    const auto same = [&](const Frame& other) { return ColumnName(other.bytes()) == parsed[i].name; };
    if (std::any_of(update.columns.begin(), update.columns.end(), same))
      error = "the update has a second column \"" + std::string(parsed[i].name) + "\"";
    if (!error.empty()) {
      Fail(ErrorCode::kInvalidArgument, WaitReason::kNone, "columns[" + std::to_string(i) + "]: " + error);
      return false;
    }
    update.columns.push_back(columns_[i].column);
  }
  return true;
}

// The payload of an Update. False: a reply has been made, or the connection is closed.
Awaitable<bool> Session::TakeColumns() {
  if (preamble_.payload_bytes == 0 && request_.columns.empty()) co_return true;
  bytes_in_turn_ += preamble_.payload_bytes;
  if (const uint64_t sum = ColumnBytes(); sum != preamble_.payload_bytes) {
    Fail(ErrorCode::kInvalidArgument, WaitReason::kNone,
         "columns add up to " + std::to_string(sum) + " bytes, payload_bytes is " + std::to_string(preamble_.payload_bytes) +
             ": they must agree");
    co_await DiscardPayload();
    co_return false;
  }
  if (!service_.Find(thread_, request_.buffer)) {
    Fail(ErrorCode::kNotFound, WaitReason::kNone, NoSuchBuffer(request_.buffer));
    co_await DiscardPayload();
    co_return false;
  }
  if (!co_await ReservePayload()) co_return false;
  frames_.clear();
  AllocateColumns();
  const bool taken = co_await ReadPayload() && DealColumns();
  DropFrames();
  co_return taken;
}

// False: there was no room in time, and the reply says so.
Awaitable<bool> Session::ReservePayload() {
  if (service_.TryReserveForInsert(preamble_.payload_bytes)) co_return true;
  co_await PrepareToWait();
  const Verdict reserved = co_await service_.ReserveMemory(thread_, preamble_.payload_bytes, request_.buffer, AsCaller());
  if (reserved.done()) co_return true;
  Reply(reserved);
  co_await DiscardPayload();
  co_return false;
}

}  // namespace replay::server
