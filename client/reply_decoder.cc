// The second half of codec.h: replies into the public structs.
#include <array>
#include <string>
#include <utility>

#include "client/codec.h"
#include "client/reply_reader.h"
#include "client/tag_codec.h"
#include "client/trajectory.h"
#include "schema/names.h"

namespace replay {
namespace {

using ColumnSizes = capnp::List<schema::ColumnSize>::Reader;

std::vector<uint32_t> SizesOf(ColumnSizes columns) {
  std::vector<uint32_t> sizes;
  for (const auto& column : columns) sizes.push_back(column.getBytes());
  return sizes;
}

Result<std::vector<TrajectoryView>> ViewFrames(const ReceivedReply& received, ColumnSizes sizes) {
  std::vector<uint32_t> frame_of;
  for (const auto& column : sizes) frame_of.push_back(column.getFrame());
  auto columns = DealColumns(received.columns, frame_of, received.frames.size());
  if (!columns) return columns.error();
  std::vector<TrajectoryView> views;
  views.reserve(received.frames.size());
  for (size_t i = 0; i < received.frames.size(); ++i) {
    Result<TrajectoryView> view = ViewFrame(received.frames[i], std::move((*columns)[i]));
    if (!view) return view.error();
    views.push_back(std::move(*view));
  }
  return views;
}

PolicyVersion ReadVersion(schema::PolicyVersion::Reader from) {
  return {.run_id = String(from.getRunId()),
          .epoch = from.getEpoch(),
          .version = from.getVersion(),
          .step = from.getStep(),
          .label = String(from.getLabel()),
          .uri = String(from.getUri()),
          .published_at_unix_ns = from.getPublishedAtUnixNs()};
}

NamedCounts ReadCounts(capnp::List<schema::NamedCount>::Reader from) {
  NamedCounts counts;
  counts.reserve(from.size());
  for (const auto& entry : from) counts.emplace_back(String(entry.getName()), entry.getCount());
  return counts;
}

Histogram ReadHistogram(schema::Histogram::Reader from) {
  Histogram histogram;
  histogram.bounds = CopyOf<double>(from.getBounds());
  histogram.counts = CopyOf<uint64_t>(from.getCounts());
  histogram.counts.resize(histogram.bounds.size() + 1);  // what the struct promises, whatever came
  histogram.sum = from.getSum();
  return histogram;
}

BufferOptions ReadOptions(schema::BufferOptions::Reader from) {
  BufferOptions options;
  options.capacity_items = from.getCapacityItems();
  options.capacity_bytes = from.getCapacityBytes();
  options.retention = Name(kRetentionNames, from.getRetention());
  options.delta = String(from.getDelta());
  options.selector = Name(kSelectorNames, from.getSelector());
  options.priority_exponent = from.getPriorityExponent();
  options.staleness_decay = from.getStalenessDecay();
  if (from.getHasMaxStaleness()) options.max_staleness = from.getMaxStaleness();
  options.max_age = milliseconds(from.getMaxAgeMs());
  if (from.getHasEvictStaleness()) options.evict_staleness = from.getEvictStaleness();
  options.max_draws = from.getMaxDraws();
  if (from.getHasCorrectThreshold()) options.correct_threshold = from.getCorrectThreshold();
  options.replay_ratio = from.getReplayRatio();
  options.tolerance = from.getTolerance();
  options.min_size = from.getMinSize();
  options.max_draws_per_sample = from.getMaxDrawsPerSample();
  options.max_insert = from.getMaxInsert();
  options.pace_draws = from.getPaceDraws();
  options.pace_inserts = from.getPaceInserts();
  if (from.getHasSeed()) options.seed = from.getSeed();
  options.unit = Name(kUnitNames, from.getUnit());
  options.closed = from.getClosed();
  options.lease = milliseconds(from.getLeaseMs());
  options.zero_spread = Name(kZeroSpreadNames, from.getZeroSpread());
  options.level = Name(kLevelNames, from.getLevel());
  options.parts = std::max(1u, from.getParts());
  options.prompt_history = from.getPromptHistory();
  for (const auto& view : from.getViews()) {
    if (!options.views) options.views.emplace();
    options.views->push_back({.name = String(view.getName()),
                              .filter = String(view.getFilter()),
                              .selector = Name(kSelectorNames, view.getSelector()),
                              .priority_exponent = view.getPriorityExponent(),
                              .staleness_decay = view.getStalenessDecay()});
  }
  return options;
}

std::vector<Breakdown> ReadBreakdowns(capnp::List<schema::Breakdown>::Reader from) {
  std::vector<Breakdown> rows;
  for (const auto& row : from)
    rows.push_back({.name = String(row.getName()),
                    .live = row.getLive(),
                    .inserted = row.getInserted(),
                    .withheld = row.getWithheld(),
                    .removed = ReadCounts(row.getRemoved())});
  return rows;
}

BufferStats ReadBufferStats(schema::BufferStats::Reader from) {
  BufferStats stats;
  stats.name = String(from.getName());
  stats.options = ReadOptions(from.getOptions());
  stats.items = from.getItems();
  stats.bytes = from.getBytes();
  stats.index_bytes = from.getIndexBytes();
  stats.spilled_items = from.getSpilledItems();
  stats.spilled_bytes = from.getSpilledBytes();
  stats.tokens = from.getTokens();
  stats.positive_items = from.getPositiveItems();
  stats.scored = from.getScored();
  stats.correct = from.getCorrect();
  stats.offered = from.getOffered();
  stats.accepted = from.getAccepted();
  stats.duplicate = from.getDuplicate();
  stats.rejected = from.getRejected();
  stats.zero_spread = from.getZeroSpread();
  stats.zero_spread_refused = from.getZeroSpreadRefused();
  stats.removed = ReadCounts(from.getRemoved());
  stats.drawn = from.getDrawn();
  stats.samples = from.getSamples();
  stats.tokens_inserted = from.getTokensInserted();
  stats.tokens_drawn = from.getTokensDrawn();
  stats.withheld = from.getWithheld();
  stats.staleness = ReadHistogram(from.getStaleness());
  stats.reuse_gap = ReadHistogram(from.getReuseGap());
  stats.item_draws = ReadHistogram(from.getItemDraws());
  stats.outcomes = ReadCounts(from.getOutcomes());
  stats.oldest_version = from.getOldestVersion();
  stats.newest_version = from.getNewestVersion();
  stats.consumer_step = from.getConsumerStep();
  stats.pacing_balance = from.getPacingBalance();
  stats.waiting_inserts = from.getWaitingInserts();
  stats.waiting_samples = from.getWaitingSamples();
  stats.generation_seconds = from.getGenerationSeconds();
  stats.training_seconds = from.getTrainingSeconds();
  stats.generated_trajectories = from.getGeneratedTrajectories();
  stats.trained_draws = from.getTrainedDraws();
  stats.workers = from.getWorkers();
  stats.trainers = from.getTrainers();
  stats.producers = from.getProducers();
  stats.consumers = from.getConsumers();
  stats.views = ReadCounts(from.getViews());
  stats.groups = from.getGroups();
  stats.reserved_groups = from.getReservedGroups();
  stats.expired_groups = from.getExpiredGroups();
  stats.pending = from.getPending();
  stats.held = from.getHeld();
  stats.leases = from.getLeases();
  stats.expired_leases = from.getExpiredLeases();
  stats.column_bytes = from.getColumnBytes();
  stats.columns = ReadCounts(from.getColumns());
  stats.sources = ReadBreakdowns(from.getSources());
  stats.lengths = ReadBreakdowns(from.getLengths());
  stats.draws = ReadBreakdowns(from.getDraws());
  stats.prompts = from.getPrompts();
  return stats;
}

}  // namespace

Result<Done> DecodeHead(std::span<const uint64_t> control, ReplyHead* head) {
  try {
    ControlReader reader(control.data(), static_cast<uint32_t>(control.size()));
    const auto reply = reader.Root<schema::Reply>();
    head->id = reply.getId();
    head->frame_bytes.clear();
    head->column_bytes.clear();
    head->error.reset();
    if (reply.getCode() != schema::ErrorCode::OK) head->error = ErrorOf(reply);
    head->holds = reply.isSample() && reply.getSample().getLease() != 0;
    const auto read = [head](auto from) {
      head->frame_bytes = CopyOf<uint32_t>(from.getFrameBytes());
      head->column_bytes = SizesOf(from.getColumns());
    };
    if (reply.isSample()) read(reply.getSample());
    if (reply.isGet()) read(reply.getGet());
    return Done{};
  } catch (const kj::Exception& exception) {
    return Violation(std::string("the reply is not readable: ") + exception.getDescription().cStr());
  }
}

Result<ServerHello> DecodeHello(const ReceivedReply& received) {
  return Decode<ServerHello>(received, schema::Reply::HELLO, [](schema::Reply::Reader reply) -> Result<ServerHello> {
    const auto hello = reply.getHello();
    if (hello.getProtocolVersion() != kProtocolVersion)
      return Error{ErrorCode::kUnsupportedVersion, "the server speaks protocol version " +
                                                       std::to_string(hello.getProtocolVersion()) + ", this client " +
                                                       std::to_string(kProtocolVersion)};
    ServerHello server{String(hello.getServerVersion()), hello.getGeneration()};
    if (hello.getMaxPayloadBytes() > 0) server.max_payload_bytes = hello.getMaxPayloadBytes();
    return server;
  });
}

Result<Done> DecodeDone(const ReceivedReply& received) {
  return Decode<Done>(received, schema::Reply::NONE, [](schema::Reply::Reader) -> Result<Done> { return Done{}; });
}

Result<InsertReceipt> DecodeInsert(const ReceivedReply& received) {
  return Decode<InsertReceipt>(received, schema::Reply::INSERT, [](schema::Reply::Reader reply) -> Result<InsertReceipt> {
    const auto insert = reply.getInsert();
    return InsertReceipt{.first_item = insert.getFirstItem(),
                         .count = insert.getCount(),
                         .refused = insert.getRefused(),
                         .duplicate = insert.getDuplicate(),
                         .level = Name(kLevelNames, insert.getLevel()),
                         .live = insert.getLive(),
                         .pending = insert.getPending()};
  });
}

Result<Batch> DecodeSample(const ReceivedReply& received) {
  return Decode<Batch>(received, schema::Reply::SAMPLE, [&](schema::Reply::Reader reply) -> Result<Batch> {
    const auto sample = reply.getSample();
    Result<std::vector<TrajectoryView>> views = ViewFrames(received, sample.getColumns());
    if (!views) return views.error();
    Batch batch;
    batch.trajectories = std::move(*views);
    batch.step = sample.getStep();
    batch.withheld = sample.getWithheld();
    batch.planned = sample.getPlanned();
    if (sample.getDraws().size() > kMaxSampleCount)
      return Violation("the reply has " + std::to_string(sample.getDraws().size()) + " draws: at most " +
                       std::to_string(kMaxSampleCount) + " are allowed");
    batch.draws.reserve(sample.getDraws().size());
    for (const auto& draw : sample.getDraws()) {
      if (draw.getFrame() >= batch.trajectories.size())
        return Violation("draw " + std::to_string(batch.draws.size()) + " refers to frame " + std::to_string(draw.getFrame()) +
                         " of " + std::to_string(batch.trajectories.size()));
      batch.draws.push_back({.frame = draw.getFrame(),
                             .draw_count = draw.getDrawCount(),
                             .probability = draw.getProbability(),
                             .staleness = draw.getStaleness(),
                             .steps_since_last_use = draw.getStepsSinceLastUse(),
                             .item = draw.getItem(),
                             .reward = draw.getReward(),
                             .revision = draw.getRevision(),
                             .advantage = draw.getHasAdvantage() ? std::optional(draw.getAdvantage()) : std::nullopt,
                             .part = 0});
    }
    batch.lease = sample.getLease();
    batch.group_sizes = CopyOf<uint32_t>(sample.getUnitSizes());
    uint64_t members = 0;
    for (const uint32_t size : batch.group_sizes) members += size;
    if (!batch.group_sizes.empty() && members != batch.draws.size())
      return Violation("the groups have " + std::to_string(members) + " draws, the batch " +
                       std::to_string(batch.draws.size()));
    uint64_t begin = 0;
    const auto counts = sample.getPartCounts();
    batch.candidates = CopyOf<uint64_t>(sample.getCandidates());  // an older server tells none
    const size_t parts = std::max(1u, counts.size());
    if (!batch.candidates.empty() && batch.candidates.size() != parts)
      return Violation("the reply has candidates of " + std::to_string(batch.candidates.size()) + " parts of " +
                       std::to_string(parts));
    for (uint32_t part = 0; part < counts.size(); ++part) {
      const uint64_t end = begin + counts[part];
      if (end > batch.draws.size())
        return Violation("the parts have " + std::to_string(end) + " draws or more, the batch " +
                         std::to_string(batch.draws.size()));
      for (; begin < end; ++begin) batch.draws[begin].part = part;
    }
    return batch;
  });
}

Result<std::vector<StoredTrajectory>> DecodeGet(const ReceivedReply& received) {
  using Stored = std::vector<StoredTrajectory>;
  return Decode<Stored>(received, schema::Reply::GET, [&](schema::Reply::Reader reply) -> Result<Stored> {
    const auto get = reply.getGet();
    const auto items = get.getItems();  // Once each: every call counts the whole list towards the traversal limit.
    const auto draw_counts = get.getDrawCounts();
    const size_t count = received.frames.size();
    if (items.size() != count || draw_counts.size() != count)
      return Violation("the reply has " + std::to_string(count) + " frames, " + std::to_string(items.size()) + " items and " +
                       std::to_string(draw_counts.size()) + " draw counts: they must agree");
    const auto rewards = get.getRewards();
    const auto revisions = get.getRevisions();
    const auto late_tags = get.getLateTags();
    const bool tells = rewards.size() == count && revisions.size() == count;  // an older server does not
    Result<std::vector<TrajectoryView>> views = ViewFrames(received, get.getColumns());
    if (!views) return views.error();
    Stored stored;
    stored.reserve(count);
    for (unsigned i = 0; i < count; ++i) {
      StoredTrajectory& each = stored.emplace_back(StoredTrajectory{std::move((*views)[i]), items[i], draw_counts[i]});
      each.reward = tells ? float{rewards[i]} : each.trajectory.reward();
      each.revision = tells ? uint32_t{revisions[i]} : 0;
      if (i >= late_tags.size()) continue;
      for (const auto& tag : late_tags[i].getTags()) each.late_tags.emplace_back(String(tag.getName()), ReadTag(tag));
    }
    return stored;
  });
}

Result<uint32_t> DecodeDelete(const ReceivedReply& received) {
  return Decode<uint32_t>(received, schema::Reply::DELETE, [](schema::Reply::Reader reply) -> Result<uint32_t> {
    return uint32_t{reply.getDelete().getDeleted()};
  });
}

Result<std::vector<UpdateResult>> DecodeUpdate(const ReceivedReply& received) {
  using Results = std::vector<UpdateResult>;
  return Decode<Results>(received, schema::Reply::UPDATE, [](schema::Reply::Reader reply) -> Result<Results> {
    const auto outcomes = reply.getUpdate().getOutcomes();
    const auto revisions = reply.getUpdate().getRevisions();
    if (outcomes.size() != revisions.size())
      return Violation("the reply has " + std::to_string(outcomes.size()) + " outcomes and " +
                       std::to_string(revisions.size()) + " revisions: they must agree");
    Results results(outcomes.size());
    for (uint32_t i = 0; i < results.size(); ++i) {
      if (outcomes[i] > static_cast<uint8_t>(UpdateResult::Outcome::kOtherRevision))
        return Violation("outcome " + std::to_string(outcomes[i]) + " is not known");
      results[i] = {static_cast<UpdateResult::Outcome>(outcomes[i]), revisions[i]};
    }
    return results;
  });
}

Result<HistoryPage> DecodeHistory(const ReceivedReply& received) {
  return Decode<HistoryPage>(received, schema::Reply::HISTORY, [](schema::Reply::Reader reply) -> Result<HistoryPage> {
    HistoryPage page;
    page.more = reply.getHistory().getMore();
    for (const auto& prompt : reply.getHistory().getPrompts())
      page.prompts.push_back({.dataset_index = prompt.getDatasetIndex(),
                              .rollouts = prompt.getRollouts(),
                              .scored = prompt.getScored(),
                              .correct = prompt.getCorrect(),
                              .reward_sum = prompt.getRewardSum()});
    return page;
  });
}

Result<PolicyVersion> DecodeVersion(const ReceivedReply& received) {
  return Decode<PolicyVersion>(received, schema::Reply::VERSION, [](schema::Reply::Reader reply) -> Result<PolicyVersion> {
    return ReadVersion(reply.getVersion());
  });
}

Result<std::vector<PolicyVersion>> DecodeVersions(const ReceivedReply& received) {
  using Versions = std::vector<PolicyVersion>;
  return Decode<Versions>(received, schema::Reply::VERSIONS, [](schema::Reply::Reader reply) -> Result<Versions> {
    Versions versions;
    for (const auto& version : reply.getVersions().getVersions()) versions.push_back(ReadVersion(version));
    return versions;
  });
}

Result<ServerStats> DecodeStats(const ReceivedReply& received) {
  return Decode<ServerStats>(received, schema::Reply::STATS, [](schema::Reply::Reader reply) -> Result<ServerStats> {
    const auto server = reply.getStats().getServer();
    ServerStats stats;
    stats.version = String(server.getVersion());
    stats.generation = server.getGeneration();
    stats.uptime_seconds = server.getUptimeSeconds();
    stats.connections = server.getConnections();
    stats.accepted_connections = server.getAcceptedConnections();
    stats.memory_used_bytes = server.getMemoryUsedBytes();
    stats.memory_limit_bytes = server.getMemoryLimitBytes();
    stats.requests = ReadCounts(server.getRequests());
    stats.errors = ReadCounts(server.getErrors());
    for (const auto& buffer : reply.getStats().getBuffers()) stats.buffers.push_back(ReadBufferStats(buffer));
    return stats;
  });
}

Result<std::vector<WaiterInfo>> DecodeWaiters(const ReceivedReply& received) {
  using Infos = std::vector<WaiterInfo>;
  return Decode<Infos>(received, schema::Reply::WAITERS, [](schema::Reply::Reader reply) -> Result<Infos> {
    Infos waiters;
    for (const auto& waiter : reply.getWaiters().getWaiters())
      waiters.push_back({.buffer = String(waiter.getBuffer()),
                         .verb = String(waiter.getVerb()),
                         .detail = String(waiter.getDetail()),
                         .peer = String(waiter.getPeer()),
                         .reason = ReasonOf(waiter.getReason()),
                         .waited_ms = waiter.getWaitedMs(),
                         .remaining_ms = waiter.getRemainingMs()});
    return waiters;
  });
}

}  // namespace replay
