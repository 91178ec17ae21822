#include "generator/prompts.h"

namespace replay {

uint64_t HashOf(std::string_view content) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, then mixed so that the low bits depend on every byte
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93;
  return hash ^ (hash >> 32);
}

bool IsHeldOut(std::string_view content) { return HashOf(content) % 16 == 0; }

int64_t Below(std::mt19937_64& random, int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); }

double Unit(std::mt19937_64& random) { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; }

}  // namespace replay
