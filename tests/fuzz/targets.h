#pragma once
// What is fuzzed: everything that takes bytes from outside. One table, used by libFuzzer (fuzz_main.cc, one program for each
// target) and by a short tier that every test run includes (fuzz_test.cc).
//
//   frame     a trajectory's frame                 ValidateTrajectory; what it lets through is read whole, several times
//   column    a column frame                       ReadColumn; what it lets through the client decodes, and every accessor is used
//   request   the control words of a request       DecodeRequest, and every field through Cap'n Proto's reflection
//   reply     the control words of a reply         every field, as a client could read it
//   config    the configuration file               ParseConfig
//   session   all the bytes of one connection      a real Session with two buffers behind it, over a socket pair
//
// A target returns normally for every input, in bounded time and memory; anything else (abort, sanitizer report, exception)
// is a finding. Kept inputs: tests/fuzz/NAME_fuzz/.

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace replay::test {

struct FuzzTarget {
  std::string_view name;
  void (*run)(std::span<const uint8_t> input);
  std::vector<std::vector<uint8_t>> (*seeds)();
  // Changes `input` a little while keeping its look: checksums, frames of messages.
  void (*mutate)(std::vector<uint8_t>* input, std::mt19937_64& random);
};
std::span<const FuzzTarget> FuzzTargets();

}  // namespace replay::test
