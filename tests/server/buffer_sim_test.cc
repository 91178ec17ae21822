// Random operations on a Buffer against a plain model that does everything by looking at everything.
//
//   REPLAY_SEED              chooses other operations (printed on failure)
//   REPLAY_SIM_OPERATIONS    how many in all, 1,000,000 if not given
//
// Every operation is made from (seed, life, its number) alone, so that any subset of a life can be run again: a failing life is
// shrunk to a few operations, which are printed. At the end stands what was covered.
//
// A Buffer waits for min_size, pacing, staleness, filter and group_incomplete. The other reasons are the daemon's and have their
// tests in tests/end_to_end/protocol_test.cc:
//
//   memory        AnInsertBeyondTheMemoryLimitWaitsForItAndSaysSo
//   draining      ADaemonThatIsAskedToStopTellsThoseWhoWaitAndLeavesWithStatusZero
//   no_producer   AWaitThatNoProducerCanEndSaysSo
//   version       VersionsOnlyGoForwardAndWakeThoseWhoWait

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "schema/names.h"
#include "server/buffer.h"
#include "tests/support/fake_trajectory.h"
#include "tests/support/kept_buffer.h"
#include "tests/support/make_column.h"
#include "tests/support/sanitized.h"

namespace replay::server {
namespace {

using std::to_string;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

std::string Describe(const Verdict& verdict) {
  if (verdict.done()) return "done";
  return verdict.waits() ? "waits " + std::string(ToString(verdict.reason)) : std::string(ToString(verdict.code));
}

// The registry, as a list for each run.
struct ModelVersions {
  struct Entry {
    uint64_t epoch;
    int64_t version, step;
  };
  std::map<std::string, std::vector<Entry>> runs;

  uint64_t CurrentEpoch(const std::string& run) const {
    const auto at = runs.find(run);
    return at == runs.end() ? 0 : at->second.back().epoch;
  }
  int64_t StepOf(const std::string& run, uint64_t epoch, int64_t version) const {
    const auto at = runs.find(run);
    if (at == runs.end()) return version;
    for (const Entry& entry : at->second)
      if (entry.epoch == epoch && entry.version == version) return entry.step;
    return version;
  }
};

struct ModelItem {
  fake::Trajectory said;
  uint64_t number = 0;
  uint64_t unit = 0;  // its number, or where the unit is the group, that of its group
  bool held = false;
  Outcome outcome{};
  bool counted = false;
  uint32_t draws = 0;
  int64_t last_use = 0;
  uint64_t time_ms = 0;
  uint32_t revision = 0;
  bool outcome_said = false;
  bool zero_spread = false;
  std::map<std::string, Frame> columns;
  std::optional<float> advantage;
  std::map<std::string, int64_t> late_tags;
  uint64_t bytes(const ItemUpdate& with = {}) const;  // towards capacity_bytes
  std::array<bool, 12> seen{};  // in this pass of selector epoch, by view: 0 is the whole buffer, or its rank's part
  uint64_t prompt = 0;          // number of its prompt; 0: none that is remembered
  uint64_t attempts = 0, successes = 0;
};

uint64_t ModelItem::bytes(const ItemUpdate& with) const {
  std::map<std::string, Frame> all = columns;
  for (const Frame& column : with.columns) all.insert_or_assign(std::string(ColumnName(column.bytes())), column);
  std::set<std::string> tags;
  for (const auto& [name, value] : late_tags) tags.insert(name);
  for (const NamedTag& tag : with.tags) tags.insert(tag.name);
  uint64_t sum = said.bytes + Frame::kOverheadBytes;
  for (const auto& [name, column] : all) sum += column.size() + Frame::kOverheadBytes;
  for (const std::string& name : tags) sum += 16 + name.size();
  return sum;
}

// The views that a buffer may declare, as "v1", "v2" …, with any selector.
struct ModelView {
  const char* filter;
  bool (*holds)(const ModelItem& item);
};
const ModelView kModelViews[] = {
    {"correct = yes", [](const ModelItem& item) { return item.outcome == Outcome::kCorrect; }},
    {"reward >= 0.5, draws < 3", [](const ModelItem& item) { return item.said.reward >= 0.5f && item.draws < 3; }},
    {"source = here, tokens < 12", [](const ModelItem& item) { return item.said.source == "here" && item.said.tokens < 12; }},
    {"priority > 0", [](const ModelItem& item) { return item.said.priority > 0; }},
    {"zero_spread = no", [](const ModelItem& item) { return !item.zero_spread; }},
    {"draws != 1, correct != unknown",
     [](const ModelItem& item) { return item.draws != 1 && item.outcome != Outcome::kUnknown; }},
    {"column.a = yes, column.b != yes",
     [](const ModelItem& item) { return item.columns.count("a") > 0 && item.columns.count("b") == 0; }},
    {"success >= 0.25, success < 0.75",
     [](const ModelItem& item) { return item.successes * 4 >= item.attempts && item.successes * 4 < item.attempts * 3; }},
    {"attempts <= 3, draws < 4", [](const ModelItem& item) { return item.attempts <= 3 && item.draws < 4; }},
};

// One that is remembered; numbers are never used again.
struct ModelPrompt {
  uint64_t number = 0;
  std::string source;
  PromptOutcomes outcomes;
};

// One part of a batch.
struct ModelPart {
  size_t view = 0;  // 0: the whole buffer
  uint32_t count = 0;
  SelectorKind selector = SelectorKind::kUniform;
  double exponent = 1, decay = 0;
  int64_t max_staleness = INT64_MAX, min_staleness = 0;
  bool or_next = false;
  std::optional<uint32_t> rank;  // of a buffer with parts: whose part
  bool distinct() const {
    return selector == SelectorKind::kUniformDistinct || selector == SelectorKind::kLifo || selector == SelectorKind::kFifo;
  }
};

// A batch that was drawn for a key.
struct ModelPlan {
  int64_t step = 0;
  SampleRequest asked;
  std::vector<std::string> ranks;  // what each got
};

// A group whose members come in one by one.
struct ModelReserved {
  uint32_t size = 0;
  MissingMembers missing{};
  uint64_t lease_ms = 0, expires_ms = 0, deadline_ms = 0;
  std::vector<fake::Trajectory> members;
};

struct ModelLease {
  uint64_t number = 0, holder = 0, expires_ms = 0;
  std::vector<uint64_t> units;
};

// What server/breakdown.h counts, by name.
using ModelRows = std::map<std::string, BreakdownRow>;
std::string NameOfLength(uint64_t tokens) {
  uint64_t most = 128;
  while (most < tokens) most *= 2;
  if (most > 65536) return "65537+";
  return to_string(most == 128 ? 1 : most / 2 + 1) + "-" + to_string(most);
}
std::string NameOfDraws(uint64_t draws) {
  if (draws <= 2) return to_string(draws);
  uint64_t most = 4;
  while (most < draws) most *= 2;
  return most > 256 ? "257+" : to_string(most / 2 + 1) + "-" + to_string(most);
}
std::string Text(const ModelRows& rows) {
  std::string text;
  for (const auto& [name, row] : rows) {
    std::string counts = to_string(row.live) + " of " + to_string(row.inserted) + ", " + to_string(row.withheld) + " withheld";
    for (const uint64_t count : row.removed) counts += " " + to_string(count);
    if (counts.find_first_of("123456789") != std::string::npos) text += "[" + name + "] " + counts + "\n";
  }
  return text;
}
std::string Text(const std::vector<BreakdownRow>& rows) {
  ModelRows by_name;
  for (const BreakdownRow& row : rows) by_name[row.name] = row;
  return Text(by_name);
}

struct ModelHistogram {
  std::span<const double> bounds;  // inclusive
  std::vector<uint64_t> counts = std::vector<uint64_t>(bounds.size() + 1);
  double sum = 0;
  void Observe(int64_t value) {
    size_t bucket = 0;
    while (bucket < bounds.size() && static_cast<double>(value) > bounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += static_cast<double>(value);
  }
};
// What BufferStats tells beside what stands in the texts, by name: whole numbers and quarters, exact in a double. To write out
// some 70 of them after each operation would take a fourth of the time.
using Numbers = std::vector<std::pair<const char*, double>>;
template <typename Histogram>
void Append(const char* name, const Histogram& histogram, Numbers* to) {
  for (const uint64_t count : histogram.counts) to->emplace_back(name, count);
  to->emplace_back(name, histogram.sum);
}
void Append(const CostReport& cost, Numbers* to) {
  to->insert(to->end(), {{"generation_seconds", cost.generation_seconds},
                         {"generated_trajectories", cost.generated_trajectories},
                         {"generated_tokens", cost.generated_tokens},
                         {"training_seconds", cost.training_seconds},
                         {"trained_draws", cost.trained_draws},
                         {"trained_tokens", cost.trained_tokens},
                         {"workers", cost.workers},
                         {"trainers", cost.trainers}});
}

// Of trajectories whose correctness is known.
struct ModelOutcomes {
  uint64_t correct = 0, incorrect = 0;
  void Count(Outcome outcome) {
    correct += outcome == Outcome::kCorrect;
    incorrect += outcome == Outcome::kIncorrect;
  }
};

struct Model {
  BufferOptions options;
  uint64_t next_unit = 1, largest_group = 1;
  std::vector<std::pair<std::string, ModelReserved>> reserved;  // in the order they were reserved
  std::vector<ModelLease> leases;                               // likewise
  uint64_t next_lease = 1;
  uint64_t dropped_members = 0;
  std::array<uint64_t, 3> groups_over{};                // reserved groups that were over, by what became of them
  std::map<std::string, std::vector<ModelPlan>> plans;  // by consumer, in the order of their steps
  ModelVersions versions;
  std::vector<ModelItem> items;                                                    // live, oldest first
  std::map<std::string, int64_t> newest_seen;                                      // by run with live items
  std::map<uint64_t, std::map<uint64_t, std::pair<uint64_t, uint32_t>>> receipts;  // writer → sequence → first, count
  std::map<std::pair<uint64_t, uint64_t>, std::vector<std::string>> inserted_ids;  // by writer and sequence
  std::map<uint64_t, uint64_t> acknowledged;                                       // of known writers
  uint64_t next_number = 1;
  double carried = 0, inserted = 0, drawn_paced = 0;
  uint64_t outstanding = 0;
  bool starving = false;
  uint64_t offered = 0, accepted = 0, duplicate = 0, rejected = 0, zero_spread_refused = 0, drawn = 0;
  uint64_t samples = 0, withheld = 0, withheld_total = 0, tokens_inserted = 0, tokens_drawn = 0, expired_leases = 0;
  int64_t consumer_step = 0;
  ModelOutcomes outcomes_inserted, outcomes_drawn, outcomes_removed;
  ModelHistogram staleness_drawn{.bounds = kStepBounds}, reuse_gaps{.bounds = kStepBounds},
      draws_removed{.bounds = kDrawBounds};
  CostReport cost;
  std::array<uint64_t, static_cast<size_t>(RemoveReason::kCount)> removed{};
  uint64_t now_ms = 0;
  std::map<uint64_t, std::vector<Frame>> columns_of;  // what trajectories are sent with, by tag
  std::optional<uint64_t> mark_ms;                    // insert times are rounded down to a thousandth of max_age
  std::vector<ModelPrompt> prompts;                   // least recently inserted into first
  uint64_t next_prompt = 1;

  // --- Units ---
  bool by_group() const { return options.unit == Unit::kGroup; }
  // What is retained and drawn: the items themselves or, by group, a row for each, made of its members. Good until the next call.
  const std::vector<ModelItem>& Rows() const {
    if (!by_group()) return items;
    rows.clear();
    for (const ModelItem& item : items) {
      if (rows.empty() || rows.back().unit != item.unit) {
        rows.push_back(item);
        rows.back().number = item.unit;
        continue;
      }
      ModelItem& row = rows.back();
      row.said.version = std::min(row.said.version, item.said.version);
      row.said.reward = std::max(row.said.reward, item.said.reward);
      row.said.priority = std::max(row.said.priority, item.said.priority);
      row.said.tokens += item.said.tokens;
      std::erase_if(row.columns, [&](const auto& each) { return item.columns.count(each.first) == 0; });
      if (item.outcome == Outcome::kCorrect || row.outcome == Outcome::kUnknown) row.outcome = item.outcome;
    }
    return rows;
  }
  mutable std::vector<ModelItem> rows;
  uint64_t Held() const {
    uint64_t held = 0;
    for (const ModelItem& row : Rows()) held += row.held;
    return held;
  }
  uint64_t Pending() const {
    uint64_t pending = 0;
    for (const auto& [group, each] : reserved) pending += each.members.size();
    return pending;
  }
  ModelReserved* FindReserved(const std::string& group) {
    for (auto& [id, each] : reserved)
      if (id == group) return &each;
    return nullptr;
  }
  uint64_t MinSize() const { return options.closed ? 1 : options.min_size; }

  ModelRows by_source, by_length, by_draws;  // inserted and removed
  std::vector<std::string> sources{""};
  std::optional<std::pair<SampleRequest, ModelPart>> last_sample;

  // --- Breakdown ---
  std::string SourceRow(const std::string& source) {
    const auto at = std::find(sources.begin(), sources.end(), source);
    if (at == sources.end()) return sources.push_back(source), SourceRow(source);
    return at - sources.begin() < 63 ? source : "(other)";
  }
  std::string Breakdowns() {
    ModelRows source_rows = by_source, length_rows = by_length;
    for (const ModelItem& item : items) {
      ModelItem unit =
          *std::find_if(Rows().begin(), Rows().end(), [&](const ModelItem& each) { return each.unit == item.unit; });
      unit.held = false;
      for (BreakdownRow* row : {&source_rows[SourceRow(item.said.source)], &length_rows[NameOfLength(item.said.tokens)]}) {
        ++row->live;
        row->withheld += last_sample && !InWindow(unit, last_sample->first, last_sample->second);
      }
    }
    return Text(source_rows) + Text(length_rows) + Text(by_draws);
  }

