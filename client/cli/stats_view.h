#pragma once
// What `stats` shows of a buffer, computed from its counters; rates from two snapshots that lie `seconds` apart.
//
//   replay ratio   draws / inserts                              (the paper's B/R)
//   since last use steps between two draws of one trajectory    (the paper's Fig. 2; first uses have none)
//   draws per item of what was removed
//   never used     removed with no draw / removed               (generation wasted)
//   accuracy       correct / (correct + incorrect), where the producer said; stored, inserted, drawn, removed
//   mu             (generation seconds / trajectories generated) / (training seconds / draws trained on)
//   W/T            generating workers / trainers, as reported
//
// A share of nothing is absent (null), not 0. Pure functions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace replay::cli {

inline std::optional<double> Share(double part, double whole) { return whole > 0 ? std::optional(part / whole) : std::nullopt; }

inline uint64_t CountOf(const NamedCounts& counts, std::string_view name) {
  for (const auto& [other, count] : counts)
    if (other == name) return count;
  return 0;
}

// The upper bound of the bucket that holds the quantile; infinite beyond the last bound; absent without observations.
inline std::optional<double> Quantile(const Histogram& histogram, double quantile) {
  uint64_t total = 0, seen = 0;
  for (uint64_t count : histogram.counts) total += count;
  if (total == 0) return std::nullopt;
  const double wanted = quantile * static_cast<double>(total);
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    seen += histogram.counts[i];
    if (static_cast<double>(seen) >= wanted) return histogram.bounds[i];
  }
  return std::numeric_limits<double>::infinity();
}

struct StatsView {
  std::optional<double> inserted_per_second, sampled_per_second;  // absent in a single snapshot
  std::optional<double> replay_ratio, staleness_p50, staleness_p90, never_used;
  std::optional<double> accuracy_stored, accuracy_inserted, accuracy_drawn, accuracy_removed;
  std::optional<double> mu, workers_per_trainer;
};

inline StatsView ViewOf(const BufferStats& now, const BufferStats* before, double seconds) {
  const auto real = [](uint64_t count) { return static_cast<double>(count); };
  const auto accuracy = [&](const std::string& of) {
    const double correct = real(CountOf(now.outcomes, of + "_correct"));
    return Share(correct, correct + real(CountOf(now.outcomes, of + "_incorrect")));
  };
  StatsView view;
  if (before && seconds > 0 && now.accepted >= before->accepted && now.drawn >= before->drawn) {
    view.inserted_per_second = real(now.accepted - before->accepted) / seconds;
    view.sampled_per_second = real(now.drawn - before->drawn) / seconds;
  }
  view.replay_ratio = Share(real(now.drawn), real(now.accepted));
  view.staleness_p50 = Quantile(now.staleness, 0.5);
  view.staleness_p90 = Quantile(now.staleness, 0.9);
  uint64_t removed = 0;
  for (uint64_t count : now.item_draws.counts) removed += count;
  if (!now.item_draws.bounds.empty() && now.item_draws.bounds[0] == 0)
    view.never_used = Share(real(now.item_draws.counts[0]), real(removed));
  view.accuracy_stored = Share(real(now.correct), real(now.scored));
  view.accuracy_inserted = accuracy("insert");
  view.accuracy_drawn = accuracy("sample");
  view.accuracy_removed = accuracy("remove");
  const auto per_rollout = Share(now.generation_seconds, real(now.generated_trajectories));
  const auto per_draw = Share(now.training_seconds, real(now.trained_draws));
  if (per_rollout && per_draw) view.mu = Share(*per_rollout, *per_draw);
  if (now.workers > 0) view.workers_per_trainer = Share(now.workers, now.trainers);
  return view;
}

inline Json JsonOf(const std::optional<double>& number) {
  return number && std::isfinite(*number) ? Json(*number) : Json(nullptr);
}

inline Json JsonOf(const NamedCounts& counts) {
  Json json = Json::object();
  for (const auto& [name, count] : counts) json[name] = count;
  return json;
}

inline Json JsonOf(const Histogram& histogram) {
  return {{"bounds", histogram.bounds}, {"counts", histogram.counts}, {"sum", histogram.sum}};
}

