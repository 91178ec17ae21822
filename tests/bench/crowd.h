#pragma once
// Many clients at once: a thousand that wait, and one that floods.

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace replay::bench {

// 1,000 clients blocked in Sample because min_size is not met: what each costs, how late they time out or wake, and what they
// cost the inserts meanwhile.
nlohmann::json MeasureWaiters(const std::string& replayd, bool quick);

// One client sends a million requests ahead and reads no reply until the daemon stops taking them; another one pings.
nlohmann::json MeasureFlood(const std::string& replayd, bool quick);

}  // namespace replay::bench