  // --- What may be drawn ---
  bool OldEpoch(const ModelItem& item) const { return item.said.epoch < versions.CurrentEpoch(item.said.run); }
  int64_t StepOf(const ModelItem& item) const { return versions.StepOf(item.said.run, item.said.epoch, item.said.version); }
  int64_t Now(const ModelItem& item, std::optional<int64_t> step) const {
    if (step) return *step;
    const auto at = versions.runs.find(item.said.run);
    return at == versions.runs.end() ? newest_seen.at(item.said.run) : at->second.back().step;
  }
  bool InView(const ModelItem& item, size_t view) const {
    return view == 0 || (!OldEpoch(item) && kModelViews[view - 1].holds(item));
  }
  bool InPart(const ModelItem& item, const ModelPart& part) const {
    return !part.rank || item.number % options.parts == *part.rank;
  }
  bool InWindow(const ModelItem& item, const SampleRequest& request, const ModelPart& part) const {
    const int64_t staleness = Now(item, request.step) - StepOf(item);
    return !item.held && InPart(item, part) && InView(item, part.view) && !OldEpoch(item) && staleness >= part.min_staleness &&
           staleness <= part.max_staleness;
  }
  // Not normalised.
  double Weight(const ModelItem& item, const SampleRequest& request, const ModelPart& part) const {
    if (part.selector != SelectorKind::kPrioritized && part.selector != SelectorKind::kRecency) return 1;
    const double exponent = part.selector == SelectorKind::kRecency ? 0 : part.exponent;
    const auto staleness = static_cast<double>(Now(item, request.step) - StepOf(item));
    return std::pow(item.said.priority, exponent) * (part.decay > 0 ? std::exp(-staleness / part.decay) : 1);
  }
  bool MayDraw(const ModelItem& item, const SampleRequest& request, const ModelPart& part) const {
    return InWindow(item, request, part) && Weight(item, request, part) > 0;
  }
  uint64_t Count(bool (Model::*holds)(const ModelItem&, const SampleRequest&, const ModelPart&) const,
                 const SampleRequest& request, const ModelPart& part) const {
    const auto& all = Rows();
    return static_cast<uint64_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& item) { return (this->*holds)(item, request, part); }));
  }
  ModelPart Whole(const SampleRequest& request) const {
    ModelPart whole;
    whole.count = request.count;
    whole.selector = options.selector;
    whole.exponent = options.priority_exponent;
    whole.decay = options.staleness_decay;
    whole.max_staleness = std::min(options.max_staleness.value_or(INT64_MAX), request.max_staleness.value_or(INT64_MAX));
    return whole;
  }
  // False: a view is not declared.
  bool PartsOf(const SampleRequest& request, std::vector<ModelPart>* parts) const {
    parts->clear();
    std::vector<SamplePart> asked = request.parts;
    if (asked.empty()) asked.push_back({.count = request.count, .view = request.view});
    const uint32_t ranks = options.parts > 1 && !request.consumer.empty() ? options.parts : 1;
    for (size_t i = 0; i < ranks * asked.size(); ++i) {
      const SamplePart& from = asked[i % asked.size()];
      ModelPart part = Whole(request);
      part.count = from.count / ranks;
      if (options.parts > 1) part.rank = ranks == 1 ? request.rank : static_cast<uint32_t>(i / asked.size());
      part.or_next = from.or_next;
      part.max_staleness = std::min(part.max_staleness, from.max_staleness.value_or(INT64_MAX));
      part.min_staleness = from.min_staleness;
      if (!from.view.empty()) {
        const auto at =
            std::find_if(options.views.begin(), options.views.end(), [&](auto& view) { return view.name == from.view; });
        if (at == options.views.end()) return false;
        part.view = static_cast<size_t>(at->name[1] - '0');
        part.selector = at->selector;
        part.exponent = at->priority_exponent;
        part.decay = at->staleness_decay;
      }
      parts->push_back(part);
    }
    return true;
  }
  uint64_t Members(size_t view) const {
    const auto& all = Rows();
    return static_cast<uint64_t>(
        std::count_if(all.begin(), all.end(), [&](auto& item) { return !item.held && InView(item, view); }));
  }
  uint64_t MembersOf(const ModelPart& part) const {
    const auto& all = Rows();
    return static_cast<uint64_t>(std::count_if(all.begin(), all.end(), [&](auto& item) {
      return !item.held && InPart(item, part) && !OldEpoch(item) && InView(item, part.view);
    }));
  }

  // --- Prompts ---
  ModelPrompt* PromptOf(uint64_t number) {
    const auto at = std::find_if(prompts.begin(), prompts.end(), [&](auto& prompt) { return prompt.number == number; });
    return at == prompts.end() ? nullptr : &*at;
  }
  void NotePrompt(ModelItem* item) {
    if (options.prompt_history == 0 || item->said.dataset_index < 0) return;
    ModelPrompt prompt{.number = next_prompt, .source = item->said.source, .outcomes = {}};
    prompt.outcomes.dataset_index = item->said.dataset_index;
    const auto at = std::find_if(prompts.begin(), prompts.end(), [&](const ModelPrompt& each) {
      return each.source == prompt.source && each.outcomes.dataset_index == prompt.outcomes.dataset_index;
    });
    if (at == prompts.end()) {
      ++next_prompt;
    } else {
      prompt = *at;
      prompts.erase(at);
    }
    item->prompt = prompt.number;
    ++prompt.outcomes.rollouts;
    prompt.outcomes.reward_sum += static_cast<double>(item->said.reward);
    prompts.push_back(prompt);
    if (prompts.size() > options.prompt_history) prompts.erase(prompts.begin());
    CountOutcome(*item, 1);
  }
  void CountOutcome(const ModelItem& item, uint64_t by) {
    ModelPrompt* const prompt = PromptOf(item.prompt);
    if (prompt == nullptr) return;
    if (item.outcome != Outcome::kUnknown) prompt->outcomes.scored += by;
    if (item.outcome == Outcome::kCorrect) prompt->outcomes.correct += by;
  }
  void ReviewPrompts() {
    for (ModelItem& item : items) {
      const ModelPrompt* const prompt = PromptOf(item.prompt);
      item.attempts = prompt ? prompt->outcomes.scored : 0;
      item.successes = prompt ? prompt->outcomes.correct : 0;
    }
  }
  // Who leaves a view and comes back has not been seen in its pass.
  void ReviewViews() {
    for (const ModelItem& row : Rows())
      for (size_t view = 1; view <= std::size(kModelViews); ++view)
        if (!InView(row, view)) SetSeen(row.number, view, false);
  }
  void SetSeen(uint64_t unit, size_t view, bool seen) {
    for (ModelItem& item : items)
      if (item.unit == unit) item.seen[view] = seen;
  }
  uint64_t Available() const { return starving ? 0 : Count(&Model::MayDraw, {}, Whole({})); }

  // --- Pacing ---
  double balance() const { return options.replay_ratio == 0 ? 0 : carried + inserted * options.replay_ratio - drawn_paced; }

  // --- Retention, from its definition ---
  void Remove(uint64_t unit, RemoveReason reason) {
    for (const ModelItem& item : items) {
      if (item.unit != unit) continue;
      for (BreakdownRow* row : {&by_source[SourceRow(item.said.source)], &by_length[NameOfLength(item.said.tokens)],
                                &by_draws[NameOfDraws(item.draws)]})
        ++row->removed[static_cast<size_t>(reason)];
      draws_removed.Observe(item.draws);
      outcomes_removed.Count(item.outcome);
    }
    removed[static_cast<size_t>(reason)] += std::erase_if(items, [unit](const ModelItem& item) { return item.unit == unit; });
  }
  size_t fresh() const { return std::min<size_t>(Rows().size(), options.fresh_capacity()); }
  // With the columns it is sent with.
  uint64_t BytesOf(const fake::Trajectory& trajectory) const {
    uint64_t bytes = trajectory.bytes + Frame::kOverheadBytes;
    for (const Frame& column : columns_of.at(trajectory.tag)) bytes += column.size() + Frame::kOverheadBytes;
    return bytes;
  }
  uint64_t Bytes() const {
    uint64_t bytes = 0;
    for (const ModelItem& item : items) bytes += item.bytes();
    for (const auto& [group, each] : reserved)
      for (const fake::Trajectory& member : each.members) bytes += BytesOf(member);
    return bytes;
  }
  void Retain() {
    struct Row {
      uint64_t number;
      float reward;
      bool correct;
    };
    std::vector<Row> all;
    for (const ModelItem& row : Rows()) all.push_back({row.number, row.said.reward, row.outcome == Outcome::kCorrect});
    const size_t beyond = all.size() - fresh();
    // The numbers of those that stay on.
    std::vector<std::pair<float, uint64_t>> older;
    for (size_t at = 0; at < beyond; ++at) {
      if (options.retention == RetentionKind::kBest)
        older.emplace_back(all[at].reward, all[at].number);
      else if (all[at].correct)
        older.emplace_back(0, all[at].number);
    }
    std::sort(older.begin(), older.end(), std::greater<>());
    older.resize(std::min<size_t>(older.size(), options.positive_capacity()));
    for (size_t at = beyond; at-- > 0;)
      if (std::none_of(older.begin(), older.end(), [&](const auto& one) { return one.second == all[at].number; }))
        Remove(all[at].number, RemoveReason::kCapacity);
    while (options.capacity_bytes > 0 && !items.empty() && Bytes() > options.capacity_bytes) {
      const auto& left = Rows();
      size_t first = 0;
      for (size_t at = 1; options.retention == RetentionKind::kBest && at + options.fresh_capacity() < left.size(); ++at)
        if (left[at].said.reward < left[first].said.reward) first = at;
      Remove(left[first].number, RemoveReason::kBytes);
    }
    std::set<std::string> runs;
    for (const ModelItem& item : items) runs.insert(item.said.run);
    for (auto at = newest_seen.begin(); at != newest_seen.end();)
      at = runs.count(at->first) ? std::next(at) : newest_seen.erase(at);
  }

  void EvictStale() {
    std::vector<uint64_t> stale;
    for (const ModelItem& row : Rows())
      if (!row.held && !OldEpoch(row) && Now(row, {}) - StepOf(row) > options.evict_staleness.value_or(INT64_MAX))
        stale.push_back(row.number);
    for (const uint64_t unit : stale) Remove(unit, RemoveReason::kStaleness);
  }
  bool EvictAged() {
    std::set<uint64_t> old;
    for (const ModelItem& item : items)
      if (options.max_age_ms > 0 && now_ms >= item.time_ms + options.max_age_ms) old.insert(item.unit);
    for (const uint64_t unit : old) Remove(unit, RemoveReason::kAge);
    return !old.empty();
  }
  // True if anything changed.
  bool OnTime(uint64_t now) {
    now_ms = std::max(now_ms, now);
    std::vector<uint64_t> expired;
    for (const ModelLease& lease : leases)
      if (lease.expires_ms <= now_ms) expired.insert(expired.end(), lease.units.begin(), lease.units.end());
    expired_leases += std::erase_if(leases, [this](const ModelLease& lease) { return lease.expires_ms <= now_ms; });
    if (!expired.empty()) EndLease(expired, /*used=*/false);
    bool changed = !expired.empty();
    for (size_t at = 0; at < reserved.size();) {
      const ModelReserved& group = reserved[at].second;
      const bool over = now_ms >= group.expires_ms || now_ms >= group.deadline_ms;
      if (!over || group.missing == MissingMembers::kWait) {
        ++at;
        continue;
      }
      changed = true;
      ++groups_over[static_cast<size_t>(group.missing)];
      group.missing == MissingMembers::kDrop ? DropReserved(at) : static_cast<void>(CommitReserved(at));
    }
    changed |= EvictAged();
    if (changed) Retain();
    return changed;
  }

  // --- What is held back ---
  // Trajectories whose lease ended; those that have left meanwhile do not count.
  uint32_t EndLease(const std::vector<uint64_t>& units, bool used) {
    uint32_t trajectories = 0;
    for (const uint64_t unit : units) {
      bool drawn_out = false;
      for (ModelItem& item : items) {
        if (item.unit != unit) continue;
        ++trajectories;
        if (!used) --item.draws;
        drawn_out = options.max_draws > 0 && item.draws >= options.max_draws;
        item.held = false;
        item.seen = {};
      }
      if (drawn_out) Remove(unit, RemoveReason::kMaxDraws);
    }
    if (!used) {
      const uint64_t given_back = std::min<uint64_t>(trajectories, outstanding);
      outstanding -= given_back;
      drawn_paced -= static_cast<double>(given_back);
    }
    EvictStale();
    Retain();
    return trajectories;
  }
  std::string Acknowledge(const AcknowledgeRequest& request, uint32_t* count) {
    *count = 0;
    const auto lease =
        std::find_if(leases.begin(), leases.end(), [&](const ModelLease& each) { return each.number == request.lease; });
    if (lease == leases.end()) return "not_found";
    std::vector<uint64_t> ended, left;
    for (const uint64_t unit : lease->units) {
      bool named = request.items.empty();
      for (const auto& [first, size] : {spans.at(unit)})
        for (const uint64_t item : request.items) named |= item >= first && item < first + size;
      (named ? ended : left).push_back(unit);
    }
    if (ended.empty()) return "not_found";
    lease->units = left;
    if (left.empty()) leases.erase(lease);
    *count = EndLease(ended, !request.give_back);
    return "done";
  }
  bool EndLeasesOf(uint64_t holder) {
    std::vector<uint64_t> ended;
    for (const ModelLease& lease : leases)
      if (lease.holder == holder) ended.insert(ended.end(), lease.units.begin(), lease.units.end());
    std::erase_if(leases, [holder](const ModelLease& lease) { return lease.holder == holder; });
    EndLease(ended, /*used=*/false);
    return !ended.empty();
  }
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> spans;  // by unit: the number of its first trajectory, and how many

