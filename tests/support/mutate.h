#pragma once
// What hostile-bytes tests share: changing the words of a message at random, and reading all of a trajectory as a trainer would.

#include <cstdint>
#include <random>
#include <vector>

#include "schema/message.h"

namespace replay::test {

// One to four changes that keep the message's look: bits, bytes, pointers' counts and offsets, words copied elsewhere, cuts.
void MutateWords(std::vector<uint64_t>* words, std::mt19937_64& random);

// Reads every field of the frame `times` over with one reader and returns a sum of it all. Throws kj::Exception if it cannot.
uint64_t ReadWholeTrajectory(const Frame& frame, int times);

}  // namespace replay::test