inline Json JsonOf(const BufferOptions& o) {
  Json json = Json::object();
  const auto put = [&json](const char* name, const auto& option) { json[name] = option ? Json(*option) : Json(nullptr); };
  put("capacity_items", o.capacity_items);
  put("capacity_bytes", o.capacity_bytes);
  put("retention", o.retention);
  put("delta", o.delta);
  put("selector", o.selector);
  put("priority_exponent", o.priority_exponent);
  put("staleness_decay", o.staleness_decay);
  put("max_staleness", o.max_staleness);
  json["max_age_ms"] = o.max_age ? Json(o.max_age->count()) : Json(nullptr);
  put("evict_staleness", o.evict_staleness);
  put("max_draws", o.max_draws);
  put("correct_threshold", o.correct_threshold);
  put("replay_ratio", o.replay_ratio);
  put("tolerance", o.tolerance);
  put("min_size", o.min_size);
  put("max_draws_per_sample", o.max_draws_per_sample);
  put("max_insert", o.max_insert);
  put("pace_draws", o.pace_draws);
  put("pace_inserts", o.pace_inserts);
  put("seed", o.seed);
  put("unit", o.unit);
  put("closed", o.closed);
  json["lease_ms"] = o.lease ? Json(o.lease->count()) : Json(nullptr);
  put("zero_spread", o.zero_spread);
  put("parts", o.parts);
  put("prompt_history", o.prompt_history);
  put("level", o.level);
  json["views"] = Json::array();
  for (const ViewOptions& view : o.views.value_or(std::vector<ViewOptions>()))
    json["views"].push_back({{"name", view.name},
                             {"filter", view.filter},
                             {"selector", view.selector},
                             {"priority_exponent", view.priority_exponent},
                             {"staleness_decay", view.staleness_decay}});
  return json;
}

inline Json JsonOf(const BufferStats& s, const StatsView& view) {
  return {{"name", s.name},
          {"items", s.items},
          {"bytes", s.bytes},
          {"index_bytes", s.index_bytes},
          {"spilled_items", s.spilled_items},
          {"spilled_bytes", s.spilled_bytes},
          {"tokens", s.tokens},
          {"positive_items", s.positive_items},
          {"offered", s.offered},
          {"accepted", s.accepted},
          {"duplicate", s.duplicate},
          {"rejected", s.rejected},
          {"zero_spread", s.zero_spread},
          {"zero_spread_refused", s.zero_spread_refused},
          {"removed", JsonOf(s.removed)},
          {"samples", s.samples},
          {"drawn", s.drawn},
          {"tokens_inserted", s.tokens_inserted},
          {"tokens_drawn", s.tokens_drawn},
          {"withheld", s.withheld},
          {"inserted_per_second", JsonOf(view.inserted_per_second)},
          {"sampled_per_second", JsonOf(view.sampled_per_second)},
          {"replay_ratio", JsonOf(view.replay_ratio)},
          {"pacing_balance", s.pacing_balance},
          {"staleness_p50", JsonOf(view.staleness_p50)},
          {"staleness_p90", JsonOf(view.staleness_p90)},
          {"staleness", JsonOf(s.staleness)},
          {"reuse_gap", JsonOf(s.reuse_gap)},
          {"item_draws", JsonOf(s.item_draws)},
          {"never_used", JsonOf(view.never_used)},
          {"scored", s.scored},
          {"correct", s.correct},
          {"outcomes", JsonOf(s.outcomes)},
          {"accuracy_stored", JsonOf(view.accuracy_stored)},
          {"accuracy_inserted", JsonOf(view.accuracy_inserted)},
          {"accuracy_drawn", JsonOf(view.accuracy_drawn)},
          {"accuracy_removed", JsonOf(view.accuracy_removed)},
          {"oldest_version", s.oldest_version},
          {"newest_version", s.newest_version},
          {"consumer_step", s.consumer_step},
          {"generation_seconds", s.generation_seconds},
          {"generated_trajectories", s.generated_trajectories},
          {"training_seconds", s.training_seconds},
          {"trained_draws", s.trained_draws},
          {"mu", JsonOf(view.mu)},
          {"workers", s.workers},
          {"trainers", s.trainers},
          {"workers_per_trainer", JsonOf(view.workers_per_trainer)},
          {"producers", s.producers},
          {"consumers", s.consumers},
          {"waiting_inserts", s.waiting_inserts},
          {"waiting_samples", s.waiting_samples},
          {"views", JsonOf(s.views)},
          {"groups", s.groups},
          {"reserved_groups", s.reserved_groups},
          {"pending", s.pending},
          {"expired_groups", s.expired_groups},
          {"held", s.held},
          {"leases", s.leases},
          {"expired_leases", s.expired_leases},
          {"column_bytes", s.column_bytes},
          {"columns", JsonOf(s.columns)},
          {"prompts", s.prompts},
          {"options", JsonOf(s.options)}};
}

inline std::string TextOf(const std::optional<double>& number, const char* format = "%.3g") {
  return number ? Format(format, *number) : "-";
}

