#pragma once
// `stats --breakdown`: the trajectories of a buffer by source, by length and by the draws they had when they were removed.
//
//   SOURCE   LIVE      %  INSERTED      %  WITHHELD  CAPACITY  MAX_DRAWS
//   math    1,200   75.0     4,000   80.0        12     2,700        100
//
// Behind the counts of what is there stands a column for each reason of removal that occurred. Pure functions.

#include <algorithm>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/stats_view.h"

namespace replay::cli {

inline Json JsonOf(const std::vector<Breakdown>& rows, bool only_removed) {
  Json json = Json::array();
  for (const Breakdown& row : rows) {
    Json shown = {{"name", row.name}};
    if (!only_removed) {
      shown["live"] = row.live;
      shown["inserted"] = row.inserted;
      shown["withheld"] = row.withheld;
    }
    shown["removed"] = JsonOf(row.removed);
    json.push_back(std::move(shown));
  }
  return json;
}

// The JSON of a buffer, with its breakdown.
inline void AddBreakdown(const BufferStats& s, Json* json) {
  (*json)["sources"] = JsonOf(s.sources, false);
  (*json)["lengths"] = JsonOf(s.lengths, false);
  (*json)["draws"] = JsonOf(s.draws, true);
}

inline std::string TextOf(const std::vector<Breakdown>& rows, const std::string& heading, bool only_removed) {
  std::vector<std::string> header = {heading}, reasons;
  if (!only_removed) header.insert(header.end(), {">LIVE", ">%", ">INSERTED", ">%", ">WITHHELD"});
  uint64_t live = 0, inserted = 0;
  for (const Breakdown& row : rows) {
    live += row.live;
    inserted += row.inserted;
    for (const auto& [reason, count] : row.removed)
      if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) reasons.push_back(reason);
  }
  std::sort(reasons.begin(), reasons.end());
  for (const std::string& reason : reasons) {
    std::string& title = header.emplace_back(">" + Printable(reason));
    std::transform(title.begin(), title.end(), title.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  }
  Table table(std::move(header));
  for (const Breakdown& row : rows) {
    std::vector<std::string> cells = {row.name.empty() ? "(none)" : Printable(row.name)};
    const auto percent = [](uint64_t part, uint64_t all) {
      return all > 0 ? Format("%.1f", 100.0 * static_cast<double>(part) / static_cast<double>(all)) : "-";
    };
    if (!only_removed)
      cells.insert(cells.end(), {Count(row.live), percent(row.live, live), Count(row.inserted), percent(row.inserted, inserted),
                                 Count(row.withheld)});
    for (const std::string& reason : reasons) cells.push_back(Count(CountOf(row.removed, reason)));
    table.Add(std::move(cells));
  }
  return table.ToString();
}

// All three, below the block of their buffer.
inline std::string BreakdownText(const BufferStats& s) {
  return "\n" + TextOf(s.sources, "SOURCE", false) + "\n" + TextOf(s.lengths, "TOKENS", false) + "\n" +
         TextOf(s.draws, "DRAWS", true);
}

}  // namespace replay::cli
