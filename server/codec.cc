#include "server/codec.h"

#include <algorithm>
#include <cmath>

#include "schema/flat.h"
#include "schema/protocol.capnp.h"
#include "server/check.h"
#include "server/decode.h"

namespace replay::server {
namespace {

// The enums of the server are those of the protocol by number.
static_assert(static_cast<int>(ErrorCode::kStorageFailed) == static_cast<int>(schema::ErrorCode::STORAGE_FAILED));
static_assert(static_cast<int>(WaitReason::kVersion) == static_cast<int>(schema::WaitReason::VERSION));
static_assert(static_cast<int>(RetentionKind::kBest) == static_cast<int>(schema::RetentionKind::BEST));
static_assert(static_cast<int>(SelectorKind::kRecency) == static_cast<int>(schema::SelectorKind::RECENCY));
static_assert(static_cast<int>(AcknowledgementLevel::kDisk) == static_cast<int>(schema::AcknowledgementLevel::DISK));
static_assert(static_cast<int>(Verb::kHistory) == static_cast<int>(schema::Request::HISTORY));

void DecodeIds(capnp::List<capnp::Text>::Reader ids, Request* request) {
  if (ids.size() > kMaxIdsPerRequest)
    Refuse("ids has " + std::to_string(ids.size()) + " entries: at most " + std::to_string(kMaxIdsPerRequest) + " are allowed");
  request->ids.resize(ids.size());
  for (uint32_t i = 0; i < ids.size(); ++i) Assign(&request->ids[i], ids[i], "ids", kMaxIdBytes);
}

std::vector<ViewOptions> DecodeViews(capnp::List<schema::View>::Reader from) {
  if (from.size() > kMaxViews)
    Refuse("views has " + std::to_string(from.size()) + " entries: at most " + std::to_string(kMaxViews) + " are allowed");
  std::vector<ViewOptions> views(from.size());
  for (uint32_t i = 0; i < from.size(); ++i) {
    Assign(&views[i].name, from[i].getName(), "views.name", kMaxBufferNameBytes);
    Assign(&views[i].filter, from[i].getFilter(), "views.filter", kMaxFilterBytes);
    if (from[i].getSelector() > schema::SelectorKind::RECENCY) Refuse("views.selector is not a known value");
    views[i].selector = static_cast<SelectorKind>(from[i].getSelector());
    views[i].priority_exponent = from[i].getPriorityExponent();
    views[i].staleness_decay = from[i].getStalenessDecay();
  }
  return views;
}

void DecodeSample(schema::Sample::Reader from, Request* request) {
  Assign(&request->buffer, from.getBuffer(), "buffer", kMaxBufferNameBytes);
  SampleRequest& sample = request->sample;
  sample.count = from.getCount();
  sample.step = from.getHasStep() ? std::optional(from.getStep()) : std::nullopt;
  sample.given_back = from.getGivenBack();
  sample.max_staleness = from.getHasMaxStaleness() ? std::optional(from.getMaxStaleness()) : std::nullopt;
  Assign(&sample.view, from.getView(), "view", kMaxBufferNameBytes);
  Assign(&sample.consumer, from.getConsumer(), "consumer", kMaxIdBytes);
  sample.rank = from.getRank();
  sample.world_size = from.getWorldSize();
  DecodeColumnNames(from.getColumns(), &sample.columns);
  sample.parts.clear();
  if (!from.hasParts()) return;
  const auto parts = from.getParts();
  if (parts.size() > kMaxSampleParts)
    Refuse("parts has " + std::to_string(parts.size()) + " entries: at most " + std::to_string(kMaxSampleParts) +
           " are allowed");
  uint64_t sum = 0;
  for (const auto& part : parts) {
    SamplePart& to = sample.parts.emplace_back();
    to.count = part.getCount();
    Assign(&to.view, part.getView(), "parts.view", kMaxBufferNameBytes);
    if (part.getHasMaxStaleness()) to.max_staleness = part.getMaxStaleness();
    to.min_staleness = part.getMinStaleness();
    to.or_next = part.getOrNext();
    Assign(&to.buffer, part.getBuffer(), "parts.buffer", kMaxBufferNameBytes);
    sum += to.count;
  }
  if (sample.count == 0) sample.count = static_cast<uint32_t>(std::min<uint64_t>(sum, UINT32_MAX));
}

BufferOptions DecodeOptions(schema::BufferOptions::Reader reader) {
  BufferOptions options;
  options.capacity_items = reader.getCapacityItems();
  options.capacity_bytes = reader.getCapacityBytes();
  if (reader.getRetention() > schema::RetentionKind::BEST) Refuse("retention is not a known value");
  if (reader.getSelector() > schema::SelectorKind::RECENCY) Refuse("selector is not a known value");
  options.retention = static_cast<RetentionKind>(reader.getRetention());
  options.selector = static_cast<SelectorKind>(reader.getSelector());
  if (reader.hasDelta() && reader.getDelta().size() > 0) {
    const auto text = reader.getDelta();
    if (std::string error = ParseDecimal({text.begin(), text.size()}, &options.delta); !error.empty()) Refuse("delta " + error);
  }
  options.priority_exponent = reader.getPriorityExponent();
  options.staleness_decay = reader.getStalenessDecay();
  if (reader.getHasMaxStaleness()) options.max_staleness = reader.getMaxStaleness();
  options.max_age_ms = reader.getMaxAgeMs();
  if (reader.getHasEvictStaleness()) options.evict_staleness = reader.getEvictStaleness();
  options.max_draws = reader.getMaxDraws();
  if (reader.getHasCorrectThreshold()) options.correct_threshold = reader.getCorrectThreshold();
  options.replay_ratio = reader.getReplayRatio();
  options.tolerance = reader.getTolerance();
  options.min_size = reader.getMinSize();
  options.max_draws_per_sample = reader.getMaxDrawsPerSample();
  options.max_insert = reader.getMaxInsert();
  options.pace_draws = reader.getPaceDraws();
  options.pace_inserts = reader.getPaceInserts();
  if (reader.getHasSeed()) options.seed = reader.getSeed();
  if (reader.hasViews()) options.views = DecodeViews(reader.getViews());
  if (reader.getUnit() > schema::Unit::GROUP) Refuse("unit is not a known value");
  if (reader.getZeroSpread() > schema::ZeroSpread::REFUSE) Refuse("zero_spread is not a known value");
  if (reader.getLevel() > schema::AcknowledgementLevel::DISK) Refuse("level is not a known value");
  options.unit = static_cast<Unit>(reader.getUnit());
  options.closed = reader.getClosed();
  options.lease_ms = reader.getLeaseMs();
  options.zero_spread = static_cast<ZeroSpread>(reader.getZeroSpread());
  options.parts = std::max(1u, reader.getParts());
  options.prompt_history = reader.getPromptHistory();
  options.level = static_cast<AcknowledgementLevel>(reader.getLevel());
  return options;
}

void DecodeCost(schema::ReportCost::Reader reader, Request* request) {
  CostReport& cost = request->cost;
  cost.generation_seconds = reader.getGenerationSeconds();
  cost.generated_trajectories = reader.getGeneratedTrajectories();
  cost.generated_tokens = reader.getGeneratedTokens();
  cost.training_seconds = reader.getTrainingSeconds();
  cost.trained_draws = reader.getTrainedDraws();
  cost.trained_tokens = reader.getTrainedTokens();
  cost.workers = reader.getWorkers();
  cost.trainers = reader.getTrainers();
  for (const auto& [field, value] :
       {std::pair("generation_seconds", cost.generation_seconds), std::pair("training_seconds", cost.training_seconds)}) {
    if (!(value >= 0 && value < 1e12)) Refuse(std::string(field) + " is " + std::to_string(value) + ": must be from 0 to 1e12");
  }
}

void DecodeInsert(schema::Insert::Reader insert, Request* request) {
  Assign(&request->buffer, insert.getBuffer(), "buffer", kMaxBufferNameBytes);
  request->writer = {insert.getWriterLow(), insert.getWriterHigh()};
  request->sequence = insert.getSequence();
  request->acknowledged_through = insert.getAcknowledgedThrough();
  const auto sizes = insert.getFrameBytes();
  request->frame_bytes.resize(sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) request->frame_bytes[i] = sizes[i];
  request->partial = insert.getPartial();
  request->level.reset();
  if (insert.getHasLevel()) {
    if (insert.getLevel() > schema::AcknowledgementLevel::DISK) Refuse("level is not a known value");
    request->level = static_cast<AcknowledgementLevel>(insert.getLevel());
  }
  DecodeColumnSizes(insert.getColumns(), sizes.size(), &request->columns);
}

void DecodeReserve(schema::ReserveGroup::Reader from, Request* request) {
  Assign(&request->buffer, from.getBuffer(), "buffer", kMaxBufferNameBytes);
  ReserveRequest& to = request->reserve;
  Assign(&to.group_id, from.getGroupId(), "group_id", kMaxIdBytes);
  if (to.group_id.empty()) Refuse("group_id is empty");
  if (from.getAction() > schema::ReserveGroup::Action::DROP) Refuse("action is not a known value");
  if (from.getMissing() > schema::MissingMembers::WAIT) Refuse("missing is not a known value");
  to.action = static_cast<ReserveRequest::Action>(from.getAction());
  to.missing = static_cast<MissingMembers>(from.getMissing());
  to.size = from.getSize();
  to.lease_ms = from.getLeaseMs();
  to.deadline_ms = from.getDeadlineMs();
  to.batch = from.getBatch();
}

void DecodeAdmit(schema::Admit::Reader from, Request* request) {
  Assign(&request->buffer, from.getBuffer(), "buffer", kMaxBufferNameBytes);
  request->admit = {.count = from.getCount(), .batch = from.getBatch()};
  if (from.getHasMaxStaleness()) request->admit.max_staleness = from.getMaxStaleness();
}

void DecodeAcknowledge(schema::Acknowledge::Reader from, Request* request) {
  Assign(&request->buffer, from.getBuffer(), "buffer", kMaxBufferNameBytes);
  AcknowledgeRequest& to = request->acknowledge;
  to.lease = from.getLease();
  to.give_back = from.getGiveBack();
  const auto items = from.getItems();
  to.items.clear();
  for (const uint64_t item : items) to.items.push_back(item);
}

void Decode(schema::Request::Reader reader, Request* request) {
  request->id = reader.getId();
  request->timeout_ms = reader.getTimeoutMs();
  request->verb = static_cast<Verb>(reader.which());
  switch (reader.which()) {
    case schema::Request::HELLO: {
      const auto hello = reader.getHello();
      request->protocol_version = hello.getProtocolVersion();
      return Assign(&request->client_name, hello.getClientName(), "client_name", kMaxIdBytes);
    }
    case schema::Request::CREATE_BUFFER:
      Assign(&request->buffer, reader.getCreateBuffer().getName(), "name", kMaxBufferNameBytes);
      request->options = DecodeOptions(reader.getCreateBuffer().getOptions());
      if (request->options.capacity_items == 0) request->options.capacity_items = BufferOptions().capacity_items;
      if (request->options.min_size == 0) request->options.min_size = BufferOptions().min_size;
      return;
    case schema::Request::ALTER_BUFFER: {
      const auto alter = reader.getAlterBuffer();
      Assign(&request->buffer, alter.getName(), "name", kMaxBufferNameBytes);
      request->options = DecodeOptions(alter.getOptions());
      const auto names = alter.getFields();
      if (names.size() > OptionNames().size()) Refuse("fields has more entries than there are options");
      request->option_names.resize(names.size());
      for (uint32_t i = 0; i < names.size(); ++i) Assign(&request->option_names[i], names[i], "fields", 64);
      return;
    }
    case schema::Request::DROP_BUFFER:
      return Assign(&request->buffer, reader.getDropBuffer().getName(), "name", kMaxBufferNameBytes);
    case schema::Request::INSERT:
      return DecodeInsert(reader.getInsert(), request);
    case schema::Request::SAMPLE:
      return DecodeSample(reader.getSample(), request);
    case schema::Request::GET: {
      const auto get = reader.getGet();
      Assign(&request->buffer, get.getBuffer(), "buffer", kMaxBufferNameBytes);
      request->after_item = get.getAfterItem();
      request->limit = get.getLimit();
      DecodeColumnNames(get.getColumns(), &request->column_names);
      return DecodeIds(get.getIds(), request);
    }
    case schema::Request::DELETE:
      Assign(&request->buffer, reader.getDelete().getBuffer(), "buffer", kMaxBufferNameBytes);
      return DecodeIds(reader.getDelete().getIds(), request);
    case schema::Request::PUBLISH_VERSION: {
      const auto version = reader.getPublishVersion();
      Assign(&request->version.run_id, version.getRunId(), "run_id", kMaxIdBytes);
      Assign(&request->version.label, version.getLabel(), "label", kMaxIdBytes);
      Assign(&request->version.uri, version.getUri(), "uri", kMaxUriBytes);
      request->version.epoch = version.getEpoch();
      request->version.version = version.getVersion();
      request->version.step = version.getStep();
      request->version.published_at_unix_ns = version.getPublishedAtUnixNs();
      return;
    }
    case schema::Request::WAIT_VERSION: {
      const auto wait = reader.getWaitVersion();
      Assign(&request->version.run_id, wait.getRunId(), "run_id", kMaxIdBytes);
      request->version.epoch = wait.getEpoch();
      request->version.version = wait.getVersion();
      request->has_version = wait.getHasVersion();
      return;
    }
    case schema::Request::REPORT_COST:
      Assign(&request->buffer, reader.getReportCost().getBuffer(), "buffer", kMaxBufferNameBytes);
      return DecodeCost(reader.getReportCost(), request);
    case schema::Request::STATS:
      return Assign(&request->buffer, reader.getStats().getBuffer(), "buffer", kMaxBufferNameBytes);
    case schema::Request::WAITERS:
      return Assign(&request->buffer, reader.getWaiters().getBuffer(), "buffer", kMaxBufferNameBytes);
    case schema::Request::VERSIONS:
      return Assign(&request->version.run_id, reader.getVersions().getRunId(), "run_id", kMaxIdBytes);
    case schema::Request::PING:
      return;
    case schema::Request::UPDATE:
      return DecodeUpdate(reader.getUpdate(), request);
    case schema::Request::RESERVE_GROUP:
      return DecodeReserve(reader.getReserveGroup(), request);
    case schema::Request::ADMIT:
      return DecodeAdmit(reader.getAdmit(), request);
    case schema::Request::ACKNOWLEDGE:
      return DecodeAcknowledge(reader.getAcknowledge(), request);
    case schema::Request::HISTORY:
      Assign(&request->buffer, reader.getHistory().getBuffer(), "buffer", kMaxBufferNameBytes);
      Assign(&request->source, reader.getHistory().getSource(), "source", kMaxIdBytes);
      request->after_index = reader.getHistory().getAfterIndex();
      request->limit = reader.getHistory().getLimit();
      return;
  }
  Refuse("the verb has number " + std::to_string(static_cast<int>(reader.which())) + ", which this server does not know");
}

// An Insert request as every client builds it, in a tenth of the instructions. False: something is unusual, or it is another verb.
bool DecodePlainInsert(const void* data, uint32_t words, Request* request) {
  FlatMessage message({static_cast<const uint64_t*>(data), words});
  if (message.Claim(0, 1) == nullptr) return false;
  const FlatStruct root(message, static_cast<const uint64_t*>(data), 2, 1);
  if (!root.ok() || root.Get<uint16_t>(12) != schema::Request::INSERT) return false;
  const FlatStruct insert(message, root.pointer(0), 4, 2);
  if (!insert.ok()) return false;
  if (insert.data_words() > 4 && insert.Get<uint64_t>(32) != 0) return false;  // partial, level
  if (insert.pointer_count() > 2 && *insert.pointer(2) != 0) return false;     // columns
  const std::string_view buffer = insert.Text(0);
  const std::span<const uint32_t> sizes = insert.List<uint32_t>(1);
  if (message.declined || buffer.size() > kMaxBufferNameBytes) return false;
  request->id = root.Get<uint64_t>(0);
  request->timeout_ms = root.Get<uint32_t>(8);
  request->verb = Verb::kInsert;
  request->buffer.assign(buffer);
  request->writer = {insert.Get<uint64_t>(8), insert.Get<uint64_t>(0)};
  request->sequence = insert.Get<uint64_t>(16);
  request->acknowledged_through = insert.Get<uint64_t>(24);
  request->frame_bytes.assign(sizes.begin(), sizes.end());
  request->partial = false;
  request->level.reset();
  request->columns.clear();
  return true;
}

}  // namespace

std::string_view ToString(Verb verb) {
  static constexpr std::string_view kNames[] = {"Hello",      "CreateBuffer", "AlterBuffer", "DropBuffer",     "Insert",
                                                "Sample",     "Get",          "Delete",      "PublishVersion", "WaitVersion",
                                                "ReportCost", "Stats",        "Waiters",     "Versions",       "Ping",
                                                "Update",     "ReserveGroup", "Admit",       "Acknowledge",    "History"};
  static_assert(std::size(kNames) == static_cast<size_t>(Verb::kCount));
  return verb < Verb::kCount ? kNames[static_cast<size_t>(verb)] : "unknown";
}

std::optional<DecodeFailure> DecodeRequest(const void* data, uint32_t words, Request* request) {
  if (DecodePlainInsert(data, words, request)) return std::nullopt;
  request->id = 0;
  try {
    ControlReader reader(data, words);
    Decode(reader.Root<schema::Request>(), request);
    return std::nullopt;
  } catch (const Nonsense& nonsense) {
    return DecodeFailure{false, ErrorCode::kInvalidArgument, nonsense.message};
  } catch (const kj::Exception& exception) {
    return DecodeFailure{true, ErrorCode::kProtocolViolation,
                         std::string("the control message cannot be read: ") + exception.getDescription().cStr()};
  }
}

}  // namespace replay::server
