#include "client/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "client/trajectory.h"
#include "schema/names.h"
#include "schema/protocol.capnp.h"

namespace replay {
namespace {

static_assert(static_cast<int>(ErrorCode::kInternal) == static_cast<int>(schema::ErrorCode::INTERNAL));
static_assert(static_cast<int>(WaitReason::kVersion) == static_cast<int>(schema::WaitReason::VERSION));

constexpr std::array<std::string_view, 2> kPolicies = {"uniform", "positive_bias"};

// The largest request without its texts and lists: root pointer, Request 3, Create or AlterBuffer 3, BufferOptions 11.
constexpr uint32_t kFixedWords = 32;

uint32_t TextWords(std::string_view text) { return static_cast<uint32_t>(text.size() / 8 + 2); }
capnp::Text::Reader AsText(const std::string& text) { return {text.c_str(), text.size()}; }

// `fill` writes the verb and its arguments into the request.
template <typename Fill>
Frame BuildRequest(const RequestHead& head, uint32_t variable_words, Fill fill) {
  ControlBuilder builder(kFixedWords + variable_words);
  auto request = builder.Start<schema::Request>(kFixedWords + variable_words);
  request.setId(head.id);
  request.setTimeoutMs(head.timeout_ms);
  fill(request);
  return Frame::CopyOf(builder.Finish(0));
}

Error Refuse(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

// Position of `text` among `allowed`, or an Error that names field, value and the allowed values.
template <size_t N>
Result<uint16_t> ParseEnum(const char* field, const std::string& text, const std::array<std::string_view, N>& allowed) {
  const auto found = std::find(allowed.begin(), allowed.end(), text);
  if (found != allowed.end()) return static_cast<uint16_t>(found - allowed.begin());
  return Refuse(std::string(field) + " is \"" + text + "\": it must be one of " + JoinNames(allowed, ", "));
}

// The enum-valued options, with `policy` resolved into the two that it presets; what is given beside it goes before.
struct ParsedKinds {
  std::optional<uint16_t> retention;
  std::optional<uint16_t> selector;
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

uint32_t OptionTextWords(const BufferOptions& options) { return options.delta ? TextWords(*options.delta) : 2; }

Result<uint32_t> IdWords(std::span<const std::string> ids) {
  if (ids.size() > kMaxIdsPerRequest)
    return Refuse("ids has " + std::to_string(ids.size()) + " entries: at most " + std::to_string(kMaxIdsPerRequest) +
                  " are allowed in a call");
  uint32_t words = 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].empty() || ids[i].size() > kMaxIdBytes)
      return Refuse("ids[" + std::to_string(i) + "] has " + std::to_string(ids[i].size()) + " bytes: it must have 1 to " +
                    std::to_string(kMaxIdBytes));
    words += 1 + TextWords(ids[i]);
  }
  return words;
}

void FillIds(std::span<const std::string> ids, capnp::List<capnp::Text>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, AsText(ids[i]));
}

}  // namespace

Frame EncodeHello(const RequestHead& head, std::string_view client_name) {
  const std::string name(client_name.substr(0, kMaxIdBytes));
  return BuildRequest(head, TextWords(name), [&](schema::Request::Builder request) {
    auto hello = request.initHello();
    hello.setProtocolVersion(kProtocolVersion);
    hello.setClientName(AsText(name));
  });
}

Frame EncodePing(const RequestHead& head) {
  return BuildRequest(head, 0, [](schema::Request::Builder request) { request.setPing(); });
}

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
  constexpr uint32_t kNamesWords = 15 * (1 + 3) + 1;  // 15 options; the longest name, max_draws_per_sample, takes 3 words
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

Frame EncodeDropBuffer(const RequestHead& head, std::string_view name) {
  return BuildRequest(head, TextWords(name),
                      [&](schema::Request::Builder request) { request.initDropBuffer().setName(AsText(std::string(name))); });
}

