#include "server/breakdown_encoder.h"

#include <algorithm>
#include <cstring>

namespace replay::server {
namespace {

uint32_t TextWords(std::string_view text) { return static_cast<uint32_t>(text.size() / 8 + 1); }

void FillText(std::string_view text, capnp::Text::Builder to) { std::memcpy(to.begin(), text.data(), text.size()); }

// Of the removed only what has happened is listed.
void FillRow(const BreakdownRow& from, schema::Breakdown::Builder to) {
  FillText(from.name, to.initName(static_cast<uint32_t>(from.name.size())));
  to.setLive(from.live);
  to.setInserted(from.inserted);
  to.setWithheld(from.withheld);
  const auto reasons = std::count_if(from.removed.begin(), from.removed.end(), [](uint64_t count) { return count > 0; });
  auto removed = to.initRemoved(static_cast<uint32_t>(reasons));
  uint32_t next = 0;
  for (size_t reason = 0; reason < kRemoveReasons; ++reason) {
    if (from.removed[reason] == 0) continue;
    const std::string_view name = ToString(static_cast<RemoveReason>(reason));
    auto entry = removed[next++];
    FillText(name, entry.initName(static_cast<uint32_t>(name.size())));
    entry.setCount(from.removed[reason]);
  }
}

}  // namespace

uint32_t BreakdownWords(const BufferStats& from) {
  uint32_t words = 3;  // the tags of the lists
  for (const auto* rows : {&from.sources, &from.lengths, &from.draws}) {
    for (const BreakdownRow& row : *rows) {
      words += 5 + TextWords(row.name) + 1;  // the struct, its name, the tag of removed
      for (size_t reason = 0; reason < kRemoveReasons; ++reason)
        if (row.removed[reason] > 0) words += 2 + TextWords(ToString(static_cast<RemoveReason>(reason)));
    }
  }
  return words;
}

void FillBreakdowns(const BufferStats& from, schema::BufferStats::Builder to) {
  auto sources = to.initSources(static_cast<uint32_t>(from.sources.size()));
  for (uint32_t i = 0; i < sources.size(); ++i) FillRow(from.sources[i], sources[i]);
  auto lengths = to.initLengths(static_cast<uint32_t>(from.lengths.size()));
  for (uint32_t i = 0; i < lengths.size(); ++i) FillRow(from.lengths[i], lengths[i]);
  auto draws = to.initDraws(static_cast<uint32_t>(from.draws.size()));
  for (uint32_t i = 0; i < draws.size(); ++i) FillRow(from.draws[i], draws[i]);
}

}  // namespace replay::server
