#pragma once
// What a buffer is told to be: who stays, who is drawn, how draws and inserts wait for each other. What is not set is the server's
// default when the buffer is created, and stays as it is when it is altered.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace replay {

using std::chrono::milliseconds;

// The items of a buffer for which a filter holds, drawn by a selector of their own.
struct ViewOptions {
  std::string name{};  // 1 to 64 of [A-Za-z0-9_.-]
  // Terms that must all hold, of correct, reward, priority, draws, tokens, source, zero_spread (of the group), success and attempts
  // (of the prompt, with prompt_history) and tag.NAME:
  // "correct = yes, draws < 4", "source = gsm8k, tag.level >= 3, zero_spread = no"
  std::string filter{};
  std::string selector = "uniform";
  double priority_exponent = 1;
  double staleness_decay = 0;
};

struct BufferOptions {
  std::optional<uint64_t> capacity_items{};
  std::optional<uint64_t> capacity_bytes{};
  std::optional<std::string> policy{};     // "uniform" | "positive_bias": presets of retention and selector
  std::optional<std::string> retention{};  // "fifo" | "positive_bias" | "best"
  std::optional<std::string> delta{};      // decimal in [0, 1): share of the capacity kept for older correct (or best) items
  // "uniform" | "uniform_distinct" | "lifo" | "fifo" | "epoch" | "unused_first" | "prioritized" | "recency"
  std::optional<std::string> selector{};
  std::optional<double> priority_exponent{};  // prioritized: weight = priority^exponent …
  std::optional<double> staleness_decay{};    // … · exp(-staleness / decay), in gradient steps; 0: not. recency needs it
  std::optional<int64_t> max_staleness{};     // staler items are not drawn, in gradient steps; -1: any are
  std::optional<milliseconds> max_age{};      // evicted once this old; 0: never
  std::optional<int64_t> evict_staleness{};   // evicted once staler than this, in gradient steps; -1: never
  std::optional<uint32_t> max_draws{};        // removed once drawn this often; 0: unbounded
  std::optional<double> correct_threshold{};  // reward >= this counts as correct where the producer did not say
  std::optional<double> replay_ratio{};       // target draws per insert; 0: no pacing
  std::optional<double> tolerance{};
  std::optional<uint64_t> min_size{};
  std::optional<uint32_t> max_draws_per_sample{};
  std::optional<uint32_t> max_insert{};
  std::optional<bool> pace_draws{};
  std::optional<bool> pace_inserts{};
  std::optional<uint64_t> seed{};
  std::optional<std::vector<ViewOptions>> views{};  // at most 16; altering replaces all
  // "trajectory" | "group": what is retained and drawn as one, and what capacity_items, min_size and the count of a Sample are in.
  // Cannot be altered.
  std::optional<std::string> unit{};
  std::optional<bool> closed{};              // Inserts are refused, and a Sample that would wait for one gets kClosed.
  std::optional<milliseconds> lease{};       // What is drawn is held until it is acknowledged, so long at most; 0: not held.
  std::optional<std::string> zero_spread{};  // groups whose members have one reward: "keep" | "refuse" to store them
  std::optional<uint32_t> parts{};           // one for each rank, which draws from its own
  std::optional<uint32_t> prompt_history{};  // prompts whose outcomes are remembered; 0: none
  std::optional<std::string> level{};        // of inserts that ask for none: see InsertReceipt
};

}  // namespace replay