  static bool ZeroSpreadIn(const std::vector<fake::Trajectory>& batch, const fake::Trajectory& one) {
    return !one.group.empty() && std::all_of(batch.begin(), batch.end(), [&](const fake::Trajectory& other) {
      return other.group != one.group || other.reward == one.reward;
    });
  }
  bool IsRefused(const std::vector<fake::Trajectory>& group) const {
    return options.zero_spread == ZeroSpread::kRefuse && ZeroSpreadIn(group, group[0]);
  }
  void DropReserved(size_t at) {
    rejected += reserved[at].second.members.size();
    dropped_members += reserved[at].second.members.size();
    reserved.erase(reserved.begin() + static_cast<std::ptrdiff_t>(at));
  }
  uint64_t CommitReserved(size_t at) {
    std::vector<fake::Trajectory> members = std::move(reserved[at].second.members);
    reserved.erase(reserved.begin() + static_cast<std::ptrdiff_t>(at));
    if (members.empty()) return 0;
    if (IsRefused(members)) {
      rejected += members.size();
      zero_spread_refused += members.size();
      return 0;
    }
    std::sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.index_in_group < b.index_in_group; });
    const bool filling = Available()<options.min_size, paced = options.replay_ratio> 0;
    if (paced && !filling) inserted += static_cast<double>(members.size());
    const uint64_t first = next_number;
    AddAll(members, paced && !filling);
    accepted += members.size();
    EvictStale();
    return first;
  }
  std::string Reserve(const ReserveRequest& request, ReserveResult* result) {
    *result = {};
    size_t at = 0;
    while (at < reserved.size() && reserved[at].first != request.group_id) ++at;
    const bool exists = at < reserved.size();
    if (request.action != ReserveRequest::Action::kReserve) {
      if (!exists) return "not_found";
      *result = {static_cast<uint32_t>(reserved[at].second.members.size()), reserved[at].second.size, 0};
      if (request.action == ReserveRequest::Action::kDrop)
        DropReserved(at);
      else
        result->first_item = CommitReserved(at);
      Retain();
      return "done";
    }
    if (options.closed) return "closed";
    uint64_t most = options.max_insert > 0 ? options.max_insert : kMaxTrajectoriesPerInsert;
    if (!by_group()) most = std::min<uint64_t>(most, options.fresh_capacity());
    if (request.size == 0 || request.size > most) return "invalid_argument";
    if (exists && (reserved[at].second.size != request.size || reserved[at].second.missing != request.missing))
      return "already_exists";
    if (!exists) {
      if (request.batch > 0) {
        AdmitResult admission;
        const std::string admitted = Admit({.count = request.size, .batch = request.batch}, &admission);
        if (admitted != "done") return admitted;
      }
      reserved.push_back({request.group_id, {}});
      reserved[at].second.size = request.size;
      reserved[at].second.missing = request.missing;
      reserved[at].second.lease_ms = request.lease_ms;
      reserved[at].second.deadline_ms = now_ms + request.deadline_ms;
    }
    ModelReserved& group = reserved[at].second;
    group.expires_ms = now_ms + group.lease_ms;
    *result = {static_cast<uint32_t>(group.members.size()), group.size, 0};
    return "done";
  }
  std::string Admit(const AdmitRequest& request, AdmitResult* result) const {
    const auto staleness = request.max_staleness ? request.max_staleness : options.max_staleness;
    if (request.batch == 0 || !staleness) return "invalid_argument";
    if (options.closed) return "closed";
    result->live = items.size();
    result->reserved = 0;
    for (const auto& [group, each] : reserved) result->reserved += each.size;
    const int64_t allowed = (*staleness + 1) * request.batch;
    result->credits = allowed - static_cast<int64_t>(result->live + result->reserved);
    if (request.count > allowed) return "invalid_argument";
    return request.count > 0 && result->credits < request.count ? "waits staleness" : "done";
  }
  // "" or why; `completed`: the groups that are complete with these, by their ids.
  std::string WhyPartialRefused(const std::vector<fake::Trajectory>& batch, std::set<std::string>* completed) {
    uint64_t bytes = 0;
    std::map<std::string, size_t> arriving;
    for (const auto& trajectory : batch) {
      const ModelReserved* group = FindReserved(trajectory.group);
      if (group == nullptr || trajectory.group_size != group->size) return "failed_precondition";
      for (const fake::Trajectory& member : group->members)
        if (member.index_in_group == trajectory.index_in_group ||
            (by_group() && (member.run != trajectory.run || member.epoch != trajectory.epoch)))
          return "failed_precondition";
      if (IsKnown(trajectory.id)) return "already_exists";
      bytes += BytesOf(trajectory);
      ++arriving[trajectory.group];
    }
    for (const auto& [group, each] : reserved)
      for (const fake::Trajectory& member : each.members) bytes += BytesOf(member);
    if (options.capacity_bytes > 0 && bytes > options.capacity_bytes / 2) return "resource_exhausted";
    for (const auto& [group, count] : arriving)
      if (FindReserved(group)->members.size() + count == FindReserved(group)->size) completed->insert(group);
    return "";
  }
  bool IsKnown(const std::string& id) const {
    for (const auto& [group, each] : reserved)
      for (const fake::Trajectory& member : each.members)
        if (member.id == id) return true;
    return std::any_of(items.begin(), items.end(), [&](const ModelItem& item) { return item.said.id == id; });
  }
  // The trajectories of each group, by their index in it, in the order in which the groups appear; one without by itself.
  std::vector<std::vector<fake::Trajectory>> Lists(const std::vector<fake::Trajectory>& batch) const {
    std::vector<std::vector<fake::Trajectory>> lists;
    for (const fake::Trajectory& each : batch) {
      const auto at = std::find_if(lists.begin(), lists.end(),
                                   [&](const auto& list) { return !each.group.empty() && list[0].group == each.group; });
      if (at == lists.end())
        lists.push_back({each});
      else
        at->push_back(each);
    }
    for (auto& list : lists)
      std::sort(list.begin(), list.end(), [](auto& a, auto& b) { return a.index_in_group < b.index_in_group; });
    return lists;
  }
  void AddAll(std::vector<fake::Trajectory> batch, bool counted) {
    if (options.max_age_ms > 0 && (!mark_ms || now_ms >= *mark_ms + options.max_age_ms / 1'000 + 1)) mark_ms = now_ms;
    std::vector<std::vector<fake::Trajectory>> lists;
    if (by_group()) {
      lists = Lists(batch);
    } else {
      for (const fake::Trajectory& each : batch) lists.push_back({each});
    }
    for (const auto& list : lists) {
      const uint64_t unit = next_unit++;
      spans[unit] = {next_number, list.size()};
      largest_group = std::max<uint64_t>(largest_group, list.size());
      for (const fake::Trajectory& each : list) Add(each, batch, unit, counted);
      const ModelItem& row = Rows().back();
      const auto [at, added] = newest_seen.insert({row.said.run, StepOf(row)});
      if (!added) at->second = std::max(at->second, StepOf(row));
    }
    ReviewPrompts();
    ReviewViews();
  }
  void Add(const fake::Trajectory& trajectory, const std::vector<fake::Trajectory>& batch, uint64_t unit, bool counted) {
    ModelItem item;
    item.said = trajectory;
    item.number = next_number++;
    item.unit = unit;
    item.time_ms = mark_ms.value_or(0);
    item.outcome = trajectory.correct;
    item.outcome_said = item.outcome != Outcome::kUnknown;
    if (item.outcome == Outcome::kUnknown && options.correct_threshold)
      item.outcome =
          trajectory.reward >= static_cast<float>(*options.correct_threshold) ? Outcome::kCorrect : Outcome::kIncorrect;
    item.counted = counted;
    for (const Frame& column : columns_of.at(trajectory.tag)) item.columns[std::string(ColumnName(column.bytes()))] = column;
    item.zero_spread = !trajectory.group.empty();
    for (const auto& other : batch) item.zero_spread &= other.group != trajectory.group || other.reward == trajectory.reward;
    ++by_source[SourceRow(trajectory.source)].inserted;
    ++by_length[NameOfLength(trajectory.tokens)].inserted;
    tokens_inserted += trajectory.tokens;
    outcomes_inserted.Count(item.outcome);
    NotePrompt(&item);
    items.push_back(item);
  }

  // --- Requests ---
  std::string Insert(const std::vector<fake::Trajectory>& batch, uint64_t writer, uint64_t sequence, uint64_t through,
                     bool partial, InsertResult* result) {
    *result = {};
    const uint64_t count = batch.size();
    const auto refuse = [&](const char* why) {
      offered += count;
      rejected += count;
      return std::string(why);
    };
    if (writer != 0) {
      if (!acknowledged.count(writer)) {
        if (sequence != 1) return refuse("writer_expired");
        acknowledged[writer] = 0;
      }
      acknowledged[writer] = std::max(acknowledged[writer], through);
      if (sequence <= acknowledged[writer]) return refuse("writer_expired");
      const auto at = receipts[writer].find(sequence);
      if (at != receipts[writer].end()) {
        std::vector<std::string> ids;
        for (const auto& trajectory : batch) ids.push_back(trajectory.id);
        if (ids != inserted_ids[{writer, sequence}]) return refuse("failed_precondition");
        offered += count;
        duplicate += count;
        result->first_item = at->second.first;
        result->count = at->second.second;
        result->refused = static_cast<uint32_t>(count - result->count);
        result->duplicate = true;
        result->live = items.size();
        return "done";
      }
    }
    if (options.closed) return refuse("closed");
    std::vector<fake::Trajectory> kept = batch;
    if (!partial && options.zero_spread == ZeroSpread::kRefuse)
      std::erase_if(kept, [&](const fake::Trajectory& each) { return ZeroSpreadIn(batch, each); });
    if (by_group()) {
      for (const auto& list : Lists(kept))
        for (const auto& each : list)
          if (each.run != list[0].run || each.epoch != list[0].epoch)
            return refuse("invalid_argument");  // whatever else is wrong as well: all of that comes later
    }
    const bool filling = Available() < options.min_size;
    const bool paced = options.replay_ratio > 0;
    result->count = static_cast<uint32_t>(count);
    if (partial) {
      std::set<std::string> completed;
      if (const std::string why = WhyPartialRefused(batch, &completed); !why.empty()) return refuse(why.c_str());
      double completing = 0;
      for (const std::string& group : completed) {
        std::vector<fake::Trajectory> members = FindReserved(group)->members;
        for (const auto& each : batch)
          if (each.group == group) members.push_back(each);
        if (!IsRefused(members)) completing += FindReserved(group)->size;
      }
      if (completing > 0 && paced && options.pace_inserts && !filling &&
          balance() + completing * options.replay_ratio > options.tolerance)
        return "waits pacing";
      for (const fake::Trajectory& trajectory : batch) {
        ModelReserved& group = *FindReserved(trajectory.group);
        group.members.push_back(trajectory);
        group.expires_ms = now_ms + group.lease_ms;
      }
      for (const fake::Trajectory& trajectory : batch) {
        const ModelReserved& group = *FindReserved(trajectory.group);
        result->pending |= group.members.size() < group.size;
      }
      for (const std::string& group : completed) {
        size_t at = 0;
        while (reserved[at].first != group) ++at;
        const uint64_t first = CommitReserved(at);
        if (result->first_item == 0) result->first_item = first;
        if (first == 0)
          result->refused +=
              static_cast<uint32_t>(std::count_if(batch.begin(), batch.end(), [&](auto& each) { return each.group == group; }));
      }
      if (result->pending) result->first_item = 0;
      result->count = static_cast<uint32_t>(count - result->refused);
    } else {
      if (options.max_insert > 0 && count > options.max_insert) return refuse("invalid_argument");
      if ((by_group() ? Lists(kept).size() : kept.size()) > options.fresh_capacity()) return refuse("invalid_argument");
      uint64_t bytes = 0;
      for (const auto& trajectory : kept) bytes += BytesOf(trajectory);
      for (const auto& [group, each] : reserved)
        for (const fake::Trajectory& member : each.members) bytes += BytesOf(member);
      if (options.capacity_bytes > 0 && bytes > options.capacity_bytes) return refuse("invalid_argument");
      for (const auto& trajectory : batch) {
        if (FindReserved(trajectory.group)) return refuse("failed_precondition");
        const bool stays = std::any_of(kept.begin(), kept.end(), [&](auto& each) { return each.id == trajectory.id; });
        if (stays && IsKnown(trajectory.id)) return refuse("already_exists");
      }
      const auto stored = static_cast<double>(kept.size());
      const double after = balance() + stored * options.replay_ratio;
      if (!kept.empty() && paced && options.pace_inserts && !filling && after > options.tolerance) return "waits pacing";
      if (paced && !filling) inserted += stored;
      result->first_item = kept.empty() ? 0 : next_number;
      result->count = static_cast<uint32_t>(kept.size());
      result->refused = static_cast<uint32_t>(count - kept.size());
      if (!kept.empty()) AddAll(kept, paced && !filling);
      accepted += kept.size();
      rejected += result->refused;
      zero_spread_refused += result->refused;
    }
    offered += count;
    if (writer != 0) {
      receipts[writer][sequence] = {result->first_item, result->count};
      for (const auto& trajectory : batch) inserted_ids[{writer, sequence}].push_back(trajectory.id);
    }
    EvictStale();
    Retain();
    result->live = items.size();
    return "done";
  }

  // `parts` with the counts that they are to draw.
  std::string WhySampleDoesNotDraw(const SampleRequest& request, std::vector<ModelPart>* parts) {
    if (!PartsOf(request, parts)) return "invalid_argument";
    if (options.parts > 1 && (request.world_size != options.parts || request.rank >= options.parts)) return "invalid_argument";
    const uint64_t most_draws = request.count * largest_group;
    if (request.count == 0 || (options.max_draws_per_sample > 0 && most_draws > options.max_draws_per_sample))
      return "invalid_argument";
    for (size_t i = 0; i < parts->size(); ++i) {
      const ModelPart& part = (*parts)[i];
      if (part.distinct() && !part.or_next && part.count > options.capacity_items) return "invalid_argument";
      if (part.min_staleness > part.max_staleness) return "invalid_argument";
      for (size_t j = 0; j < i; ++j)
        if (part.selector == SelectorKind::kEpoch && (*parts)[j].view == part.view && (*parts)[j].rank == part.rank)
          return "invalid_argument";
    }
    const uint64_t present = Rows().size() - Held();
    const auto too_few = [&](uint64_t needed) {
      const uint64_t pending = by_group() ? (Pending() > 0 ? reserved.size() : 0) : Pending();
      return pending > 0 && present + pending >= needed ? "waits group_incomplete" : "waits min_size";
    };
    if (present < MinSize()) return too_few(MinSize());
    const double given_back = static_cast<double>(std::min<uint64_t>(request.given_back, outstanding));
    if (options.replay_ratio > 0 && options.pace_draws &&
        balance() + given_back - static_cast<double>(most_draws) < -options.tolerance)
      return "waits pacing";
    for (const ModelPart& part : *parts)
      if (part.view == 0 && !part.rank && part.distinct() && !part.or_next && present < part.count) return too_few(part.count);
    const ModelPart whole = Whole(request);
    starving = true;  // unless it draws
    if (Count(&Model::InWindow, request, whole) < MinSize()) return "waits staleness";
    if (Count(&Model::MayDraw, request, whole) < MinSize()) return "waits filter";
    uint32_t left = 0;
    for (ModelPart& part : *parts) {
      part.count += left;
      left = 0;
      const uint64_t needed = part.distinct() ? part.count : std::min(part.count, 1u);
      const uint64_t drawable = Count(&Model::MayDraw, request, part);
      if (drawable >= needed) continue;
      if (!part.or_next) {
        if ((part.view > 0 || part.rank) && MembersOf(part) < needed) return "waits filter";
        return Count(&Model::InWindow, request, part) < needed ? "waits staleness" : "waits filter";
      }
      left = part.count - static_cast<uint32_t>(part.distinct() ? drawable : 0);
      part.count -= left;
    }
    return "done";
  }

  // What the selectors that look back draw from without replacement until it is exhausted.
  struct Stage {
    uint64_t size = 0, left = 0;
    uint32_t draws = 0;  // unused_first: of all in it
  };
  Stage NextStage(const SampleRequest& request, const ModelPart& part, std::vector<ModelItem>* then) {
    Stage stage;
    if (part.selector == SelectorKind::kEpoch) {
      const auto unseen = [&] {
        return std::count_if(then->begin(), then->end(),
                             [&](const auto& it) { return MayDraw(it, request, part) && !it.seen[part.view]; });
      };
      if (unseen() == 0)
        for (ModelItem& item : *then) item.seen[part.view] = false;
      stage.size = static_cast<uint64_t>(unseen());
    } else {
      stage.draws = UINT32_MAX;
      for (const ModelItem& item : *then)
        if (MayDraw(item, request, part)) stage.draws = std::min(stage.draws, item.draws);
      for (const ModelItem& item : *then) stage.size += MayDraw(item, request, part) && item.draws == stage.draws;
    }
    stage.left = stage.size;
    return stage;
  }

  // Checks that one part was drawn from `then`, the state in which Sample began.
  void CheckPart(const SampleRequest& request, const ModelPart& part, std::span<const DrawnItem> draws,
                 std::vector<ModelItem>* then) {
    std::vector<uint64_t> order;  // what lifo and fifo must draw
    double weights = 0;
    for (const ModelItem& item : *then) {
      if (!MayDraw(item, request, part)) continue;
      order.push_back(item.number);
      weights += Weight(item, request, part);
    }
    if (part.selector == SelectorKind::kLifo) std::reverse(order.begin(), order.end());
    // The draws of `then` change as the part goes on; who may be drawn does not.
    std::set<uint64_t> drawable(order.begin(), order.end()), drawn_before;
    const std::vector<ModelItem> begun = *then;
    Stage stage;
    for (size_t i = 0; i < draws.size(); ++i) {
      const DrawnItem& draw = draws[i];
      ASSERT_TRUE(drawable.count(draw.item)) << "item " << draw.item << " may not be drawn";
      const auto at = std::find_if(then->begin(), then->end(), [&](const auto& item) { return item.number == draw.item; });
      if (part.selector == SelectorKind::kLifo || part.selector == SelectorKind::kFifo) {
        ASSERT_EQ(order[i], draw.item);
        ASSERT_EQ(1.0, draw.probability);
      } else if (part.selector == SelectorKind::kEpoch || part.selector == SelectorKind::kUnusedFirst) {
        if (stage.left == 0) {
          // Views by draws count as when Sample began.
          std::vector<ModelItem> now = *then;
          std::erase_if(now, [&](const auto& item) { return !drawable.count(item.number); });
          ModelPart all = part;
          all.view = 0;
          if (part.selector == SelectorKind::kEpoch) {
            for (ModelItem& item : now) item.seen[0] = item.seen[part.view];
            const bool restarts = std::all_of(now.begin(), now.end(), [](const auto& item) { return item.seen[0]; });
            if (restarts)
              for (ModelItem& item : *then) item.seen[part.view] &= !InPart(item, part);
          }
          stage = NextStage(request, all, &now);
        }
        ASSERT_EQ(1.0 / static_cast<double>(stage.size), draw.probability);
        if (part.selector == SelectorKind::kEpoch) {
          ASSERT_FALSE(at->seen[part.view]) << "item " << draw.item << " twice in a pass";
          at->seen[part.view] = true;
        } else {
          ASSERT_EQ(stage.draws, at->draws) << "item " << draw.item << " was drawn more often than others";
        }
        --stage.left;
      } else {
        const auto when_begun =
            std::find_if(begun.begin(), begun.end(), [&](const auto& item) { return item.number == draw.item; });
        const double expected = Weight(*when_begun, request, part) / weights;
        ASSERT_NEAR(expected, draw.probability, 1e-12 * expected) << "item " << draw.item;
      }
      if (part.distinct()) {
        ASSERT_TRUE(drawn_before.insert(draw.item).second) << "item " << draw.item << " twice";
      }
      ++at->draws;
    }
  }

  // Checks a batch that was drawn, and draws the same items here.
  void Replay(const SampleRequest& request, const std::vector<ModelPart>& parts, const SampleResult& result) {
    ASSERT_EQ(withheld, result.withheld);
    // Unit by unit; a group is drawn whole, by one probability.
    std::vector<DrawnItem> unit_draws;
    std::vector<uint32_t> sizes = result.unit_sizes;
    if (!by_group()) sizes.assign(result.draws.size(), 1);
    size_t next = 0;
    for (const uint32_t size : sizes) {
      ASSERT_LE(next + size, result.draws.size());
      DrawnItem draw = result.draws[next];
      const auto at = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.number == draw.item; });
      ASSERT_NE(items.end(), at) << "item " << draw.item << " is not live";
      ASSERT_EQ(spans[at->unit], std::pair(draw.item, uint64_t{size}));
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(draw.item + i, result.draws[next + i].item);
        ASSERT_EQ(draw.probability, result.draws[next + i].probability);
      }
      draw.item = by_group() ? at->unit : at->number;
      unit_draws.push_back(draw);
      next += size;
    }
    ASSERT_EQ(next, result.draws.size());
    ASSERT_EQ(request.count, unit_draws.size());
    std::vector<uint32_t> counts;
    for (size_t unit = 0, i = 0; i < parts.size(); ++i) {
      counts.push_back(0);
      for (uint32_t n = 0; n < parts[i].count; ++n) counts.back() += sizes[unit++];
    }
    ASSERT_EQ(request.parts.empty() ? std::vector<uint32_t>() : counts, result.part_counts);
    std::vector<uint64_t> candidates;
    for (const ModelPart& part : parts) candidates.push_back(Count(&Model::MayDraw, request, part));
    ASSERT_EQ(candidates, result.candidates);
    const std::vector<ModelItem> begun = Rows();
    std::span<const DrawnItem> rest = unit_draws;
    for (const ModelPart& part : parts) {
      std::vector<ModelItem> then = begun;
      CheckPart(request, part, rest.first(part.count), &then);
      rest = rest.subspan(part.count);
      if (part.selector == SelectorKind::kEpoch)
        for (const ModelItem& row : then)
          if (InPart(row, part)) SetSeen(row.number, part.view, row.seen[part.view]);
    }
    std::vector<uint64_t> frames;  // numbers by frame index
    for (const DrawnItem& draw : result.draws) {
      const auto at = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.number == draw.item; });
      const auto frame = std::find(frames.begin(), frames.end(), draw.item);
      ASSERT_EQ(static_cast<size_t>(frame - frames.begin()), draw.frame);
      if (frame == frames.end()) frames.push_back(draw.item);
      ASSERT_LT(draw.frame, result.frames.size());
      ASSERT_EQ(at->said.tag, fake::TagOf(result.frames[draw.frame]));
      const int64_t now = Now(*at, request.step);
      ASSERT_EQ(now - StepOf(*at), draw.staleness);
      staleness_drawn.Observe(draw.staleness);
      ASSERT_EQ(at->draws == 0 ? -1 : std::max<int64_t>(0, now - at->last_use), draw.steps_since_last_use);
      if (at->draws > 0) reuse_gaps.Observe(draw.steps_since_last_use);
      tokens_drawn += at->said.tokens;
      outcomes_drawn.Count(at->outcome);
      ASSERT_EQ(++at->draws, draw.draw_count);
      ASSERT_EQ(at->said.reward, draw.reward);
      ASSERT_EQ(at->revision, draw.revision);
      ASSERT_EQ(at->advantage, draw.advantage);
      at->last_use = now;
    }
    std::set<std::pair<uint64_t, const uint8_t*>> columns, expected_columns;
    for (const ColumnOf& each : result.columns) columns.insert({frames.at(each.frame), each.column.data()});
    for (const uint64_t number : frames) {
      const auto at = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.number == number; });
      for (const std::string& name : request.columns)
        if (at->columns.count(name)) expected_columns.insert({number, at->columns.at(name).data()});
    }
    ASSERT_EQ(expected_columns, columns);
    ASSERT_EQ(frames.size(), result.frames.size());
    starving = false;
    ++samples;
    withheld_total += withheld;
    consumer_step = INT64_MIN;
    for (const ModelItem& row : begun) consumer_step = std::max(consumer_step, Now(row, request.step));
    ASSERT_EQ(consumer_step, result.step);
    drawn += result.draws.size();
    const uint64_t given_back = std::min<uint64_t>(request.given_back, outstanding);
    outstanding += result.draws.size() - given_back;
    drawn_paced += static_cast<double>(result.draws.size()) - static_cast<double>(given_back);
    ReviewViews();
    if (options.lease_ms > 0) {
      ASSERT_EQ(next_lease, result.lease);
      ModelLease lease{next_lease++, request.holder, now_ms + options.lease_ms, {}};
      for (const DrawnItem& draw : unit_draws) {
        if (std::find(lease.units.begin(), lease.units.end(), UnitOf(draw.item)) != lease.units.end()) continue;
        lease.units.push_back(UnitOf(draw.item));
        for (ModelItem& item : items) item.held |= item.unit == lease.units.back();
      }
      leases.push_back(lease);
      return;
    }
    ASSERT_EQ(0u, result.lease);
    DropDrawnOut();
    Retain();
  }
  // Of a row's number.
  uint64_t UnitOf(uint64_t row) const {
    for (const ModelItem& item : items)
      if (!by_group() && item.number == row) return item.unit;
    return row;
  }
  void DropDrawnOut() {
    std::vector<uint64_t> out;
    for (const ModelItem& item : items)
      if (options.max_draws > 0 && item.draws >= options.max_draws && !item.held) out.push_back(item.unit);
    for (const uint64_t unit : out) Remove(unit, RemoveReason::kMaxDraws);
  }

  uint32_t Delete(const std::string& id) {
    const auto named = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.said.id == id; });
    if (named == items.end()) return 0;
    const uint64_t unit = named->unit, before = items.size();
    for (const ModelItem& item : items)
      if (item.unit == unit && item.draws == 0 && item.counted) --inserted;
    Remove(unit, RemoveReason::kDeleted);
    const auto deleted = static_cast<uint32_t>(before - items.size());
    Retain();
    return deleted;
  }

  bool WouldBeTooLarge(const ItemUpdate& update) const {
    if (options.capacity_bytes == 0 || (update.tags.empty() && update.columns.empty())) return false;
    return std::any_of(items.begin(), items.end(), [&](const auto& item) {
      return item.said.id == update.id && item.bytes(update) > options.capacity_bytes;
    });
  }

  UpdateOutcome Update(const ItemUpdate& update, uint32_t* revision) {
    *revision = 0;
    for (size_t at = 0; at < items.size(); ++at) {
      ModelItem& item = items[at];
      if (item.said.id != update.id) continue;
      *revision = item.revision;
      if (update.revision && *update.revision != item.revision) return UpdateOutcome::kOtherRevision;
      *revision = ++item.revision;
      CountOutcome(item, -uint64_t{1});
      item.said.priority = update.priority.value_or(item.said.priority);
      item.said.reward = update.reward.value_or(item.said.reward);
      if (update.correct) {
        item.outcome = *update.correct;
        item.outcome_said = *update.correct != Outcome::kUnknown;
      }
      if ((update.correct || update.reward) && !item.outcome_said) {
        item.outcome = Outcome::kUnknown;
        if (options.correct_threshold)
          item.outcome =
              item.said.reward >= static_cast<float>(*options.correct_threshold) ? Outcome::kCorrect : Outcome::kIncorrect;
      }
      if (update.advantage) item.advantage = update.advantage;
      for (const NamedTag& tag : update.tags) item.late_tags[tag.name] = std::get<int64_t>(tag.value);
      for (const Frame& column : update.columns) item.columns.insert_or_assign(std::string(ColumnName(column.bytes())), column);
      CountOutcome(item, 1);
      ReviewPrompts();
      ReviewViews();
      Retain();
      return UpdateOutcome::kDone;
    }
    return UpdateOutcome::kNotThere;
  }

  void Alter(const BufferOptions& altered) {
    carried = balance();
    inserted = drawn_paced = 0;
    const bool other_selector = altered.selector != options.selector || altered.staleness_decay != options.staleness_decay ||
                                altered.priority_exponent != options.priority_exponent;
    const bool ages_now = options.max_age_ms == 0, other_views = altered.views != options.views;
    const bool other_parts = altered.parts != options.parts, in_parts = altered.parts > 1;
    options = altered;
    if (prompts.size() > options.prompt_history)
      prompts.erase(prompts.begin(), prompts.end() - static_cast<std::ptrdiff_t>(options.prompt_history));
    ReviewPrompts();
    if (options.max_age_ms == 0) mark_ms.reset();
    if (options.max_age_ms > 0 && ages_now) {
      mark_ms = now_ms;
      for (ModelItem& item : items) item.time_ms = now_ms;
    }
    for (ModelItem& item : items) {
      if (other_selector || other_parts || (in_parts && other_views)) item.seen[0] = false;
      for (size_t view = 1; view < item.seen.size(); ++view)
        if (other_views || other_parts || (in_parts && other_selector)) item.seen[view] = false;
    }
    ReviewViews();
    carried = std::clamp(carried, -options.tolerance, options.tolerance);
    DropDrawnOut();
    EvictStale();
    EvictAged();
    Retain();
  }

  std::string Describe() const {
    std::string text;
    const std::vector<ModelItem> all = Rows();
    const size_t positive = all.size() - fresh();
    for (size_t at = 0; at < all.size(); ++at) {
      if (at == positive) text += "| ";
      text += to_string(all[at].number);
      if (by_group()) text += "x" + to_string(spans.at(all[at].unit).second);
      if (all[at].held) text += "!";
      if (all[at].outcome == Outcome::kCorrect) text += "+";
      if (all[at].draws > 0) text += "*" + to_string(all[at].draws);
      if (OldEpoch(all[at])) text += "~";
      text += " ";
    }
    if (positive == all.size()) text += "| ";
    return text + "positive=" + to_string(positive) + " fresh=" + to_string(fresh()) + " drawn=" + to_string(drawn);
  }
  std::string Counts() const {
    std::string text =
        to_string(offered) + "=" + to_string(accepted) + "+" + to_string(duplicate) + "+" + to_string(rejected) + " removed";
    for (uint64_t count : removed) text += " " + to_string(count);
    text += " balance " + to_string(balance()) + " pending " + to_string(Pending()) + " of " + to_string(reserved.size()) +
            " dropped " + to_string(dropped_members) + " held " + to_string(Held()) + " by " + to_string(leases.size());
    text += " zero spread " +
            to_string(std::count_if(items.begin(), items.end(), [](auto& item) { return item.zero_spread; })) + ", refused " +
            to_string(zero_spread_refused);
    text += " prompts " + to_string(prompts.size());
    for (uint32_t rank = 0; options.parts > 1 && rank < options.parts; ++rank) {
      ModelPart part;
      part.rank = rank;
      text += " part " + to_string(rank) + " " + to_string(MembersOf(part));
    }
    for (const ViewOptions& view : options.views)
      text += " " + view.name + " " + to_string(Members(static_cast<size_t>(view.name[1] - '0')));
    std::map<std::string, uint64_t> columns;
    uint64_t bytes = 0;
    for (const ModelItem& item : items)
      for (const auto& [name, column] : item.columns) {
        ++columns[name];
        bytes += column.size();
      }
    for (const auto& [name, count] : columns) text += " column " + name + " " + to_string(count);
    return text + " of " + to_string(bytes);
  }
  Numbers OtherNumbers() const {
    uint64_t bytes = 0, tokens = 0;
    int64_t oldest = items.empty() ? 0 : INT64_MAX, newest = items.empty() ? 0 : INT64_MIN;
    ModelOutcomes stored;
    for (const ModelItem& item : items) {
      bytes += item.said.bytes;
      tokens += item.said.tokens;
      oldest = std::min(oldest, item.said.version);
      newest = std::max(newest, item.said.version);
      stored.Count(item.outcome);
    }
    Numbers numbers = {{"items", items.size()},
                       {"groups", by_group() ? Rows().size() : 0},
                       {"positive_items", Rows().size() - fresh()},
                       {"bytes", bytes},
                       {"tokens", tokens},
                       {"tokens_inserted", tokens_inserted},
                       {"tokens_drawn", tokens_drawn},
                       {"stored, correct", stored.correct},
                       {"stored, incorrect", stored.incorrect},
                       {"inserted, correct", outcomes_inserted.correct},
                       {"inserted, incorrect", outcomes_inserted.incorrect},
                       {"sampled, correct", outcomes_drawn.correct},
                       {"sampled, incorrect", outcomes_drawn.incorrect},
                       {"removed, correct", outcomes_removed.correct},
                       {"removed, incorrect", outcomes_removed.incorrect},
                       {"oldest_version", oldest},
                       {"newest_version", newest},
                       {"consumer_step", consumer_step},
                       {"samples", samples},
                       {"withheld", withheld},
                       {"withheld_total", withheld_total},
                       {"expired_leases", expired_leases}};
    Append("staleness", staleness_drawn, &numbers);
    Append("reuse_gap", reuse_gaps, &numbers);
    Append("item_draws", draws_removed, &numbers);
    Append(cost, &numbers);
    return numbers;
  }
};

