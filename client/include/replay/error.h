#pragma once
// What a call comes to: a value, or an error that explains itself.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace replay {

enum class ErrorCode : uint8_t {  // Same order as the protocol's.
  kOk,
  kInvalidArgument,
  kNotFound,
  kAlreadyExists,
  kTimedOut,
  kResourceExhausted,
  kFailedPrecondition,
  kWriterExpired,
  kCorrupted,
  kUnavailable,  // Not connected, or the server is going away.
  kBufferDropped,
  kUnsupportedVersion,
  kProtocolViolation,
  kInternal,
  kPlanExpired,    // Sample with a consumer: the step's batch is no longer kept.
  kKeyReused,      // Sample with a consumer: the step's batch was drawn with other arguments.
  kClosed,         // Nothing more is inserted into the buffer, and what it has cannot meet the request.
  kStorageFull,    // The server's disk has too little free: nothing was changed, try again later.
  kStorageFailed,  // The server's disk refused: whether it is stored all the same shows when the server starts again.
  // Of the client itself:
  kOutcomeUnknown,  // The request was sent and no reply came: it may or may not have been done.
  kContentLost,     // The server restarted empty since the last reply: what it held in memory is gone.
};

enum class WaitReason : uint8_t {  // Same order as the protocol's.
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
};

std::string_view ToString(ErrorCode code);     // "timed_out"
std::string_view ToString(WaitReason reason);  // "min_size"

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message{};
  WaitReason reason = WaitReason::kNone;
  std::string ToString() const;  // "timed_out (min_size): 12 of 64 items present"
};

// A value or an Error.
template <typename T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}
  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

struct Done {};  // The value of a call that has none.

}  // namespace replay
