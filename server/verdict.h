#pragma once
// What a decision came to: done, wait (with the reason), or an error that explains itself. Codes and reasons have the
// protocol's numbers.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace replay::server {

enum class ErrorCode : uint16_t {
  kOk,
  kInvalidArgument,
  kNotFound,
  kAlreadyExists,
  kTimedOut,
  kResourceExhausted,
  kFailedPrecondition,
  kWriterExpired,
  kCorrupted,
  kUnavailable,
  kBufferDropped,
  kUnsupportedVersion,
  kProtocolViolation,
  kInternal,
  kPlanExpired,
  kKeyReused,
  kClosed,
  kStorageFull,
  kStorageFailed,
  kCount
};

enum class WaitReason : uint16_t {
  kNone,
  kMinSize,
  kPacing,
  kStaleness,
  kFilter,
  kGroupIncomplete,
  kMemory,
  kStorage,
  kDraining,
  kNoProducer,
  kVersion,
  kCount
};

std::string_view ToString(ErrorCode code);     // "invalid_argument"
std::string_view ToString(WaitReason reason);  // "min_size"

struct Verdict {
  enum class Kind : uint8_t { kDone, kWait, kError };
  Kind kind = Kind::kDone;
  ErrorCode code = ErrorCode::kOk;
  WaitReason reason = WaitReason::kNone;
  std::string message;

  bool done() const { return kind == Kind::kDone; }
  bool waits() const { return kind == Kind::kWait; }
  static Verdict Done() { return {}; }
  void BecomeDone() {  // as by assignment, in a few instructions
    kind = Kind::kDone;
    code = ErrorCode::kOk;
    reason = WaitReason::kNone;
    message.clear();
  }
  static Verdict Wait(WaitReason reason) { return {Kind::kWait, ErrorCode::kOk, reason, {}}; }
  static Verdict Failed(ErrorCode code, std::string message) {
    return {Kind::kError, code, WaitReason::kNone, std::move(message)};
  }
};

}  // namespace replay::server