Frame EncodeSample(const RequestHead& head, std::string_view buffer, const SampleOptions& options) {
  return BuildRequest(head, TextWords(buffer), [&](schema::Request::Builder request) {
    auto sample = request.initSample();
    sample.setBuffer(AsText(std::string(buffer)));
    sample.setCount(options.count);
    sample.setStep(options.step.value_or(0));
    sample.setHasStep(options.step.has_value());
    sample.setGivenBack(options.given_back);
    sample.setMaxStaleness(options.max_staleness.value_or(0));
    sample.setHasMaxStaleness(options.max_staleness.has_value());
  });
}

Result<Frame> EncodeGet(const RequestHead& head, std::string_view buffer, std::span<const std::string> ids) {
  const Result<uint32_t> words = IdWords(ids);
  if (!words) return words.error();
  if (ids.empty()) return Refuse("ids is empty: name at least one trajectory");
  return BuildRequest(head, TextWords(buffer) + *words, [&](schema::Request::Builder request) {
    auto get = request.initGet();
    get.setBuffer(AsText(std::string(buffer)));
    FillIds(ids, get.initIds(static_cast<unsigned>(ids.size())));
  });
}

Frame EncodeScan(const RequestHead& head, std::string_view buffer, uint64_t after, uint32_t limit) {
  return BuildRequest(head, TextWords(buffer), [&](schema::Request::Builder request) {
    auto get = request.initGet();
    get.setBuffer(AsText(std::string(buffer)));
    get.setAfterItem(after);
    get.setLimit(limit);
  });
}

Result<Frame> EncodeDelete(const RequestHead& head, std::string_view buffer, std::span<const std::string> ids) {
  const Result<uint32_t> words = IdWords(ids);
  if (!words) return words.error();
  return BuildRequest(head, TextWords(buffer) + *words, [&](schema::Request::Builder request) {
    auto remove = request.initDelete();
    remove.setBuffer(AsText(std::string(buffer)));
    FillIds(ids, remove.initIds(static_cast<unsigned>(ids.size())));
  });
}

