#pragma once
// Random numbers for draws: xoshiro256** (Blackman, Vigna), and Lemire's unbiased bounded integers. About 1 ns a number.
//
// A plain value with one owner. The same seed gives the same numbers on every machine.

#include <bit>
#include <cstdint>
#include <optional>
#include <random>

#include "server/archive.h"

namespace replay::server {

class Random {
 public:
  // Without a seed: from the operating system.
  explicit Random(std::optional<uint64_t> seed) {
    uint64_t state = seed ? *seed : (static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
    for (uint64_t& word : words_) word = SplitMix(&state);  // Never all zero, the one state that xoshiro cannot leave.
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(words_[1] * 5, 7) * 9;
    const uint64_t shifted = words_[1] << 17;
    words_[2] ^= words_[0];
    words_[3] ^= words_[1];
    words_[1] ^= words_[2];
    words_[0] ^= words_[3];
    words_[2] ^= shifted;
    words_[3] = std::rotl(words_[3], 45);
    return result;
  }

  // Uniform over the multiples of 2^-53 in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Uniform in [0, bound), exactly; bound > 0. Rejects with probability below bound / 2^32.
  uint32_t Below(uint32_t bound) {
    uint64_t product = (Next() >> 32) * bound;
    if (static_cast<uint32_t>(product) < bound) [[unlikely]] {
      const uint32_t threshold = (0u - bound) % bound;
      while (static_cast<uint32_t>(product) < threshold) product = (Next() >> 32) * bound;
    }
    return static_cast<uint32_t>(product >> 32);
  }

  void Persist(Archive& archive) { archive(words_); }
  uint64_t Fingerprint() const {
    return words_[0] ^ std::rotl(words_[1], 16) ^ std::rotl(words_[2], 32) ^ std::rotl(words_[3], 48);
  }

 private:
  static uint64_t SplitMix(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t words_[4];
};

}  // namespace replay::server
