// The replies of codec.h.

#include <cmath>

#include "schema/protocol.capnp.h"
#include "server/breakdown_encoder.h"
#include "server/check.h"
#include "server/codec.h"
#include "server/encode.h"
#include "server/version_codec.h"

namespace replay::server {
namespace {

capnp::Text::Reader AsText(std::string_view text) { return {text.data(), text.size()}; }

void FillOptions(const BufferOptions& from, schema::BufferOptions::Builder to) {
  to.setCapacityItems(from.capacity_items);
  to.setCapacityBytes(from.capacity_bytes);
  to.setRetention(static_cast<schema::RetentionKind>(from.retention));
  const std::string delta = from.delta.ToString();
  SetText(delta, [&](uint32_t size) { return to.initDelta(size); });
  to.setSelector(static_cast<schema::SelectorKind>(from.selector));
  to.setPriorityExponent(from.priority_exponent);
  to.setStalenessDecay(from.staleness_decay);
  to.setHasMaxStaleness(from.max_staleness.has_value());
  to.setMaxStaleness(from.max_staleness.value_or(0));
  to.setMaxAgeMs(from.max_age_ms);
  to.setHasEvictStaleness(from.evict_staleness.has_value());
  to.setEvictStaleness(from.evict_staleness.value_or(0));
  to.setMaxDraws(from.max_draws);
  to.setHasCorrectThreshold(from.correct_threshold.has_value());
  to.setCorrectThreshold(from.correct_threshold.value_or(0));
  to.setReplayRatio(from.replay_ratio);
  to.setTolerance(from.tolerance);
  to.setMinSize(from.min_size);
  to.setMaxDrawsPerSample(from.max_draws_per_sample);
  to.setMaxInsert(from.max_insert);
  to.setPaceDraws(from.pace_draws);
  to.setPaceInserts(from.pace_inserts);
  to.setHasSeed(from.seed.has_value());
  to.setSeed(from.seed.value_or(0));
  to.setUnit(static_cast<schema::Unit>(from.unit));
  to.setClosed(from.closed);
  to.setLevel(static_cast<schema::AcknowledgementLevel>(from.level));
  to.setLeaseMs(from.lease_ms);
  to.setZeroSpread(static_cast<schema::ZeroSpread>(from.zero_spread));
  to.setParts(from.parts);
  to.setPromptHistory(from.prompt_history);
  auto views = to.initViews(static_cast<uint32_t>(from.views.size()));
  for (uint32_t i = 0; i < views.size(); ++i) {
    const ViewOptions& view = from.views[i];
    auto to_view = views[i];
    SetText(view.name, [&](uint32_t size) { return to_view.initName(size); });
    SetText(view.filter, [&](uint32_t size) { return to_view.initFilter(size); });
    to_view.setSelector(static_cast<schema::SelectorKind>(view.selector));
    to_view.setPriorityExponent(view.priority_exponent);
    to_view.setStalenessDecay(view.staleness_decay);
  }
}

void FillHistogram(const Histogram& from, schema::Histogram::Builder to) {
  auto bounds = to.initBounds(static_cast<uint32_t>(from.bounds.size()));
  for (uint32_t i = 0; i < bounds.size(); ++i) bounds.set(i, from.bounds[i]);
  auto counts = to.initCounts(static_cast<uint32_t>(from.counts.size()));
  for (uint32_t i = 0; i < counts.size(); ++i) counts.set(i, from.counts[i]);
  to.setSum(from.sum);
}

template <typename Counts>
void FillNamedCount(Counts& counts, uint32_t index, std::string_view name, uint64_t count) {
  auto entry = counts[index];
  SetText(name, [&](uint32_t size) { return entry.initName(size); });
  entry.setCount(count);
}

void FillOutcomes(const BufferStats& from, schema::BufferStats::Builder to) {
  auto outcomes = to.initOutcomes(6);
  FillNamedCount(outcomes, 0, "insert_correct", from.inserted.correct);
  FillNamedCount(outcomes, 1, "insert_incorrect", from.inserted.incorrect);
  FillNamedCount(outcomes, 2, "sample_correct", from.sampled.correct);
  FillNamedCount(outcomes, 3, "sample_incorrect", from.sampled.incorrect);
  FillNamedCount(outcomes, 4, "remove_correct", from.removed_outcomes.correct);
  FillNamedCount(outcomes, 5, "remove_incorrect", from.removed_outcomes.incorrect);
}

// Three histograms (~32 words each), named counts, options, fixed fields; for each view its options and its name and count; columns.
uint32_t BufferStatsWords(const BufferStats& stats) {
  uint32_t words = 640 + BreakdownWords(stats);
  for (const ViewOptions& view : stats.options.views) words += 9 + TextWords(view.name) + TextWords(view.filter);
  for (const auto& [name, members] : stats.views) words += 3 + TextWords(name);
  for (const auto& [name, count] : stats.columns) words += 2 + TextWords(name);
  return words;
}

void FillBufferStats(const BufferStats& from, schema::BufferStats::Builder to) {
  SetText(from.name, [&](uint32_t size) { return to.initName(size); });
  FillOptions(from.options, to.initOptions());
  to.setItems(from.items);
  to.setBytes(from.bytes);
  to.setIndexBytes(from.index_bytes);
  to.setSpilledItems(from.spilled_items);
  to.setSpilledBytes(from.spilled_bytes);
  to.setTokens(from.tokens);
  to.setPositiveItems(from.positive_items);
  to.setScored(from.stored.correct + from.stored.incorrect);
  to.setCorrect(from.stored.correct);
  to.setOffered(from.offered);
  to.setAccepted(from.accepted);
  to.setDuplicate(from.duplicate);
  to.setRejected(from.rejected);
  to.setZeroSpread(from.zero_spread);
  to.setZeroSpreadRefused(from.zero_spread_refused);
  auto removed = to.initRemoved(static_cast<uint32_t>(from.removed.size()));
  for (uint32_t i = 0; i < removed.size(); ++i)
    FillNamedCount(removed, i, ToString(static_cast<RemoveReason>(i)), from.removed[i]);
  to.setDrawn(from.drawn);
  to.setSamples(from.samples);
  to.setTokensInserted(from.tokens_inserted);
  to.setTokensDrawn(from.tokens_drawn);
  to.setWithheld(from.withheld);
  FillHistogram(from.staleness, to.initStaleness());
  FillHistogram(from.reuse_gap, to.initReuseGap());
  FillHistogram(from.item_draws, to.initItemDraws());
  FillOutcomes(from, to);
  to.setOldestVersion(from.oldest_version);
  to.setNewestVersion(from.newest_version);
  to.setConsumerStep(from.consumer_step);
  to.setPacingBalance(from.pacing_balance);
  to.setWaitingInserts(from.waiting_inserts);
  to.setWaitingSamples(from.waiting_samples);
  to.setGenerationSeconds(from.cost.generation_seconds);
  to.setGeneratedTrajectories(from.cost.generated_trajectories);
  to.setTrainingSeconds(from.cost.training_seconds);
  to.setTrainedDraws(from.cost.trained_draws);
  to.setWorkers(from.cost.workers);
  to.setTrainers(from.cost.trainers);
  to.setProducers(from.producers);
  to.setConsumers(from.consumers);
  auto views = to.initViews(static_cast<uint32_t>(from.views.size()));
  for (uint32_t i = 0; i < views.size(); ++i) FillNamedCount(views, i, from.views[i].first, from.views[i].second);
  to.setGroups(from.groups);
  to.setReservedGroups(from.reserved_groups);
  to.setExpiredGroups(from.expired_groups);
  to.setPending(from.pending);
  to.setHeld(from.held);
  to.setLeases(from.leases);
  to.setExpiredLeases(from.expired_leases);
  to.setColumnBytes(from.column_bytes);
  auto columns = to.initColumns(static_cast<uint32_t>(from.columns.size()));
  for (uint32_t i = 0; i < columns.size(); ++i) FillNamedCount(columns, i, from.columns[i].first, from.columns[i].second);
  FillBreakdowns(from, to);
  to.setPrompts(from.prompts);
}

// Only what has happened is listed.
template <typename Enum, typename Init>
void FillCounts(const std::vector<uint64_t>& counts, Init&& init) {
  uint32_t used = 0;
  for (const uint64_t count : counts) used += count > 0;
  auto list = init(used);
  for (uint32_t i = 0, next = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) FillNamedCount(list, next++, ToString(static_cast<Enum>(i)), counts[i]);
  }
}

}  // namespace