std::string Counts(const BufferStats& stats) {
  std::string text = to_string(stats.offered) + "=" + to_string(stats.accepted) + "+" + to_string(stats.duplicate) + "+" +
                     to_string(stats.rejected) + " removed";
  for (uint64_t count : stats.removed) text += " " + to_string(count);
  text += " balance " + to_string(stats.pacing_balance) + " pending " + to_string(stats.pending) + " of " +
          to_string(stats.reserved_groups) + " dropped " + to_string(stats.dropped_members) + " held " + to_string(stats.held) +
          " by " + to_string(stats.leases);
  text += " zero spread " + to_string(stats.zero_spread) + ", refused " + to_string(stats.zero_spread_refused);
  text += " prompts " + to_string(stats.prompts);
  for (const auto& [name, members] : stats.views) text += " " + name + " " + to_string(members);
  for (const auto& [name, count] : stats.columns) text += " column " + name + " " + to_string(count);
  return text + " of " + to_string(stats.column_bytes);
}

Numbers OtherNumbers(const BufferStats& stats) {
  Numbers numbers = {{"items", stats.items},
                     {"groups", stats.groups},
                     {"positive_items", stats.positive_items},
                     {"bytes", stats.bytes},
                     {"tokens", stats.tokens},
                     {"tokens_inserted", stats.tokens_inserted},
                     {"tokens_drawn", stats.tokens_drawn},
                     {"stored, correct", stats.stored.correct},
                     {"stored, incorrect", stats.stored.incorrect},
                     {"inserted, correct", stats.inserted.correct},
                     {"inserted, incorrect", stats.inserted.incorrect},
                     {"sampled, correct", stats.sampled.correct},
                     {"sampled, incorrect", stats.sampled.incorrect},
                     {"removed, correct", stats.removed_outcomes.correct},
                     {"removed, incorrect", stats.removed_outcomes.incorrect},
                     {"oldest_version", stats.oldest_version},
                     {"newest_version", stats.newest_version},
                     {"consumer_step", stats.consumer_step},
                     {"samples", stats.samples},
                     {"withheld", stats.withheld},
                     {"withheld_total", stats.withheld_total},
                     {"expired_leases", stats.expired_leases}};
  Append("staleness", stats.staleness, &numbers);
  Append("reuse_gap", stats.reuse_gap, &numbers);
  Append("item_draws", stats.item_draws, &numbers);
  Append(stats.cost, &numbers);
  return numbers;
}