// The block of one buffer.
inline std::string TextOf(const BufferStats& s, const StatsView& view, const std::string& heading) {
  const auto bound = [](const std::optional<double>& upper, const Histogram& histogram) {
    if (!upper) return std::string("-");
    return std::isinf(*upper) ? Format("> %.0f", histogram.bounds.back()) : Format("<= %.0f", *upper);
  };
  const auto rate = [](const std::optional<double>& per_second) { return per_second ? "  (" + Rate(*per_second) + ")" : ""; };
  const auto percent = [](const std::optional<double>& share) { return share ? Format("%.1f %%", *share * 100) : "-"; };
  std::string text = heading + "\n";
  const auto line = [&text](const char* name, const std::string& value) { text += Format("  %-15s ", name) + value + "\n"; };

  const bool of_groups = s.options.unit == "group";
  line("items", Count(s.items) + (of_groups ? " in " + Count(s.groups) + " groups" : "") + " of " +
                    Count(s.options.capacity_items.value_or(0)) + (of_groups ? " groups" : "") +
                    (s.options.retention == "positive_bias" ? ", " + Count(s.positive_items) + " kept as correct"
                     : s.options.retention == "best"        ? ", " + Count(s.positive_items) + " kept as the best"
                                                            : ""));
  if (s.options.closed.value_or(false)) line("closed", "nothing more is inserted");
  if (s.reserved_groups + s.expired_groups > 0)
    line("reserved", Count(s.reserved_groups) + " groups, " + Count(s.pending) + " members wait in them, " +
                         Count(s.expired_groups) + " groups have expired");
  if (s.leases + s.expired_leases > 0)
    line("held", Count(s.held) + " under " + Count(s.leases) + " leases, " + Count(s.expired_leases) + " leases have expired");
  if (!s.views.empty()) {
    std::string views;
    for (const auto& [name, items] : s.views) views += (views.empty() ? "" : ", ") + name + " " + Count(items);
    line("views", views);
  }
  if (!s.columns.empty()) {
    std::string columns;
    for (const auto& [name, items] : s.columns) columns += (columns.empty() ? "" : ", ") + name + " " + Count(items);
    line("columns", columns + ", " + Bytes(s.column_bytes));
  }
  if (s.options.prompt_history.value_or(0) > 0)
    line("prompts", Count(s.prompts) + " of " + Count(*s.options.prompt_history) + " remembered");
  line("bytes", Bytes(s.bytes) + " of " + Bytes(s.options.capacity_bytes.value_or(0)) + ", index " + Bytes(s.index_bytes) +
                    (s.spilled_items ? ", on disk only " + Bytes(s.spilled_bytes) + " of " + Count(s.spilled_items) : ""));
  line("inserted", Count(s.accepted) + rate(view.inserted_per_second) +
                       (s.rejected ? ", " + Count(s.rejected) + " rejected" : "") +
                       (s.duplicate ? ", " + Count(s.duplicate) + " duplicate" : ""));
  if (s.zero_spread > 0 || s.zero_spread_refused > 0)
    line("zero spread", Count(s.zero_spread) + " of the items" +
                            (s.zero_spread_refused ? ", " + Count(s.zero_spread_refused) + " refused" : ""));
  line("sampled", Count(s.drawn) + " draws in " + Count(s.samples) + " samples" + rate(view.sampled_per_second));
  const double target = s.options.replay_ratio.value_or(0);
  line("replay ratio",
       TextOf(view.replay_ratio) + (target > 0 ? Format(", target %g, balance %.6g", target, s.pacing_balance) : ""));
  line("staleness", "p50 " + bound(view.staleness_p50, s.staleness) + ", p90 " + bound(view.staleness_p90, s.staleness) +
                        " steps" + (s.withheld ? ", " + Count(s.withheld) + " withheld" : ""));
  const auto spread = [&bound](const Histogram& histogram) {
    return "p50 " + bound(Quantile(histogram, 0.5), histogram) + ", p90 " + bound(Quantile(histogram, 0.9), histogram);
  };
  uint64_t again = 0;
  for (const uint64_t count : s.reuse_gap.counts) again += count;
  line("since last use", spread(s.reuse_gap) + " steps, " + Count(s.drawn - std::min(again, s.drawn)) + " first uses");
  line("draws per item", spread(s.item_draws) + " of what was removed");
  line("never used", percent(view.never_used) + " of what was removed");
  line("accuracy", "stored " + percent(view.accuracy_stored) + ", inserted " + percent(view.accuracy_inserted) + ", drawn " +
                       percent(view.accuracy_drawn) + ", removed " + percent(view.accuracy_removed));
  line("versions", Format("%lld to %lld, consumer at step %lld", static_cast<long long>(s.oldest_version),
                          static_cast<long long>(s.newest_version), static_cast<long long>(s.consumer_step)));
  if (s.generated_trajectories > 0 || s.trained_draws > 0 || s.workers > 0 || s.trainers > 0)
    line("cost", "mu " + TextOf(view.mu) + Format(", W/T %u/%u", s.workers, s.trainers));
  line("clients", Format("%u inserting, %u sampling", s.producers, s.consumers));
  line("waiting", Count(s.waiting_inserts) + " inserts, " + Count(s.waiting_samples) + " samples" +
                      (s.waiting_inserts + s.waiting_samples > 0 ? "  (why: replayctl waiters)" : ""));
  return text;
}

}  // namespace replay::cli