void ReplyEncoder::Done(uint64_t id, OutputQueue& output) {
  builder_.Start<schema::Reply>(kReplyWords).setId(id);
  Send(builder_, 0, output);
}

void ReplyEncoder::Failure(uint64_t id, ErrorCode code, WaitReason reason, std::string_view message, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords + TextWords(message));
  reply.setId(id);
  reply.setCode(static_cast<schema::ErrorCode>(code));
  reply.setWaitReason(static_cast<schema::WaitReason>(reason));
  SetText(message, [&](uint32_t size) { return reply.initMessage(size); });
  Send(builder_, 0, output);
}

void ReplyEncoder::Hello(uint64_t id, const HelloInfo& info, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  auto hello = reply.initHello();
  hello.setProtocolVersion(kProtocolVersion);
  hello.setServerVersion(AsText(REPLAY_VERSION));
  hello.setGeneration(info.generation);
  hello.setMaxFrameBytes(kMaxFrameBytes);
  hello.setMaxPayloadBytes(info.max_payload_bytes);
  Send(builder_, 0, output);
}

// The commonest reply is built once by the generated code, with marks where the numbers go, and then copied and filled in.
ReplyEncoder::InsertTemplate::InsertTemplate() {
  constexpr uint64_t kMarks[] = {0x1d1d1d1d1d1d1d1d, 0xf1f1f1f1f1f1f1f1, 0x11111111e1e1e1e1};
  constexpr uint32_t kCountMark = 0xc0c0c0c0;
  ControlBuilder builder(kReplyWords);
  auto reply = builder.Start<schema::Reply>(kReplyWords);
  reply.setId(kMarks[0]);
  auto insert = reply.initInsert();
  insert.setFirstItem(kMarks[1]);
  insert.setLive(kMarks[2]);
  insert.setCount(kCountMark);
  const auto built = builder.Finish(0);
  bytes.assign(built.begin(), built.end());
  const auto find = [&](auto mark) {
    for (size_t offset = sizeof(Preamble); offset + sizeof mark <= bytes.size(); offset += 4) {
      if (std::memcmp(bytes.data() + offset, &mark, sizeof mark) == 0) return offset;
    }
    CHECK(false) << "a mark is missing from the reply";
    return size_t{0};
  };
  id = find(kMarks[0]);
  first_item = find(kMarks[1]);
  live = find(kMarks[2]);
  count = find(kCountMark);
}

