// The part of codec.h that says what a buffer is to be: CreateBuffer and AlterBuffer.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "client/request_builder.h"
#include "schema/names.h"

namespace replay {
namespace {

constexpr std::array<std::string_view, 2> kPolicies = {"uniform", "positive_bias"};

// The enum-valued options, with `policy` resolved into the two that it presets; what is given beside it goes before.
struct ParsedKinds {
  std::optional<uint16_t> retention;
  std::optional<uint16_t> selector;
  std::vector<uint16_t> of_views;
  std::optional<uint16_t> unit;
  std::optional<uint16_t> zero_spread;
  std::optional<uint16_t> level;
};

Result<ParsedKinds> ParseKinds(const BufferOptions& options) {
  ParsedKinds kinds;
  if (options.policy) {
    const Result<uint16_t> policy = ParseEnum("policy", *options.policy, kPolicies);
    if (!policy) return policy.error();
    kinds.retention = *policy;  // uniform keeps the freshest (fifo), positive_bias is itself
    kinds.selector = uint16_t{0};
  }
  if (options.retention) {
    const Result<uint16_t> retention = ParseEnum("retention", *options.retention, kRetentionNames);
    if (!retention) return retention.error();
    kinds.retention = *retention;
  }
  for (const auto& [name, steps] :
       {std::pair("max_staleness", options.max_staleness), std::pair("evict_staleness", options.evict_staleness)}) {
    if (steps && *steps < -1)
      return Refuse(std::string(name) + " is " + std::to_string(*steps) + ": it must be 0 or more, or -1 for any");
  }
  if (options.max_age && options.max_age->count() < 0)
    return Refuse("max_age is " + std::to_string(options.max_age->count()) + " ms: it must not be negative");
  if (options.selector) {
    const Result<uint16_t> selector = ParseEnum("selector", *options.selector, kSelectorNames);
    if (!selector) return selector.error();
    kinds.selector = *selector;
  }
  if (options.lease && options.lease->count() < 0)
    return Refuse("lease is " + std::to_string(options.lease->count()) + " ms: it must not be negative");
  if (options.unit) {
    const Result<uint16_t> unit = ParseEnum("unit", *options.unit, kUnitNames);
    if (!unit) return unit.error();
    kinds.unit = *unit;
  }
  if (options.zero_spread) {
    const Result<uint16_t> zero_spread = ParseEnum("zero_spread", *options.zero_spread, kZeroSpreadNames);
    if (!zero_spread) return zero_spread.error();
    kinds.zero_spread = *zero_spread;
  }
  if (options.level) {
    const Result<uint16_t> level = ParseEnum("level", *options.level, kLevelNames);
    if (!level) return level.error();
    kinds.level = *level;
  }
  if (options.views && options.views->size() > kMaxViews)
    return Refuse("views has " + std::to_string(options.views->size()) + " entries: at most " + std::to_string(kMaxViews) +
                  " are allowed");
  for (size_t i = 0; options.views && i < options.views->size(); ++i) {
    const ViewOptions& view = (*options.views)[i];
    const std::string at = "views[" + std::to_string(i) + "].";
    if (view.name.empty() || view.name.size() > kMaxBufferNameBytes)
      return Refuse(at + "name has " + std::to_string(view.name.size()) + " bytes: it must have 1 to " +
                    std::to_string(kMaxBufferNameBytes));
    if (view.filter.size() > kMaxFilterBytes)
      return Refuse(at + "filter has " + std::to_string(view.filter.size()) + " bytes: at most " +
                    std::to_string(kMaxFilterBytes) + " are allowed");
    const Result<uint16_t> selector = ParseEnum((at + "selector").c_str(), view.selector, kSelectorNames);
    if (!selector) return selector.error();
    kinds.of_views.push_back(*selector);
  }
  return kinds;
}

// Sets what is given and returns the names of it, as AlterBuffer lists them. CreateBuffer has put the defaults in before.
std::vector<std::string_view> Overlay(const BufferOptions& from, const ParsedKinds& kinds, schema::BufferOptions::Builder to) {
  std::vector<std::string_view> names;
  const auto given = [&](const auto& option, std::string_view name) {
    if (option) names.push_back(name);
    return option.has_value();
  };
  if (given(from.capacity_items, "capacity_items")) to.setCapacityItems(*from.capacity_items);
  if (given(from.capacity_bytes, "capacity_bytes")) to.setCapacityBytes(*from.capacity_bytes);
  if (given(kinds.retention, "retention")) to.setRetention(static_cast<schema::RetentionKind>(*kinds.retention));
  if (given(from.delta, "delta")) to.setDelta(AsText(*from.delta));
  if (given(kinds.selector, "selector")) to.setSelector(static_cast<schema::SelectorKind>(*kinds.selector));
  if (given(from.priority_exponent, "priority_exponent")) to.setPriorityExponent(*from.priority_exponent);
  if (given(from.staleness_decay, "staleness_decay")) to.setStalenessDecay(*from.staleness_decay);
  if (given(from.max_age, "max_age")) to.setMaxAgeMs(static_cast<uint64_t>(from.max_age->count()));
  if (given(from.evict_staleness, "evict_staleness")) {
    to.setHasEvictStaleness(*from.evict_staleness >= 0);
    to.setEvictStaleness(*from.evict_staleness);
  }
  if (given(from.max_staleness, "max_staleness")) {
    to.setHasMaxStaleness(*from.max_staleness >= 0);
    to.setMaxStaleness(*from.max_staleness);
  }
  if (given(from.max_draws, "max_draws")) to.setMaxDraws(*from.max_draws);
  if (given(from.correct_threshold, "correct_threshold")) {
    to.setCorrectThreshold(*from.correct_threshold);
    to.setHasCorrectThreshold(true);
  }
  if (given(from.replay_ratio, "replay_ratio")) to.setReplayRatio(*from.replay_ratio);
  if (given(from.tolerance, "tolerance")) to.setTolerance(*from.tolerance);
  if (given(from.min_size, "min_size")) to.setMinSize(*from.min_size);
  if (given(from.max_draws_per_sample, "max_draws_per_sample")) to.setMaxDrawsPerSample(*from.max_draws_per_sample);
  if (given(from.max_insert, "max_insert")) to.setMaxInsert(*from.max_insert);
  if (given(from.pace_draws, "pace_draws")) to.setPaceDraws(*from.pace_draws);
  if (given(from.pace_inserts, "pace_inserts")) to.setPaceInserts(*from.pace_inserts);
  if (given(from.views, "views")) {
    auto views = to.initViews(static_cast<unsigned>(from.views->size()));
    for (unsigned i = 0; i < views.size(); ++i) {
      const ViewOptions& view = (*from.views)[i];
      views[i].setName(AsText(view.name));
      views[i].setFilter(AsText(view.filter));
      views[i].setSelector(static_cast<schema::SelectorKind>(kinds.of_views[i]));
      views[i].setPriorityExponent(view.priority_exponent);
      views[i].setStalenessDecay(view.staleness_decay);
    }
  }
  if (given(kinds.unit, "unit")) to.setUnit(static_cast<schema::Unit>(*kinds.unit));
  if (given(from.closed, "closed")) to.setClosed(*from.closed);
  if (given(from.lease, "lease")) to.setLeaseMs(static_cast<uint64_t>(from.lease->count()));
  if (given(kinds.zero_spread, "zero_spread")) to.setZeroSpread(static_cast<schema::ZeroSpread>(*kinds.zero_spread));
  if (given(kinds.level, "level")) to.setLevel(static_cast<schema::AcknowledgementLevel>(*kinds.level));
  if (given(from.parts, "parts")) to.setParts(*from.parts);
  if (given(from.prompt_history, "prompt_history")) to.setPromptHistory(*from.prompt_history);
  if (given(from.seed, "seed")) {
    to.setSeed(*from.seed);
    to.setHasSeed(true);
  }
  return names;
}

// The server's defaults: CreateBuffer says everything, so that what a program creates does not depend on the server's version.
void SetDefaults(const BufferOptions& given, schema::BufferOptions::Builder to) {
  to.setCapacityItems(1'000'000);
  if (!given.delta) to.setDelta("0");
  to.setMinSize(1);
  to.setPriorityExponent(1);
  to.setPaceDraws(true);
  to.setPaceInserts(true);
}

// Of its texts and its list of views.
uint32_t OptionTextWords(const BufferOptions& options) {
  uint32_t words = options.delta ? TextWords(*options.delta) : 2;
  if (!options.views) return words;
  for (const ViewOptions& view : *options.views) words += 5 + TextWords(view.name) + TextWords(view.filter);
  return words + 1;
}

}  // namespace

Result<Frame> EncodeCreateBuffer(const RequestHead& head, std::string_view name, const BufferOptions& options) {
  const Result<ParsedKinds> kinds = ParseKinds(options);
  if (!kinds) return kinds.error();
  return BuildRequest(head, TextWords(name) + OptionTextWords(options), [&](schema::Request::Builder request) {
    auto create = request.initCreateBuffer();
    create.setName(AsText(std::string(name)));
    auto to = create.initOptions();
    SetDefaults(options, to);
    Overlay(options, *kinds, to);
  });
}

Result<Frame> EncodeAlterBuffer(const RequestHead& head, std::string_view name, const BufferOptions& options) {
  const Result<ParsedKinds> kinds = ParseKinds(options);
  if (!kinds) return kinds.error();
  constexpr uint32_t kNamesWords =
      32 * (1 + 3) + 1;  // at most 32 options; the longest name, max_draws_per_sample, takes 3 words
  bool empty = false;
  Frame frame =
      BuildRequest(head, TextWords(name) + OptionTextWords(options) + kNamesWords, [&](schema::Request::Builder request) {
        auto alter = request.initAlterBuffer();
        alter.setName(AsText(std::string(name)));
        const std::vector<std::string_view> names = Overlay(options, *kinds, alter.initOptions());
        empty = names.empty();
        auto fields = alter.initFields(static_cast<unsigned>(names.size()));
        for (unsigned i = 0; i < fields.size(); ++i) fields.set(i, AsText(std::string(names[i])));
      });
  if (empty) return Refuse("no option is set: there is nothing to alter");
  return frame;
}

}  // namespace replay
