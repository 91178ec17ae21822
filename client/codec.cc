#include "client/codec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "client/request_builder.h"
#include "client/trajectory.h"
#include "schema/names.h"

namespace replay {
namespace {

static_assert(static_cast<int>(ErrorCode::kStorageFailed) == static_cast<int>(schema::ErrorCode::STORAGE_FAILED));
static_assert(static_cast<int>(WaitReason::kVersion) == static_cast<int>(schema::WaitReason::VERSION));

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

uint32_t NameWords(std::span<const std::string> names) {
  uint32_t words = 1;
  for (const std::string& name : names) words += 1 + TextWords(name);
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

Frame EncodeDropBuffer(const RequestHead& head, std::string_view name) {
  return BuildRequest(head, TextWords(name),
                      [&](schema::Request::Builder request) { request.initDropBuffer().setName(AsText(std::string(name))); });
}

Frame EncodeSample(const RequestHead& head, std::string_view buffer, const SampleOptions& options) {
  uint32_t words = TextWords(buffer) + TextWords(options.view) + TextWords(options.consumer) + 1 + NameWords(options.columns);
  for (const SamplePart& part : options.parts) words += 6 + TextWords(part.view) + TextWords(part.buffer);
  return BuildRequest(head, words, [&](schema::Request::Builder request) {
    auto sample = request.initSample();
    sample.setBuffer(AsText(std::string(buffer)));
    sample.setCount(options.parts.empty() ? options.count : 0);
    sample.setStep(options.step.value_or(0));
    sample.setHasStep(options.step.has_value());
    sample.setGivenBack(options.given_back);
    sample.setMaxStaleness(options.max_staleness.value_or(0));
    sample.setHasMaxStaleness(options.max_staleness.has_value());
    if (!options.view.empty()) sample.setView(AsText(options.view));
    if (!options.columns.empty()) FillIds(options.columns, sample.initColumns(static_cast<unsigned>(options.columns.size())));
    if (!options.consumer.empty()) sample.setConsumer(AsText(options.consumer));
    if (!options.consumer.empty() || options.world_size != 1 || options.rank != 0) {
      sample.setRank(options.rank);
      sample.setWorldSize(options.world_size);
    }
    if (options.parts.empty()) return;
    auto parts = sample.initParts(static_cast<unsigned>(options.parts.size()));
    for (unsigned i = 0; i < parts.size(); ++i) {
      const SamplePart& part = options.parts[i];
      parts[i].setCount(part.count);
      parts[i].setView(AsText(part.view));
      parts[i].setMaxStaleness(part.max_staleness.value_or(0));
      parts[i].setHasMaxStaleness(part.max_staleness.has_value());
      parts[i].setMinStaleness(part.min_staleness);
      parts[i].setOrNext(part.or_next);
      if (!part.buffer.empty()) parts[i].setBuffer(AsText(part.buffer));
    }
  });
}

Result<Frame> EncodeGet(const RequestHead& head, std::string_view buffer, std::span<const std::string> ids,
                        std::span<const std::string> columns) {
  const Result<uint32_t> words = IdWords(ids);
  if (!words) return words.error();
  if (ids.empty()) return Refuse("ids is empty: name at least one trajectory");
  return BuildRequest(head, TextWords(buffer) + *words + NameWords(columns), [&](schema::Request::Builder request) {
    auto get = request.initGet();
    get.setBuffer(AsText(std::string(buffer)));
    if (!columns.empty()) FillIds(columns, get.initColumns(static_cast<unsigned>(columns.size())));
    FillIds(ids, get.initIds(static_cast<unsigned>(ids.size())));
  });
}

Frame EncodeScan(const RequestHead& head, std::string_view buffer, uint64_t after, uint32_t limit,
                 std::span<const std::string> columns) {
  return BuildRequest(head, TextWords(buffer) + NameWords(columns), [&](schema::Request::Builder request) {
    auto get = request.initGet();
    if (!columns.empty()) FillIds(columns, get.initColumns(static_cast<unsigned>(columns.size())));
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

Result<Frame> EncodeHistory(const RequestHead& head, std::string_view buffer, std::string_view source, int64_t after,
                            uint32_t limit) {
  if (source.size() > kMaxIdBytes)
    return Refuse("source has " + std::to_string(source.size()) + " bytes: at most " + std::to_string(kMaxIdBytes) +
                  " are allowed");
  return BuildRequest(head, TextWords(buffer) + TextWords(source), [&](schema::Request::Builder request) {
    auto history = request.initHistory();
    history.setBuffer(AsText(std::string(buffer)));
    history.setSource(AsText(std::string(source)));
    history.setAfterIndex(after);
    history.setLimit(limit);
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

std::string CheckLevel(std::string_view level) {
  if (level.empty()) return "";
  const Result<uint16_t> number = ParseEnum("level", level, kLevelNames);
  return number ? "" : number.error().message;
}

std::span<const uint8_t> EncodeInsert(ControlBuilder& builder, const RequestHead& head, const InsertHead& insert,
                                      std::span<const Frame> frames, std::span<const EncodedColumn> columns) {
  auto request = builder.Start<schema::Request>(kFixedWords + TextWords(insert.buffer) +
                                                static_cast<uint32_t>(frames.size() / 2 + 1 + columns.size()));
  request.setId(head.id);
  request.setTimeoutMs(head.timeout_ms);
  auto to = request.initInsert();
  to.setBuffer(AsText(std::string(insert.buffer)));
  to.setWriterHigh(insert.writer.high);
  to.setWriterLow(insert.writer.low);
  to.setSequence(insert.sequence);
  to.setAcknowledgedThrough(insert.acknowledged_through);
  to.setPartial(insert.partial);
  if (!insert.level.empty()) {
    to.setHasLevel(true);
    const Result<uint16_t> number = ParseEnum("level", insert.level, kLevelNames);  // It passed CheckLevel.
    to.setLevel(static_cast<schema::AcknowledgementLevel>(*number));
  }
  auto sizes = to.initFrameBytes(static_cast<unsigned>(frames.size()));
  uint64_t payload_bytes = 0;
  for (unsigned i = 0; i < sizes.size(); ++i) {
    sizes.set(i, static_cast<uint32_t>(frames[i].size()));
    payload_bytes += frames[i].size();
  }
  if (!columns.empty()) FillColumnSizes(columns, to.initColumns(static_cast<unsigned>(columns.size())));
  for (const EncodedColumn& each : columns) payload_bytes += each.column.size();
  return builder.Finish(payload_bytes);
}

}  // namespace replay