void ReplyEncoder::Insert(uint64_t id, const InsertResult& result, OutputQueue& output) {
  if (!result.duplicate && !result.pending && result.refused == 0 && result.level == AcknowledgementLevel::kMemory) {
    InsertTemplate& filled = insert_template_;
    std::memcpy(filled.bytes.data() + filled.id, &id, sizeof id);
    std::memcpy(filled.bytes.data() + filled.first_item, &result.first_item, sizeof result.first_item);
    std::memcpy(filled.bytes.data() + filled.live, &result.live, sizeof result.live);
    std::memcpy(filled.bytes.data() + filled.count, &result.count, sizeof result.count);
    output.AddBytes(filled.bytes);
    return;
  }
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  auto insert = reply.initInsert();
  insert.setFirstItem(result.first_item);
  insert.setCount(result.count);
  insert.setDuplicate(result.duplicate);
  insert.setLevel(static_cast<schema::AcknowledgementLevel>(result.level));
  insert.setLive(result.live);
  insert.setPending(result.pending);
  insert.setRefused(result.refused);
  Send(builder_, 0, output);
}

void ReplyEncoder::Delete(uint64_t id, uint32_t deleted, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  reply.initDelete().setDeleted(deleted);
  Send(builder_, 0, output);
}

void ReplyEncoder::Reserve(uint64_t id, const ReserveResult& result, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  auto reserve = reply.initReserveGroup();
  reserve.setPresent(result.present);
  reserve.setSize(result.size);
  reserve.setFirstItem(result.first_item);
  Send(builder_, 0, output);
}

void ReplyEncoder::Admit(uint64_t id, const AdmitResult& result, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  auto admit = reply.initAdmit();
  admit.setCredits(result.credits);
  admit.setLive(result.live);
  admit.setReserved(result.reserved);
  Send(builder_, 0, output);
}

