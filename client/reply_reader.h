#pragma once
// What all decoders of replies share; included by the files that implement codec.h.

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/codec.h"
#include "schema/names.h"
#include "schema/protocol.capnp.h"

namespace replay {

// The name of an enumerator; a newer server may know more of them.
template <size_t N, typename Enum>
std::string Name(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? std::string(names[index]) : "unknown(" + std::to_string(index) + ")";
}

inline std::string String(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

template <typename T>
std::vector<T> CopyOf(typename capnp::List<T>::Reader list) {
  std::vector<T> copy;
  copy.reserve(list.size());
  for (T entry : list) copy.push_back(entry);
  return copy;
}

inline WaitReason ReasonOf(schema::WaitReason reason) {
  return reason <= schema::WaitReason::VERSION ? static_cast<WaitReason>(reason) : WaitReason::kNone;
}

inline Error Violation(std::string what) { return {ErrorCode::kProtocolViolation, std::move(what)}; }

inline Error ErrorOf(schema::Reply::Reader reply) {
  const auto code = reply.getCode();
  if (static_cast<size_t>(code) >= kErrorCodeNames.size())
    return {ErrorCode::kInternal,
            "error " + std::to_string(static_cast<int>(code)) + " of a newer server: " + String(reply.getMessage())};
  return {static_cast<ErrorCode>(code), String(reply.getMessage()), ReasonOf(reply.getWaitReason())};
}

// Calls `read` with the reply if it is a success of the expected kind.
template <typename T, typename Read>
Result<T> Decode(const ReceivedReply& received, schema::Reply::Which expected, Read read) {
  try {
    ControlReader reader(received.control.data(), static_cast<uint32_t>(received.control.size()));
    const auto reply = reader.Root<schema::Reply>();
    if (reply.getCode() != schema::ErrorCode::OK) return ErrorOf(reply);
    if (reply.which() != expected)
      return Violation("the reply is of kind " + std::to_string(static_cast<int>(reply.which())) + ", not " +
                       std::to_string(static_cast<int>(expected)));
    return read(reply);
  } catch (const kj::Exception& exception) {
    return Violation(std::string("the reply is not readable: ") + exception.getDescription().cStr());
  }
}

}  // namespace replay
