#pragma once
// What one insert and one stored byte cost: instructions (exact, under callgrind) and resident memory.

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace replay::bench {

// User instructions of the daemon per insert of 4 KB, 128 under way: the difference of two runs of different length, so that
// start, end and the filling of the buffer cancel out.
nlohmann::json MeasureInstructions(const std::string& replayd, bool quick);

// Inserts of 4-512 KB, log-uniform, until the buffer has been replaced three times; then resident memory over live frame bytes.
// And the index: resident memory beyond frames with a million small items.
nlohmann::json MeasureMemory(const std::string& replayd, bool quick);

}  // namespace replay::bench