void ReplyEncoder::Acknowledge(uint64_t id, uint32_t count, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords);
  reply.setId(id);
  reply.initAcknowledge().setCount(count);
  Send(builder_, 0, output);
}

void ReplyEncoder::Update(uint64_t id, std::span<const UpdateOutcome> outcomes, std::span<const uint32_t> revisions,
                          OutputQueue& output) {
  const auto count = static_cast<uint32_t>(outcomes.size());
  auto reply = builder_.Start<schema::Reply>(kReplyWords + count);
  reply.setId(id);
  auto update = reply.initUpdate();
  auto to_outcomes = update.initOutcomes(count);
  auto to_revisions = update.initRevisions(count);
  for (uint32_t i = 0; i < count; ++i) {
    to_outcomes.set(i, static_cast<uint8_t>(outcomes[i]));
    to_revisions.set(i, revisions[i]);
  }
  Send(builder_, 0, output);
}

void ReplyEncoder::Version(uint64_t id, const PolicyVersion& version, OutputQueue& output) {
  auto reply = builder_.Start<schema::Reply>(kReplyWords + VersionWords(version));
  reply.setId(id);
  FillVersion(version, reply.initVersion());
  Send(builder_, 0, output);
}

void ReplyEncoder::Versions(uint64_t id, std::span<const PolicyVersion> versions, OutputQueue& output) {
  uint32_t words = kReplyWords;
  for (const PolicyVersion& version : versions) words += VersionWords(version);
  auto reply = builder_.Start<schema::Reply>(words);
  reply.setId(id);
  auto list = reply.initVersions().initVersions(static_cast<uint32_t>(versions.size()));
  for (uint32_t i = 0; i < versions.size(); ++i) FillVersion(versions[i], list[i]);
  Send(builder_, 0, output);
}

void ReplyEncoder::Stats(uint64_t id, const ServerStats& stats, OutputQueue& output) {
  uint32_t words = 512;
  for (const BufferStats& buffer : stats.buffers) words += BufferStatsWords(buffer);
  auto reply = builder_.Start<schema::Reply>(words);
  reply.setId(id);
  auto root = reply.initStats();
  auto server = root.initServer();
  server.setVersion(AsText(REPLAY_VERSION));
  server.setGeneration(stats.generation);
  server.setUptimeSeconds(stats.uptime_seconds);
  server.setConnections(stats.connections);
  server.setAcceptedConnections(stats.accepted_connections);
  server.setMemoryUsedBytes(stats.memory_used_bytes);
  server.setMemoryLimitBytes(stats.memory_limit_bytes);
  FillCounts<Verb>(stats.requests, [&](uint32_t size) { return server.initRequests(size); });
  FillCounts<ErrorCode>(stats.errors, [&](uint32_t size) { return server.initErrors(size); });
  auto buffers = root.initBuffers(static_cast<uint32_t>(stats.buffers.size()));
  for (uint32_t i = 0; i < buffers.size(); ++i) FillBufferStats(stats.buffers[i], buffers[i]);
  Send(builder_, 0, output);
}

void ReplyEncoder::Waiters(uint64_t id, std::span<const WaiterInfo> waiters, OutputQueue& output) {
  uint32_t words = kReplyWords;
  for (const WaiterInfo& waiter : waiters)
    words +=
        16 + TextWords(waiter.buffer) + TextWords(ToString(waiter.verb)) + TextWords(waiter.detail) + TextWords(waiter.peer);
  auto reply = builder_.Start<schema::Reply>(words);
  reply.setId(id);
  auto list = reply.initWaiters().initWaiters(static_cast<uint32_t>(waiters.size()));
  for (uint32_t i = 0; i < waiters.size(); ++i) {
    const WaiterInfo& from = waiters[i];
    auto to = list[i];
    SetText(from.buffer, [&](uint32_t size) { return to.initBuffer(size); });
    SetText(ToString(from.verb), [&](uint32_t size) { return to.initVerb(size); });
    SetText(from.detail, [&](uint32_t size) { return to.initDetail(size); });
    SetText(from.peer, [&](uint32_t size) { return to.initPeer(size); });
    to.setReason(static_cast<schema::WaitReason>(from.reason));
    to.setWaitedMs(from.waited_ms);
    to.setRemainingMs(from.remaining_ms);
  }
  Send(builder_, 0, output);
}

}  // namespace replay::server