Result<Frame> EncodeUpdate(const RequestHead& head, std::string_view buffer, std::span<const ItemUpdate> updates) {
  if (updates.empty() || updates.size() > kMaxIdsPerRequest)
    return Refuse("updates has " + std::to_string(updates.size()) + " entries: it must have 1 to " +
                  std::to_string(kMaxIdsPerRequest));
  uint32_t words = 1;  // the tag of the list
  for (size_t i = 0; i < updates.size(); ++i) {
    const ItemUpdate& update = updates[i];
    const std::string at = "updates[" + std::to_string(i) + "].";
    if (update.trajectory_id.empty() || update.trajectory_id.size() > kMaxIdBytes)
      return Refuse(at + "trajectory_id has " + std::to_string(update.trajectory_id.size()) + " bytes: it must have 1 to " +
                    std::to_string(kMaxIdBytes));
    if (update.priority && !(*update.priority >= 0 && *update.priority <= kMaxPriority))
      return Refuse(at + "priority is " + std::to_string(*update.priority) + ": it must be from 0 to 1e9");
    if (update.reward && !std::isfinite(*update.reward))
      return Refuse(at + "reward is " + std::to_string(*update.reward) + ": it must be finite");
    if (!update.priority && !update.reward && !update.correct)
      return Refuse(at + "priority, reward and correct are all missing: nothing to update");
    words += 4 + TextWords(update.trajectory_id);
  }
  return BuildRequest(head, TextWords(buffer) + words, [&](schema::Request::Builder request) {
    auto update = request.initUpdate();
    update.setBuffer(AsText(std::string(buffer)));
    auto list = update.initUpdates(static_cast<unsigned>(updates.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      const ItemUpdate& from = updates[i];
      auto to = list[i];
      to.setId(AsText(from.trajectory_id));
      to.setHasPriority(from.priority.has_value());
      to.setPriority(from.priority.value_or(0));
      to.setHasReward(from.reward.has_value());
      to.setReward(from.reward.value_or(0));
      to.setHasCorrect(from.correct.has_value());
      to.setCorrect(static_cast<uint8_t>(from.correct.value_or(Correctness::kUnknown)));
      to.setHasRevision(from.revision.has_value());
      to.setRevision(from.revision.value_or(0));
    }
  });
}

Result<Frame> EncodePublishVersion(const RequestHead& head, const PolicyVersion& version) {
  if (version.uri.size() > kMaxUriBytes || version.label.size() > kMaxIdBytes || version.run_id.size() > kMaxIdBytes)
    return Refuse("run_id, label and uri have " + std::to_string(version.run_id.size()) + ", " +
                  std::to_string(version.label.size()) + " and " + std::to_string(version.uri.size()) + " bytes: at most " +
                  std::to_string(kMaxIdBytes) + ", " + std::to_string(kMaxIdBytes) + " and " + std::to_string(kMaxUriBytes) +
                  " are allowed");
  const uint32_t words = TextWords(version.run_id) + TextWords(version.label) + TextWords(version.uri);
  return BuildRequest(head, words, [&](schema::Request::Builder request) {
    auto publish = request.initPublishVersion();
    publish.setRunId(AsText(version.run_id));
    publish.setEpoch(version.epoch);
    publish.setVersion(version.version);
    publish.setStep(version.step);
    publish.setLabel(AsText(version.label));
    publish.setUri(AsText(version.uri));
    publish.setPublishedAtUnixNs(version.published_at_unix_ns);
  });
}

Frame EncodeWaitVersion(const RequestHead& head, std::string_view run_id, uint64_t epoch, std::optional<int64_t> version) {
  return BuildRequest(head, TextWords(run_id), [&](schema::Request::Builder request) {
    auto wait = request.initWaitVersion();
    wait.setRunId(AsText(std::string(run_id)));
    wait.setEpoch(epoch);
    wait.setVersion(version.value_or(0));
    wait.setHasVersion(version.has_value());
  });
}

Frame EncodeReportCost(const RequestHead& head, std::string_view buffer, const Cost& cost) {
  return BuildRequest(head, TextWords(buffer), [&](schema::Request::Builder request) {
    auto report = request.initReportCost();
    report.setBuffer(AsText(std::string(buffer)));
    report.setGenerationSeconds(cost.generation_seconds);
    report.setGeneratedTrajectories(cost.generated_trajectories);
    report.setGeneratedTokens(cost.generated_tokens);
    report.setTrainingSeconds(cost.training_seconds);
    report.setTrainedDraws(cost.trained_draws);
    report.setTrainedTokens(cost.trained_tokens);
    report.setWorkers(cost.workers);
    report.setTrainers(cost.trainers);
  });
}

Frame EncodeStats(const RequestHead& head, std::string_view buffer) {
  return BuildRequest(head, TextWords(buffer),
                      [&](schema::Request::Builder request) { request.initStats().setBuffer(AsText(std::string(buffer))); });
}

Frame EncodeWaiters(const RequestHead& head, std::string_view buffer) {
  return BuildRequest(head, TextWords(buffer),
                      [&](schema::Request::Builder request) { request.initWaiters().setBuffer(AsText(std::string(buffer))); });
}

Frame EncodeVersions(const RequestHead& head, std::string_view run_id) {
  return BuildRequest(head, TextWords(run_id),
                      [&](schema::Request::Builder request) { request.initVersions().setRunId(AsText(std::string(run_id))); });
}

std::span<const uint8_t> EncodeInsert(ControlBuilder& builder, const RequestHead& head, const InsertHead& insert,
                                      std::span<const Frame> frames) {
  auto request =
      builder.Start<schema::Request>(kFixedWords + TextWords(insert.buffer) + static_cast<uint32_t>(frames.size() / 2 + 1));
  request.setId(head.id);
  request.setTimeoutMs(head.timeout_ms);
  auto to = request.initInsert();
  to.setBuffer(AsText(std::string(insert.buffer)));
  to.setWriterHigh(insert.writer.high);
  to.setWriterLow(insert.writer.low);
  to.setSequence(insert.sequence);
  to.setAcknowledgedThrough(insert.acknowledged_through);
  auto sizes = to.initFrameBytes(static_cast<unsigned>(frames.size()));
  uint64_t payload_bytes = 0;
  for (unsigned i = 0; i < sizes.size(); ++i) {
    sizes.set(i, static_cast<uint32_t>(frames[i].size()));
    payload_bytes += frames[i].size();
  }
  return builder.Finish(payload_bytes);
}
}  // namespace replay