// How often what happened, over all lives.
struct Coverage {
  std::map<std::string, uint64_t> counts;
  void Add(const std::string& what, uint64_t count = 1) { counts[what] += count; }
  void Print() const {
    for (const auto& [what, count] : counts) std::printf("%-48s %10lu\n", what.c_str(), count);
  }
};

// Whether a made-up fault shows after the operations of a log, "" if not.
using Fault = std::string (*)(const std::vector<std::string>& log);

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage* coverage, Fault fault) : seed_(seed), coverage_(coverage), fault_(fault) {
    random_.seed(seed_);
    model_.options = RandomOptions();
    buffer_ = std::make_unique<Buffer>("sim", model_.options, versions_);
    buffer_->SetJournal(&kept_.journal);
    kept_.Save(*buffer_);
  }

  // One after the other, until a check has put something into `failures`; how many were done.
  size_t Run(const std::vector<uint64_t>& operations, const testing::TestPartResultArray& failures) {
    log_ = {"a buffer of " + Text(model_.options)};
    for (size_t i = 0; i < operations.size(); ++i) {
      random_.seed(seed_ * 1'000'003 + operations[i]);
      Step();
      Compare();
      if (const std::string why = fault_ ? fault_(log_) : ""; !why.empty()) ADD_FAILURE() << why;
      if (failures.size() > 0) return i + 1;
      if (operations[i] % 1000 == 0) buffer_->CheckInvariants();
      if (operations[i] % 8 == 0) CompareBreakdowns();
      if (operations[i] % 16 == 5) Restart(/*saves=*/operations[i] % 64 == 5);
      if (failures.size() > 0) return i + 1;
    }
    buffer_->CheckInvariants();
    const BufferStats stats = buffer_->Stats();
    for (size_t i = 0; i < stats.removed.size(); ++i)
      coverage_->Add(
          "removed: " + std::string(ToString(static_cast<RemoveReason>(i))) + (model_.by_group() ? " of groups" : ""),
          stats.removed[i]);
    return operations.size();
  }
  // The options, then a line for each operation.
  const std::vector<std::string>& log() const { return log_; }

 private:
  // The process ends here; another goes on with what was kept, and is in no way different.
  void Restart(bool saves) {
    std::string error;
    std::unique_ptr<Buffer> recovered = kept_.Recover(&error);
    ASSERT_TRUE(recovered) << "what was kept " << error;
    ASSERT_FALSE(recovered->OnTime(buffer_->now_ms()));  // Time in which nothing happened is not kept.
    recovered->CheckInvariants();
    const std::string before = StateOf(*buffer_), after = StateOf(*recovered);
    ASSERT_TRUE(before == after) << "the states differ from byte "
                                 << std::mismatch(before.begin(), before.end(), after.begin(), after.end()).first -
                                        before.begin()
                                 << " of " << before.size() << " on";
    buffer_ = std::move(recovered);
    buffer_->SetJournal(&kept_.journal);
    if (saves) kept_.Save(*buffer_);
    coverage_->Add(saves ? "restarts, saved" : "restarts");
    log_.push_back("it restarts");
    Compare();
  }

  // Memory is short: some of what is on disk leaves it, which nobody notices.
  void Spill() {
    kept_.Take();
    if (buffer_->Spill(Below(2'000), kept_.written) > 0) coverage_->Add("spilled");
    log_.push_back("it spills");
  }
  Verdict Draw(const SampleRequest& request, SampleResult* result) {
    Verdict verdict = buffer_->Sample(request, result);
    kept_.Present(*result);
    return verdict;
  }

  void Compare() {
    ASSERT_EQ(model_.Describe(), buffer_->Describe());
    const BufferStats stats = buffer_->Stats();
    ASSERT_EQ(model_.Counts(), Counts(stats));
    const Numbers expected = model_.OtherNumbers(), numbers = OtherNumbers(stats);
    ASSERT_EQ(expected.size(), numbers.size());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(expected[i].second, numbers[i].second) << numbers[i].first << ", number " << i;
  }

  void CompareBreakdowns() {
    const BufferStats stats = buffer_->Stats();
    ASSERT_EQ(model_.Breakdowns(), server::Text(stats.sources) + server::Text(stats.lengths) + server::Text(stats.draws));
    ASSERT_EQ(Text(model_.options), Text(stats.options));
  }

  static std::string Text(const BufferOptions& options) {
    std::string text = std::string(ToString(options.retention)) + " delta " + options.delta.ToString() + ", " +
                       std::string(ToString(options.selector)) + ", capacity " + to_string(options.capacity_items) + "/" +
                       to_string(options.capacity_bytes) + " bytes, min_size " + to_string(options.min_size) + ", max_draws " +
                       to_string(options.max_draws) + ", exponent " + NumberText(options.priority_exponent) + ", decay " +
                       NumberText(options.staleness_decay);
    if (options.unit == Unit::kGroup) text += ", of groups";
    if (options.lease_ms > 0) text += ", lease " + to_string(options.lease_ms);
    if (options.closed) text += ", closed";
    if (options.max_age_ms > 0) text += ", max_age " + to_string(options.max_age_ms);
    if (options.evict_staleness) text += ", evict_staleness " + to_string(*options.evict_staleness);
    if (options.max_staleness) text += ", max_staleness " + to_string(*options.max_staleness);
    if (options.correct_threshold) text += ", threshold " + NumberText(*options.correct_threshold);
    if (options.prompt_history > 0) text += ", prompt_history " + to_string(options.prompt_history);
    if (options.parts > 1) text += ", parts " + to_string(options.parts);
    for (const ViewOptions& view : options.views)
      text += ", view " + view.name + " of " + view.filter + " by " + std::string(ToString(view.selector));
    if (options.zero_spread == ZeroSpread::kRefuse) text += ", zero_spread refuse";
    if (options.replay_ratio > 0)
      text += ", ratio " + NumberText(options.replay_ratio) + " +- " + NumberText(options.tolerance) + " of " +
              to_string(options.max_draws_per_sample) + " and " + to_string(options.max_insert);
    return text;
  }

  void Step() {
    if (Below(100) == 0) return Spill();
    const uint64_t dice = Below(100);
    if (dice < 38)
      Insert();
    else if (dice < 72)
      Sample();
    else if (dice < 77)
      Delete();
    else if (dice < 81)
      Below(2) || model_.leases.empty() ? Update() : Acknowledge();
    else if (dice < 88)
      Publish();
    else if (dice < 90)
      Alter();
    else if (dice < 92)
      Get();
    else if (dice < 94)
      Time();
    else if (dice < 97)
      Reserve();
    else if (dice < 98)
      History();
    else if (dice < 99)
      Scan();
    else
      Cost();
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  BufferOptions RandomOptions() {
    for (;;) {
      BufferOptions options;
      options.capacity_items = 1 + Below(40);
      options.capacity_bytes = Below(3) ? 0 : 200 + Below(4000);
      options.retention = static_cast<RetentionKind>(Below(3));
      options.delta = {Below(10), 10};
      options.selector = static_cast<SelectorKind>(Below(8));
      options.priority_exponent = static_cast<double>(Below(5)) / 2;
      options.staleness_decay = Below(2) ? 0 : static_cast<double>(1 + Below(8));
      if (Below(3) == 0) options.max_staleness = static_cast<int64_t>(Below(8));
      if (Below(3) == 0) options.max_age_ms = 1'000 + Below(5'000);
      if (Below(3) == 0) options.evict_staleness = static_cast<int64_t>(Below(10));
      options.max_draws = Below(3) ? 0 : static_cast<uint32_t>(1 + Below(6));
      if (Below(2)) options.correct_threshold = 0.5;
      options.min_size = 1 + Below(8);
      options.seed = Below(100);
      options.unit = Below(3) ? Unit::kTrajectory : Unit::kGroup;
      options.lease_ms = Below(2) ? 0 : 100 + Below(2'000);  // most selectors refuse it
      options.closed = Below(40) == 0;
      if (Below(4) == 0) options.zero_spread = ZeroSpread::kRefuse;
      if (Below(2)) options.prompt_history = static_cast<uint32_t>(1 + Below(12));
      if (Below(4) == 0) options.parts = static_cast<uint32_t>(2 + Below(3));
      for (size_t view = 1; view <= std::size(kModelViews); ++view)
        if (Below(5) == 0)
          options.views.push_back({.name = "v" + to_string(view),
                                   .filter = kModelViews[view - 1].filter,
                                   .selector = static_cast<SelectorKind>(Below(8)),
                                   .priority_exponent = static_cast<double>(Below(3)),
                                   .staleness_decay = static_cast<double>(1 + Below(8))});
      if (Below(2)) {
        options.replay_ratio = static_cast<double>(1 + Below(8)) / 2;  // exact in binary: so are all balances
        options.max_draws_per_sample = static_cast<uint32_t>(1 + Below(12));
        options.max_insert = static_cast<uint32_t>(1 + Below(6));
        options.tolerance = Below(2) ? 0 : static_cast<double>(Below(40));
        options.pace_draws = Below(5) != 0;
        options.pace_inserts = Below(5) != 0;
      }
      if (CheckOptions(&options).empty()) return options;
    }
  }

  std::vector<Frame> SomeColumns() {
    std::vector<Frame> columns;
    for (const char* name : {"a", "b"})
      if (Below(2))
        columns.push_back(test::MakeColumn({.name = name,
                                            .type = FrameColumn::Type::kU8,
                                            .alignment = FrameColumn::Alignment::kRow,
                                            .length = static_cast<uint32_t>(Below(100))}));
    return columns;
  }
  std::vector<std::string> SomeColumnNames() {
    return Below(2)   ? std::vector<std::string>()
           : Below(2) ? std::vector<std::string>{"a"}
                      : std::vector<std::string>{"b", "c", "a"};
  }

  void Insert() {
    std::vector<fake::Trajectory> trajectories;
    fake::Batch batch;
    const uint64_t count = 1 + Below(Below(4) ? 4 : 12);
    for (uint64_t i = 0; i < count; ++i) {
      fake::Trajectory trajectory;
      do {
        trajectory.id = "t" + to_string(Below(40) == 0 ? Below(next_id_ + 1) : next_id_++);
      } while (std::any_of(trajectories.begin(), trajectories.end(), [&](const auto& one) { return one.id == trajectory.id; }));
      trajectory.run = Below(6) ? "a" : Below(2) ? "b" : "never published";
      trajectory.epoch = Below(8) ? model_.versions.CurrentEpoch(trajectory.run) : Below(5);
      trajectory.version = version_ - 3 + static_cast<int64_t>(Below(5));
      trajectory.correct = static_cast<Outcome>(Below(3));
      trajectory.reward = static_cast<float>(Below(5)) / 4;
      trajectory.priority = Below(2) ? 1 : static_cast<float>(Below(4)) / 2;
      trajectory.bytes = 16 + 8 * Below(40);
      trajectory.tag = ++tag_;
      trajectory.source = Below(3) ? "" : Below(2) ? "here" : Below(4) ? "there" : "s" + to_string(Below(120));
      trajectory.tokens = static_cast<uint32_t>(Below(4) ? 8 + Below(8) : 1 + Below(uint64_t{1} << Below(19)));
      trajectory.dataset_index = static_cast<int64_t>(Below(8)) - 1;
      if (Below(2)) {
        trajectory.group = "g" + to_string(Below(3));  // within the request; nothing here counts its members
        trajectory.group_size = 4;
        for (const fake::Trajectory& other : trajectories) {
          if (other.group != trajectory.group) continue;
          ++trajectory.index_in_group;
          if (Below(50) == 0) continue;
          trajectory.run = other.run;  // where groups are the unit, others are refused
          trajectory.epoch = other.epoch;
        }
      }
      batch.Add(trajectory);
      trajectories.push_back(trajectory);
    }
    const bool partial = !model_.reserved.empty() && Below(4) == 0;
    if (partial) MakeMembers(&trajectories, &batch);
    for (const fake::Trajectory& each : trajectories)
      model_.columns_of.try_emplace(each.tag, Below(3) == 0 ? SomeColumns() : std::vector<Frame>());
    const uint64_t writer = Below(4);  // 0: none
    uint64_t& sequence = sequences_[writer];
    const bool repeat = Below(5) == 0 && sequence > 0;
    const uint64_t used = writer == 0 ? 0 : repeat ? 1 + Below(sequence) : ++sequence;
    if (repeat && Below(4)) {
      const auto sent = sent_.find({writer, used});
      if (sent != sent_.end()) {
        trajectories = sent->second;
        batch = {};
        for (const fake::Trajectory& each : trajectories) batch.Add(each);
      }
    }
    if (writer != 0 && !repeat) sent_[{writer, used}] = trajectories;
    const uint64_t through = writer != 0 && Below(4) == 0 ? Below(sequence + 1) : 0;
    InsertResult expected, result;
    log_.push_back(std::string(partial ? "partial " : "") + "insert by " + to_string(writer) + " number " + to_string(used) +
                   " of");
    for (const fake::Trajectory& each : trajectories)
      log_.back() += " " + each.id + " (" + each.run + "." + to_string(each.epoch) + "." + to_string(each.version) +
                     (each.group.empty() ? "" : " " + each.group + "." + to_string(each.index_in_group)) + ")";
    const std::string verdict = model_.Insert(trajectories, writer, used, through, partial, &expected);
    coverage_->Add((partial ? "partial insert: " : "insert: ") + verdict + (expected.duplicate ? " again" : "") +
                   (expected.refused > 0 ? " without some" : ""));
    std::vector<ColumnOf> columns;
    for (uint32_t i = 0; i < trajectories.size(); ++i)
      for (const Frame& column : model_.columns_of[trajectories[i].tag]) columns.push_back({i, column});
    InsertRequest request = batch.Request({writer, 0}, used, through);
    request.partial = partial;
    request.columns = columns;
    ASSERT_EQ(verdict, server::Describe(buffer_->Insert(request, &result)));
    if (verdict != "done") return;
    ASSERT_EQ(expected.first_item, result.first_item);
    ASSERT_EQ(expected.count, result.count);
    ASSERT_EQ(expected.refused, result.refused);
    ASSERT_EQ(expected.duplicate, result.duplicate);
    ASSERT_EQ(expected.live, result.live);
    ASSERT_EQ(expected.pending, result.pending);
    if (partial && !result.pending && !result.duplicate) coverage_->Add("partial insert: completed");
  }

  // Members of a reserved group, nearly all of them right, instead.
  void MakeMembers(std::vector<fake::Trajectory>* trajectories, fake::Batch* batch) {
    const auto& [id, group] = model_.reserved[Below(model_.reserved.size())];
    uint32_t index = static_cast<uint32_t>(group.members.size());
    *batch = {};
    if (trajectories->size() > group.size) trajectories->resize(group.size);
    for (fake::Trajectory& each : *trajectories) {
      each.group = Below(60) ? id : "g9";
      each.group_size = Below(60) ? group.size : 7;
      each.index_in_group = Below(60) ? index++ : 0;
      if (Below(30)) {
        each.run = group.members.empty() ? (*trajectories)[0].run : group.members[0].run;
        each.epoch = group.members.empty() ? (*trajectories)[0].epoch : group.members[0].epoch;
      }
      if (index == group.size) {
        trajectories->resize(static_cast<size_t>(&each - trajectories->data()) + 1);
        break;
      }
    }
    for (const fake::Trajectory& each : *trajectories) batch->Add(each);
  }

  void Reserve() {
    if (Below(6) == 0) {
      AdmitRequest request{.count = static_cast<uint32_t>(Below(20)), .batch = static_cast<uint32_t>(Below(8))};
      if (Below(2)) request.max_staleness = static_cast<int64_t>(Below(4));
      log_.push_back("admit " + to_string(request.count) + " of " + to_string(request.batch));
      AdmitResult expected, result;
      const std::string verdict = model_.Admit(request, &expected);
      coverage_->Add("admit: " + verdict);
      ASSERT_EQ(verdict, server::Describe(buffer_->Admit(request, &result)));
      ASSERT_EQ(expected.credits, result.credits);
      ASSERT_EQ(expected.live, result.live);
      ASSERT_EQ(expected.reserved, result.reserved);
      return;
    }
    ReserveRequest request;
    request.group_id = "r" + to_string(Below(4));
    request.action = static_cast<ReserveRequest::Action>(Below(5) ? 0 : 1 + Below(2));
    request.size = static_cast<uint32_t>(Below(6));
    request.lease_ms = static_cast<uint32_t>(100 + Below(2'000));
    request.deadline_ms = static_cast<uint32_t>(100 + Below(4'000));
    request.missing = static_cast<MissingMembers>(Below(3));
    if (Below(4) == 0) request.batch = static_cast<uint32_t>(Below(8));
    if (const ModelReserved* group = model_.FindReserved(request.group_id); group && Below(2)) {
      request.size = group->size;
      request.missing = group->missing;
    }
    log_.push_back("reserve " + request.group_id + " of " + to_string(request.size) + ", action " +
                   to_string(static_cast<int>(request.action)) + ", missing " + to_string(static_cast<int>(request.missing)) +
                   ", lease " + to_string(request.lease_ms) + ", deadline " + to_string(request.deadline_ms));
    ReserveResult expected, result;
    const std::string verdict = model_.Reserve(request, &expected);
    coverage_->Add("reserve: " + verdict);
    ASSERT_EQ(verdict, server::Describe(buffer_->Reserve(request, &result)));
    if (verdict != "done") return;
    ASSERT_EQ(expected.present, result.present);
    ASSERT_EQ(expected.size, result.size);
    ASSERT_EQ(expected.first_item, result.first_item);
  }

  void Acknowledge() {
    if (Below(4) == 0) {
      const uint64_t holder = Below(3);
      log_.push_back("holder " + to_string(holder) + " ends");
      const bool held = model_.EndLeasesOf(holder);
      if (held) coverage_->Add("holder ended");
      ASSERT_EQ(held, buffer_->EndLeasesOf(holder));
      return;
    }
    const ModelLease& lease = model_.leases[Below(model_.leases.size())];
    AcknowledgeRequest request{.lease = Below(20) ? lease.number : lease.number + 1, .give_back = Below(3) == 0};
    for (uint64_t i = Below(2) ? Below(4) : 0; i > 0; --i)
      request.items.push_back(Below(8) ? model_.spans.at(lease.units[Below(lease.units.size())]).first + Below(2)
                                       : Below(model_.next_number));
    log_.push_back("acknowledge " + to_string(request.lease) + (request.give_back ? " giving back" : ""));
    for (const uint64_t item : request.items) log_.back() += " " + to_string(item);
    uint32_t expected_count = 0, count = 0;
    const std::string verdict = model_.Acknowledge(request, &expected_count);
    coverage_->Add("acknowledge: " + verdict);
    ASSERT_EQ(verdict, server::Describe(buffer_->Acknowledge(request, &count)));
    ASSERT_EQ(expected_count, count);
  }

  void Sample() {
    SampleRequest request;
    request.count = static_cast<uint32_t>(Below(30) ? 1 + Below(12) : Below(60));
    if (Below(2)) request.step = version_ - 6 + static_cast<int64_t>(Below(10));
    if (Below(4) == 0) request.max_staleness = static_cast<int64_t>(Below(8));
    if (Below(4) == 0) request.given_back = static_cast<uint32_t>(Below(12));
    request.holder = Below(3);
    request.columns = SomeColumnNames();
    const auto view = [&]() -> std::string {
      const auto& views = model_.options.views;
      return Below(40) == 0 ? "v9" : views.empty() || Below(2) ? "" : views[Below(views.size())].name;
    };
    if (Below(3) == 0) request.view = view();
    if (Below(3) == 0) {
      request.view = "";
      request.count = 0;
      const uint64_t parts = 1 + Below(3);
      for (uint64_t i = 0; i < parts; ++i) {
        SamplePart& part = request.parts.emplace_back();
        part.count = static_cast<uint32_t>(1 + Below(6));
        part.view = view();
        if (Below(3) == 0) part.max_staleness = static_cast<int64_t>(Below(6));
        if (Below(6) == 0) part.min_staleness = static_cast<int64_t>(1 + Below(3));
        part.or_next = i + 1 < parts && Below(2);
        request.count += part.count;
      }
    }
    if (model_.options.parts > 1 && Below(12)) {
      request.world_size = model_.options.parts;
      request.rank = static_cast<uint32_t>(Below(request.world_size));
    }
    if (Below(4) == 0) {
      request.consumer = "c" + to_string(Below(2));
      request.world_size = static_cast<uint32_t>(1 + Below(3));
      if (model_.options.parts > 1 && Below(8)) request.world_size = model_.options.parts;
      request.rank = static_cast<uint32_t>(Below(request.world_size));
      if (!request.step) request.step = version_ - static_cast<int64_t>(Below(3));
      if (Below(12) == 0) *request.step -= 6;  // mostly one whose plan is no longer kept
      const auto& plans = model_.plans[request.consumer];
      if (!plans.empty() && Below(2)) {  // one that was drawn, or nearly
        const uint32_t rank = request.rank;
        request = plans[Below(plans.size())].asked;
        request.rank = rank % request.world_size;
        if (Below(8) == 0) ++request.count;
        if (Below(20) == 0) request.columns = {"b"};
      }
    }
    log_.push_back("sample " + to_string(request.count) + (request.view.empty() ? "" : " from " + request.view) +
                   (request.step ? " at step " + to_string(*request.step) : "") +
                   (request.max_staleness ? " max_staleness " + to_string(*request.max_staleness) : "") +
                   (request.given_back > 0 ? " giving back " + to_string(request.given_back) : ""));
    for (const SamplePart& part : request.parts)
      log_.back() += ", part " + to_string(part.count) + (part.view.empty() ? "" : " from " + part.view) +
                     (part.max_staleness ? " max_staleness " + to_string(*part.max_staleness) : "") +
                     (part.min_staleness > 0 ? " min_staleness " + to_string(part.min_staleness) : "") +
                     (part.or_next ? " or next" : "");
    if (!request.consumer.empty()) return SampleByKey(request);
    std::vector<ModelPart> parts;
    const std::string expected = WhySampleDoesNotDraw(request, &parts);
    coverage_->Add("sample: " + expected);
    for (const ModelPart& part : parts) {
      if (expected != "done" || part.count == 0) continue;
      const std::string selector(ToString(part.selector));
      if (part.view > 0) coverage_->Add("drawn: " + selector + " of a view");
      if (part.view == 0 && model_.by_group()) coverage_->Add("drawn: " + selector + " of groups");
      if (part.rank) coverage_->Add(part.view > 0 ? "drawn: a view of a part" : "drawn: a part");
      if (part.view > 7) coverage_->Add("drawn: by its prompt");
      if (part.min_staleness > 0) coverage_->Add("drawn: " + selector + " of replayed ones");
      if (part.view == 0) coverage_->Add("drawn: " + selector + " from " + std::string(ToString(model_.options.retention)));
    }
    if (expected == "done") coverage_->Add(request.parts.empty() ? "sample: plain" : "sample: composed");
    if (expected == "done" && model_.options.lease_ms > 0) coverage_->Add("sample: leased");
    ASSERT_EQ(expected == "done", buffer_->WhySampleWaits(request).empty() && expected != "invalid_argument");
    ASSERT_EQ(expected, server::Describe(Draw(request, &result_)));
    if (expected == "done") model_.Replay(request, parts, result_);
  }

  std::string WhySampleDoesNotDraw(const SampleRequest& request, std::vector<ModelPart>* parts) {
    const bool was_starving = model_.starving;
    const std::string expected = model_.WhySampleDoesNotDraw(request, parts);
    const bool closed = model_.options.closed && expected.starts_with("waits") && model_.Held() == 0;
    if (expected == "invalid_argument" || expected == "waits min_size" || expected == "waits group_incomplete" ||
        expected == "waits pacing" || closed)
      model_.starving = was_starving;
    if (expected != "invalid_argument") {
      model_.last_sample = {request, model_.Whole(request)};
      model_.withheld = model_.Rows().size() - model_.Held() - model_.Count(&Model::MayDraw, request, model_.Whole(request));
    }
    return closed ? "closed" : expected;
  }

  static std::string TextOf(const SampleResult& result) {
    std::string text = "step " + to_string(result.step) + " withheld " + to_string(result.withheld);
    for (const DrawnItem& draw : result.draws)
      text += " " + to_string(draw.item) + ":" + to_string(draw.draw_count) + ":" +
              to_string(fake::TagOf(result.frames[draw.frame]));
    for (const uint32_t count : result.part_counts) text += " part " + to_string(count);
    for (const uint64_t count : result.candidates) text += " of " + to_string(count);
    for (const uint32_t size : result.unit_sizes) text += " x" + to_string(size);
    for (const ColumnOf& each : result.columns)
      text += " column " + to_string(each.frame) + ":" + std::string(ColumnName(each.column.bytes())) + " of " +
              to_string(reinterpret_cast<uintptr_t>(each.column.data()));
    return text;
  }

  void SampleByKey(const SampleRequest& request) {
    log_.back() += " for " + request.consumer + " rank " + to_string(request.rank) + " of " + to_string(request.world_size);
    SampleRequest all = request;  // ranks
    all.count *= request.world_size;
    for (SamplePart& part : all.parts) part.count *= request.world_size;
    std::vector<ModelPlan>& plans = model_.plans[request.consumer];
    const auto same = [&](const SampleRequest& a, const SampleRequest& b) {
      return a.count == b.count && a.world_size == b.world_size && a.view == b.view && a.parts == b.parts &&
             a.max_staleness == b.max_staleness && a.columns == b.columns;
    };
    const auto plan =
        std::find_if(plans.begin(), plans.end(), [&](const ModelPlan& each) { return each.step == *request.step; });
    std::vector<ModelPart> parts;
    std::string expected = "planned";
    uint32_t of_parts = 0;
    for (const SamplePart& part : request.parts) of_parts += part.count;
    if (model_.options.lease_ms > 0 ||
        (model_.options.max_draws_per_sample > 0 && all.count > model_.options.max_draws_per_sample) ||
        (!request.parts.empty() && of_parts != request.count))
      expected = "invalid_argument";
    else if (plan != plans.end())
      expected = same(plan->asked, request) ? "planned" : "key_reused";
    else if (plans.size() == kKeptPlans && *request.step < plans.front().step)
      expected = "plan_expired";
    else
      expected = WhySampleDoesNotDraw(all, &parts);
    coverage_->Add("sample by key: " + expected);
    const Verdict verdict = Draw(request, &result_);
    if (expected == "planned") {
      ASSERT_EQ("done", server::Describe(verdict));
      ASSERT_TRUE(result_.planned);
      ASSERT_EQ(plan->ranks[request.rank], TextOf(result_));
      return;
    }
    ASSERT_EQ(expected, server::Describe(verdict));
    if (expected != "done") return;
    ASSERT_FALSE(result_.planned);
    // Gathers what all ranks get: unit i is in rank i mod world_size, or the ranks' units stand behind one another.
    const bool in_parts = model_.options.parts > 1;
    if (in_parts) coverage_->Add("sample by key: in parts");
    ModelPlan drawn{.step = *request.step, .asked = request, .ranks = {}};
    SampleResult gathered;
    std::vector<std::vector<DrawnItem>> units(all.count);
    std::map<uint64_t, Frame> frames;
    std::vector<std::pair<uint64_t, Frame>> columns;  // by item
    for (uint32_t rank = 0; rank < request.world_size; ++rank) {
      SampleRequest other = request;
      other.rank = rank;
      SampleResult part;
      ASSERT_EQ("done", server::Describe(Draw(other, &part)));
      ASSERT_TRUE(part.planned);
      ASSERT_TRUE(rank != request.rank || TextOf(result_) == TextOf(part));
      drawn.ranks.push_back(TextOf(part));
      std::vector<uint32_t> sizes = part.unit_sizes;
      if (!model_.by_group()) sizes.assign(part.draws.size(), 1);
      ASSERT_EQ(request.count, sizes.size());
      for (size_t i = 0, next = 0; i < sizes.size(); ++i) {
        for (uint32_t n = 0; n < sizes[i]; ++n, ++next) {
          units[in_parts ? rank * request.count + i : i * request.world_size + rank].push_back(part.draws[next]);
          frames[part.draws[next].item] = part.frames[part.draws[next].frame];
        }
      }
      for (const ColumnOf& each : part.columns)
        for (const DrawnItem& draw : part.draws)
          if (draw.frame == each.frame) columns.emplace_back(draw.item, each.column);
      if (in_parts) {
        gathered.part_counts.insert(gathered.part_counts.end(), part.part_counts.begin(), part.part_counts.end());
        gathered.candidates.insert(gathered.candidates.end(), part.candidates.begin(), part.candidates.end());
      } else {
        gathered.candidates = part.candidates;
        gathered.part_counts.resize(part.part_counts.size());
        for (size_t i = 0; i < part.part_counts.size(); ++i) gathered.part_counts[i] += part.part_counts[i];
      }
      gathered.withheld = part.withheld;
      gathered.step = part.step;
    }
    for (const std::vector<DrawnItem>& unit : units) {
      gathered.draws.insert(gathered.draws.end(), unit.begin(), unit.end());
      if (model_.by_group()) gathered.unit_sizes.push_back(static_cast<uint32_t>(unit.size()));
    }
    std::map<uint64_t, uint32_t> frame_of;
    for (DrawnItem& draw : gathered.draws) {
      const auto [at, added] = frame_of.insert({draw.item, static_cast<uint32_t>(gathered.frames.size())});
      if (added) gathered.frames.push_back(frames[draw.item]);
      draw.frame = at->second;
    }
    for (const auto& [item, column] : columns) gathered.columns.push_back({frame_of.at(item), column});
    model_.Replay(all, parts, gathered);
    plans.insert(std::find_if(plans.begin(), plans.end(), [&](const ModelPlan& each) { return each.step > drawn.step; }),
                 drawn);
    if (plans.size() > kKeptPlans) plans.erase(plans.begin());
  }

  std::string SomeId() {
    if (model_.items.empty() || Below(5) == 0) return "t" + to_string(Below(next_id_ + 1));
    return model_.items[Below(model_.items.size())].said.id;
  }
  void Delete() {
    const std::string id = SomeId();
    log_.push_back("delete " + id);
    ASSERT_EQ(model_.Delete(id), buffer_->Delete(id));
  }
  void Update() {
    ItemUpdate update;
    update.id = SomeId();
    if (Below(2)) update.priority = static_cast<float>(Below(4)) / 2;
    if (Below(2)) update.reward = static_cast<float>(Below(5)) / 4;
    if (Below(3) == 0) update.correct = static_cast<Outcome>(Below(3));
    if (Below(3) == 0) update.revision = static_cast<uint32_t>(Below(3));
    if (Below(3) == 0) update.advantage = static_cast<float>(Below(5)) - 2;
    for (const char* name : {"x", "yy"})
      if (Below(4) == 0) update.tags.push_back({name, static_cast<int64_t>(Below(9))});
    if (Below(2)) update.columns = SomeColumns();
    const bool is_refused = model_.WouldBeTooLarge(update);
    ASSERT_EQ(is_refused, !buffer_->WhyUpdateRefused({&update, 1}).empty());
    if (is_refused) return coverage_->Add("update: refused");
    log_.push_back("update " + update.id + (update.priority ? " priority " + NumberText(*update.priority) : "") +
                   (update.reward ? " reward " + NumberText(*update.reward) : "") +
                   (update.correct ? " correct " + to_string(static_cast<int>(*update.correct)) : "") +
                   (update.revision ? " if revision " + to_string(*update.revision) : "") +
                   (update.advantage ? " advantage " + NumberText(*update.advantage) : "") + ", " +
                   to_string(update.tags.size()) + " tags, " + to_string(update.columns.size()) + " columns");
    uint32_t expected_revision = 0, revision = 0;
    const UpdateOutcome expected = model_.Update(update, &expected_revision);
    coverage_->Add("update: " + to_string(static_cast<int>(expected)));
    ASSERT_EQ(expected, buffer_->Update(update, &revision));
    ASSERT_EQ(expected_revision, revision);
  }
  void Get() {
    const std::string id = SomeId();
    log_.push_back("get " + id);
    StoredItem item;
    const auto at = std::find_if(model_.items.begin(), model_.items.end(), [&](const auto& one) { return one.said.id == id; });
    const std::vector<std::string> names = SomeColumnNames();
    ASSERT_EQ(at != model_.items.end(), buffer_->Get(id, &item, names));
    if (at == model_.items.end()) return;
    kept_.Present(item);
    ASSERT_EQ(at->number, item.item);
    ASSERT_EQ(at->draws, item.draw_count);
    ASSERT_EQ(at->said.tag, fake::TagOf(item.frame));
    ASSERT_EQ(at->said.reward, item.reward);
    ASSERT_EQ(at->revision, item.revision);
    std::map<std::string, int64_t> tags;
    for (const NamedTag& tag : item.late_tags) tags[tag.name] = std::get<int64_t>(tag.value);
    ASSERT_EQ(at->late_tags, tags);
    std::vector<const uint8_t*> expected, columns;
    for (const std::string& name : names)
      if (at->columns.count(name)) expected.push_back(at->columns.at(name).data());
    for (const Frame& column : item.columns) columns.push_back(column.data());
    ASSERT_EQ(expected, columns);
  }

  void Publish() {
    PolicyVersion published;
    published.run_id = Below(4) ? "a" : "b";
    const uint64_t current = model_.versions.CurrentEpoch(published.run_id);
    published.epoch = Below(40) ? current : current + 1;
    if (published.epoch > current) version_ = std::max<int64_t>(0, version_ - 5);
    published.version = version_ + 1 - static_cast<int64_t>(Below(3));
    published.step = Below(3) ? published.version : published.version + 1;
    log_.push_back("publish " + published.run_id + "." + to_string(published.epoch) + "." + to_string(published.version) +
                   " as step " + to_string(published.step));
    std::string error;
    const auto next = versions_->Publish(published, &error);
    if (next == nullptr) return;  // Not later; PolicyVersions has its own tests.
    version_ = std::max(version_, published.version);
    versions_ = next;
    model_.versions.runs[published.run_id].push_back({published.epoch, published.version, published.step});
    buffer_->OnPublish(versions_);
    model_.EvictStale();
    model_.Retain();
  }

  void Time() {
    now_ms_ += Below(4) == 0 ? Below(3'000) : Below(50);
    const uint64_t told = Below(10) ? now_ms_ : now_ms_ - std::min(now_ms_, Below(5'000));  // a clock may go back
    log_.push_back("time " + to_string(told));
    const uint64_t leases = model_.leases.size();
    model_.groups_over = {};
    const bool changed = model_.OnTime(told);
    coverage_->Add("lease expired", leases - model_.leases.size());
    coverage_->Add("reserved group: dropped", model_.groups_over[static_cast<size_t>(MissingMembers::kDrop)]);
    coverage_->Add("reserved group: released", model_.groups_over[static_cast<size_t>(MissingMembers::kRelease)]);
    ASSERT_EQ(changed, buffer_->OnTime(told));
  }

  void History() {
    const std::string source = Below(2) ? "" : Below(3) ? "here" : "nowhere";
    const auto after = static_cast<int64_t>(Below(8)) - 2;
    const auto limit = static_cast<uint32_t>(1 + Below(6));
    log_.push_back("history of \"" + source + "\" after " + to_string(after));
    std::map<int64_t, PromptOutcomes> expected;
    for (const ModelPrompt& prompt : model_.prompts)
      if (prompt.source == source && prompt.outcomes.dataset_index > after)
        expected[prompt.outcomes.dataset_index] = prompt.outcomes;
    std::vector<PromptOutcomes> page;
    ASSERT_EQ(expected.size() > limit, buffer_->History(source, after, limit, &page));
    ASSERT_EQ(std::min<size_t>(expected.size(), limit), page.size());
    auto at = expected.begin();
    for (const PromptOutcomes& prompt : page) ASSERT_EQ((at++)->second, prompt) << "prompt " << prompt.dataset_index;
    coverage_->Add("history: prompts", page.size());
  }

  void Cost() {
    CostReport cost;
    cost.generation_seconds = static_cast<double>(Below(100)) / 4;
    cost.generated_trajectories = Below(20);
    cost.generated_tokens = Below(2'000);
    cost.training_seconds = static_cast<double>(Below(100)) / 4;
    cost.trained_draws = Below(50);
    cost.trained_tokens = Below(5'000);
    cost.workers = static_cast<uint32_t>(Below(4));
    cost.trainers = static_cast<uint32_t>(Below(3));
    log_.push_back("cost");
    CostReport& sum = model_.cost;
    sum = {sum.generation_seconds + cost.generation_seconds, sum.generated_trajectories + cost.generated_trajectories,
           sum.generated_tokens + cost.generated_tokens,     sum.training_seconds + cost.training_seconds,
           sum.trained_draws + cost.trained_draws,           sum.trained_tokens + cost.trained_tokens,
           cost.workers > 0 ? cost.workers : sum.workers,    cost.trainers > 0 ? cost.trainers : sum.trainers};
    buffer_->AddCost(cost);
  }

  void Alter() {
    BufferOptions options = Below(2) ? RandomOptions() : model_.options;
    if (Below(2)) options.delta = {Below(10), 10};
    if (Below(20)) options.unit = model_.options.unit;
    log_.push_back("alter to " + Text(options));
    const std::string error = buffer_->Alter(options);
    coverage_->Add(error.empty() ? "alter: done" : "alter: refused");
    if (CheckOptions(&options).empty() && options.unit == model_.options.unit) {
      ASSERT_EQ("", error);
      model_.Alter(options);
    } else {
      ASSERT_NE("", error);
    }
  }

  void Scan() {
    if (Below(4) == 0) scan_after_ = Below(model_.next_number + 2);
    log_.push_back("scan after " + to_string(scan_after_));
    const auto limit = static_cast<uint32_t>(1 + Below(10));
    const uint64_t max_bytes = Below(2) ? UINT64_MAX : Below(1000);
    const std::vector<std::string> names = SomeColumnNames();
    std::vector<uint64_t> expected;
    uint64_t bytes = 0;
    bool more = false;
    for (const ModelItem& item : model_.items) {
      if (item.number <= scan_after_) continue;
      bytes += item.said.bytes;
      for (const std::string& name : names) bytes += item.columns.count(name) ? item.columns.at(name).size() : 0;
      if (expected.size() == limit || (bytes > max_bytes && !expected.empty())) {
        more = true;
        break;
      }
      expected.push_back(item.number);
    }
    std::vector<StoredItem> page;
    ASSERT_EQ(more, buffer_->Scan(scan_after_, limit, max_bytes, &page, names));
    std::vector<uint64_t> numbers;
    for (const StoredItem& item : page) numbers.push_back(item.item);
    ASSERT_EQ(expected, numbers);
    if (!numbers.empty()) scan_after_ = numbers.back();
  }

  const uint64_t seed_;
  Coverage* const coverage_;
  const Fault fault_;
  std::vector<std::string> log_;
  std::mt19937_64 random_;
  Model model_;
  PolicyVersions::Snapshot versions_ = PolicyVersions::Empty();
  KeptBuffer kept_;
  std::unique_ptr<Buffer> buffer_;
  SampleResult result_;
  uint64_t next_id_ = 0, tag_ = 0, scan_after_ = 0;
  int64_t version_ = 10;
  uint64_t now_ms_ = 0;
  std::map<uint64_t, uint64_t> sequences_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<fake::Trajectory>> sent_;  // by writer and sequence
};

// One life: which of `operations` came to a failure, and what it said.
struct Life {
  std::string failure;  // empty: none
  std::vector<uint64_t> done;
  std::vector<std::string> log;
};
Life Live(uint64_t seed, const std::vector<uint64_t>& operations, Coverage* coverage, Fault fault = nullptr) {
  testing::TestPartResultArray failures;
  Life life;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    Simulation simulation(seed, coverage, fault);
    const size_t count = simulation.Run(operations, failures);
    life.done.assign(operations.begin(), operations.begin() + static_cast<std::ptrdiff_t>(count));
    life.log = simulation.log();
  }
  if (failures.size() > 0) life.failure = failures.GetTestPartResult(0).message();
  return life;
}

// Leaves out ever smaller parts as long as something still fails (Zeller's ddmin, without complements).
Life Shrink(uint64_t seed, Life life, Fault fault = nullptr) {
  Coverage unused;
  for (size_t part = std::max<size_t>(1, life.done.size() / 2); part > 0; part /= 2) {
    for (size_t begin = 0; begin < life.done.size();) {
      std::vector<uint64_t> rest = life.done;
      const size_t end = std::min(begin + part, rest.size());
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(begin), rest.begin() + static_cast<std::ptrdiff_t>(end));
      Life smaller = Live(seed, rest, &unused, fault);
      if (smaller.failure.empty())
        begin += part;
      else
        life = std::move(smaller);
    }
  }
  return life;
}

// A delete at some time after an alter, and that at some time after a publish.
std::string ThreeInARow(const std::vector<std::string>& log) {
  size_t found = 0;
  for (const std::string& line : log) {
    static constexpr const char* kKinds[] = {"publish ", "alter ", "delete "};
    if (found < std::size(kKinds) && line.starts_with(kKinds[found])) ++found;
  }
  return found == 3 ? "made up" : "";
}

TEST(BufferSim, ALifeThatFailsIsShrunkToTheOperationsThatMatter) {
  std::vector<uint64_t> numbers(2'000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    Coverage unused;
    const Life lived = Live(seed, numbers, &unused, ThreeInARow);
    ASSERT_THAT(lived.failure, HasSubstr("made up"));
    ASSERT_GT(lived.done.size(), 3u);
    Life shrunk = Shrink(seed, lived, ThreeInARow);
    std::erase(shrunk.log, "it restarts");  // No operation of its own: it comes after those of certain numbers.
    EXPECT_EQ(lived.failure, shrunk.failure);
    ASSERT_EQ(3u, shrunk.done.size());
    EXPECT_THAT(shrunk.log,
                ElementsAre(StartsWith("a buffer of "), StartsWith("publish "), StartsWith("alter "), StartsWith("delete ")));
  }
}

TEST(BufferSim, AgreesWithAPlainModelOverRandomOperations) {
  const uint64_t seed = FromEnvironment("REPLAY_SEED", 20260409);
  const uint64_t operations = FromEnvironment("REPLAY_SIM_OPERATIONS", test::kSanitized ? 200'000 : 1'000'000);
  std::printf("REPLAY_SEED=%lu\n", seed);
  // Many short lives: a buffer that has seen everything is altered into all kinds of others, but starts only once.
  constexpr uint64_t kPerLife = 2'000;
  Coverage coverage;
  for (uint64_t life = 0; life * kPerLife < operations; ++life) {
    std::vector<uint64_t> numbers(std::min(kPerLife, operations - life * kPerLife));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    const Life lived = Live(seed + life, numbers, &coverage);
    if (lived.failure.empty()) continue;
    const Life shrunk = Shrink(seed + life, lived);
    std::string text;
    for (const std::string& line : shrunk.log) text += "  " + line + "\n";
    FAIL() << "REPLAY_SEED=" << seed << ", life " << life << ", shrunk from " << lived.done.size() << " operations to\n"
           << text << shrunk.failure;
  }
  coverage.Print();
  if (operations < 1'000'000) return;
  for (const auto& selector : kSelectorNames) {
    for (const auto& retention : kRetentionNames) {
      const std::string pair = "drawn: " + std::string(selector) + " from " + std::string(retention);
      EXPECT_GE(coverage.counts[pair], 1'000u) << pair;
    }
    const std::string of_groups = "drawn: " + std::string(selector) + " of groups";
    EXPECT_GE(coverage.counts[of_groups], 1'000u) << of_groups;
    const std::string of_replayed = "drawn: " + std::string(selector) + " of replayed ones";
    EXPECT_GE(coverage.counts[of_replayed], 200u) << of_replayed;
  }
  for (size_t i = 0; i < kRemoveReasons; ++i) {
    const std::string reason = "removed: " + std::string(ToString(static_cast<RemoveReason>(i)));
    EXPECT_GE(coverage.counts[reason], 1'000u) << reason;
    EXPECT_GE(coverage.counts[reason + " of groups"], 1'000u) << reason << " of groups";
  }
  for (const char* what : {"sample: waits min_size",
                           "sample: waits pacing",
                           "sample: waits staleness",
                           "sample: waits filter",
                           "insert: waits pacing",
                           "insert: done again",
                           "insert: done without some",
                           "insert: done again without some",
                           "insert: failed_precondition",
                           "sample: composed",
                           "sample: closed",
                           "sample: leased",
                           "sample: waits group_incomplete",
                           "acknowledge: done",
                           "reserve: done",
                           "partial insert: done",
                           "history: prompts",
                           "restarts",
                           "restarts, saved",
                           "drawn: a part",
                           "drawn: a view of a part",
                           "drawn: by its prompt",
                           "sample by key: done",
                           "sample by key: planned",
                           "sample by key: plan_expired",
                           "sample by key: key_reused",
                           "drawn: uniform of a view",
                           "drawn: uniform_distinct of a view",
                           "drawn: lifo of a view",
                           "drawn: fifo of a view",
                           "drawn: epoch of a view",
                           "drawn: unused_first of a view",
                           "drawn: prioritized of a view",
                           "drawn: recency of a view"})
    EXPECT_GE(coverage.counts[what], 1'000u) << what;
  for (const char* what : {"acknowledge: not_found", "sample by key: in parts", "lease expired", "holder ended",
                           "partial insert: completed", "reserve: already_exists", "reserve: waits staleness",
                           "reserved group: dropped", "reserved group: released", "admit: done", "admit: waits staleness"})
    EXPECT_GE(coverage.counts[what], 100u) << what;
}

// The retention that the paper defines, recomputed from the whole history now and then.
TEST(BufferSim, PositiveBiasEqualsItsDefinitionOverAHundredThousandInserts) {
  const uint64_t seed = FromEnvironment("REPLAY_SEED", 1);
  SCOPED_TRACE("REPLAY_SEED=" + to_string(seed));
  std::mt19937_64 random(seed);
  BufferOptions options;
  options.capacity_items = 1000;
  options.retention = RetentionKind::kPositiveBias;
  options.delta = {29, 100};
  Buffer buffer("b", options, PolicyVersions::Empty());
  std::vector<bool> correct{false};  // by insertion number
  while (correct.size() <= 100'000) {
    fake::Batch batch;
    const uint64_t count = 1 + random() % 16;
    for (uint64_t i = 0; i < count; ++i) {
      // The share of correct ones wanders between a few and most.
      const bool is_correct = random() % 100 < 5 + (correct.size() / 1000) % 60;
      batch.Add({.id = to_string(correct.size()), .correct = is_correct ? Outcome::kCorrect : Outcome::kIncorrect, .bytes = 8});
      correct.push_back(is_correct);
    }
    InsertResult result;
    ASSERT_TRUE(buffer.Insert(batch.Request(), &result).done());
    if (random() % 50 != 0 && correct.size() <= 100'000) continue;
    std::vector<uint64_t> expected;
    uint64_t number = correct.size() - 1;
    for (; number > 0 && expected.size() < 710; --number) expected.push_back(number);
    for (uint64_t positive = 0; number > 0 && positive < 290; --number) {
      if (!correct[number]) continue;
      expected.push_back(number);
      ++positive;
    }
    std::reverse(expected.begin(), expected.end());
    std::vector<StoredItem> items;
    ASSERT_FALSE(buffer.Scan(0, 2000, UINT64_MAX, &items));
    std::vector<uint64_t> numbers;
    for (const StoredItem& item : items) numbers.push_back(item.item);
    ASSERT_EQ(expected, numbers) << "after " << correct.size() - 1 << " inserts";
  }
  buffer.CheckInvariants();
}

// A generator and a trainer of fixed request sizes against one buffer: one of them can always go on, also when the trainer goes
// back to an older step, with or without a new epoch.
TEST(BufferSim, OneSideCanAlwaysGoOnInRandomPacedConfigurations) {
  const uint64_t seed = FromEnvironment("REPLAY_SEED", 5);
  for (uint64_t round = 0; round < 300; ++round) {
    SCOPED_TRACE("REPLAY_SEED=" + to_string(seed) + ", round " + to_string(round));
    std::mt19937_64 random(seed + round);
    BufferOptions options;
    options.capacity_items = 1 + random() % 60;
    options.selector = static_cast<SelectorKind>(random() % 8);
    options.staleness_decay = 5;
    if (random() % 3 == 0) options.max_staleness = static_cast<int64_t>(random() % 10);
    options.max_draws = random() % 2 ? 0 : 1 + static_cast<uint32_t>(random() % 4);
    options.min_size = 1 + random() % 20;
    options.replay_ratio = static_cast<double>(1 + random() % 30) / (1 + random() % 7);
    options.max_draws_per_sample = static_cast<uint32_t>(1 + random() % 20);
    options.max_insert = static_cast<uint32_t>(1 + random() % 10);
    if (!CheckOptions(&options).empty() || options.max_insert > options.fresh_capacity()) continue;
    Buffer buffer("b", options, PolicyVersions::Empty());
    PolicyVersions::Snapshot versions = PolicyVersions::Empty();
    SampleResult sampled;
    InsertResult inserted;
    const auto n = static_cast<uint32_t>(1 + random() % options.max_draws_per_sample);
    const auto m = static_cast<uint32_t>(1 + random() % options.max_insert);
    int64_t step = 1;
    uint64_t epoch = 0, id = 0;
    const bool publishes = random() % 2;
    for (int turn = 0; turn < 500; ++turn) {
      const bool drew = buffer.Sample({.count = n, .step = step}, &sampled).done();
      if (drew) ++step;
      fake::Batch batch;
      for (uint32_t i = 0; i < m; ++i) batch.Add({.id = to_string(++id), .epoch = epoch, .version = step, .bytes = 8});
      const bool stored = buffer.Insert(batch.Request(), &inserted).done();
      ASSERT_TRUE(drew || stored) << "turn " << turn << ": " << buffer.WhySampleWaits({.count = n, .step = step}) << "; "
                                  << buffer.WhyInsertWaits(m);
      if (random() % 100 == 0) {
        step = std::max<int64_t>(1, step - 20);
        if (publishes) ++epoch;
      }
      if (publishes) {
        PolicyVersion published;
        published.run_id = "run";
        published.epoch = epoch;
        published.version = published.step = step;
        std::string error;
        if (auto next = versions->Publish(published, &error)) buffer.OnPublish(versions = next);
      }
    }
    buffer.CheckInvariants();
  }
}

}  // namespace
}  // namespace replay::server
