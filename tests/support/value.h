#pragma once
// What a call of the client library gave, for tests that expect it to succeed.

#include <stdexcept>
#include <utility>

#include "replay/client.h"

namespace replay::test {

// Throws, and so fails the test, with the error's text.
template <typename T>
T Value(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().ToString());
  return std::move(*result);
}

}  // namespace replay::test
