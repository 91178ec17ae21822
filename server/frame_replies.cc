// The replies of codec.h that carry frames: those to Sample and Get.

#include <algorithm>
#include <utility>

#include "server/encode.h"

namespace replay::server {
namespace {

uint32_t TagWords(const NamedTag& tag) {
  const auto* text = std::get_if<std::string>(&tag.value);
  return 5 + TextWords(tag.name) + (text ? TextWords(*text) : 0);
}

void FillTag(const NamedTag& from, schema::Tag::Builder to) {
  SetText(from.name, [&](uint32_t size) { return to.initName(size); });
  if (const auto* text = std::get_if<std::string>(&from.value))
    SetText(*text, [&](uint32_t size) { return to.initText(size); });
  else if (const auto* integer = std::get_if<int64_t>(&from.value))
    to.setInteger(*integer);
  else if (const auto* real = std::get_if<double>(&from.value))
    to.setReal(*real);
  else
    to.setFlag(std::get<bool>(from.value));
}

void FillLateTags(const std::vector<StoredItem>& items, schema::GetReply::Builder to) {
  auto lists = to.initLateTags(static_cast<uint32_t>(items.size()));
  for (uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].late_tags.empty()) continue;
    auto tags = lists[i].initTags(static_cast<uint32_t>(items[i].late_tags.size()));
    for (uint32_t j = 0; j < tags.size(); ++j) FillTag(items[i].late_tags[j], tags[j]);
  }
}

}  // namespace

void ReplyEncoder::Sample(uint64_t id, SampleResult& result, OutputQueue& output) {
  const auto count = static_cast<uint32_t>(result.draws.size());
  const auto frame_count = static_cast<uint32_t>(result.frames.size());
  auto reply = builder_.Start<schema::Reply>(kReplyWords + 1 + 7 * count + frame_count / 2 + 1 +
                                             static_cast<uint32_t>(result.part_counts.size() + result.candidates.size() +
                                                                   result.unit_sizes.size() / 2 + 1 + result.columns.size()));
  reply.setId(id);
  auto sample = reply.initSample();
  sample.setStep(result.step);
  sample.setWithheld(result.withheld);
  sample.setPlanned(result.planned);
  auto draws = sample.initDraws(count);
  for (uint32_t i = 0; i < count; ++i) {
    const DrawnItem& from = result.draws[i];
    auto draw = draws[i];
    draw.setFrame(from.frame);
    draw.setDrawCount(from.draw_count);
    draw.setProbability(from.probability);
    draw.setStaleness(from.staleness);
    draw.setStepsSinceLastUse(from.steps_since_last_use);
    draw.setItem(from.item);
    draw.setReward(from.reward);
    draw.setRevision(from.revision);
    draw.setAdvantage(from.advantage.value_or(0));
    draw.setHasAdvantage(from.advantage.has_value());
  }
  if (!result.part_counts.empty()) {
    auto counts = sample.initPartCounts(static_cast<uint32_t>(result.part_counts.size()));
    for (uint32_t i = 0; i < counts.size(); ++i) counts.set(i, result.part_counts[i]);
  }
  auto candidates = sample.initCandidates(static_cast<uint32_t>(result.candidates.size()));
  for (uint32_t i = 0; i < candidates.size(); ++i) candidates.set(i, result.candidates[i]);
  if (!result.unit_sizes.empty()) {
    auto sizes_of = sample.initUnitSizes(static_cast<uint32_t>(result.unit_sizes.size()));
    for (uint32_t i = 0; i < sizes_of.size(); ++i) sizes_of.set(i, result.unit_sizes[i]);
  }
  sample.setLease(result.lease);
  auto sizes = sample.initFrameBytes(frame_count);
  uint64_t payload_bytes = 0;
  for (uint32_t i = 0; i < frame_count; ++i) {
    sizes.set(i, static_cast<uint32_t>(result.frames[i].size()));
    payload_bytes += result.frames[i].size();
  }
  if (!result.columns.empty())
    payload_bytes += FillColumns(result.columns, [&](uint32_t size) { return sample.initColumns(size); });
  Send(builder_, payload_bytes, output);
  for (Frame& frame : result.frames) output.AddFrame(std::move(frame));
  for (ColumnOf& each : result.columns) output.AddFrame(std::move(each.column));
  result.frames.clear();
  result.columns.clear();
}

void ReplyEncoder::Get(uint64_t id, std::vector<StoredItem>& items, std::span<const uint32_t> found, bool more,
                       OutputQueue& output) {
  const auto count = static_cast<uint32_t>(items.size());
  // Numbers, draw counts, sizes, rewards, revisions, found, late tags: 5 words an item at most, with the lists' own.
  uint32_t words = kReplyWords + 5 * (count + 2);
  std::vector<ColumnOf> columns;
  bool any_tags = false;
  for (uint32_t i = 0; i < count; ++i) {
    for (Frame& column : items[i].columns) columns.push_back({i, std::move(column)});
    for (const NamedTag& tag : items[i].late_tags) words += TagWords(tag);
    if (!items[i].late_tags.empty()) words += 1;
    any_tags |= !items[i].late_tags.empty();
  }
  words += static_cast<uint32_t>(columns.size()) + 1;
  auto reply = builder_.Start<schema::Reply>(words);
  reply.setId(id);
  auto get = reply.initGet();
  auto indexes = get.initFound(static_cast<uint32_t>(found.size()));
  for (uint32_t i = 0; i < found.size(); ++i) indexes.set(i, found[i]);
  auto numbers = get.initItems(count);
  auto draw_counts = get.initDrawCounts(count);
  auto sizes = get.initFrameBytes(count);
  auto rewards = get.initRewards(count);
  auto revisions = get.initRevisions(count);
  get.setMore(more);
  uint64_t payload_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    numbers.set(i, items[i].item);
    draw_counts.set(i, items[i].draw_count);
    sizes.set(i, static_cast<uint32_t>(items[i].frame.size()));
    rewards.set(i, items[i].reward);
    revisions.set(i, items[i].revision);
    payload_bytes += items[i].frame.size();
  }
  if (!columns.empty()) payload_bytes += FillColumns(columns, [&](uint32_t size) { return get.initColumns(size); });
  if (any_tags) FillLateTags(items, get);
  Send(builder_, payload_bytes, output);
  for (StoredItem& item : items) output.AddFrame(std::move(item.frame));
  for (ColumnOf& each : columns) output.AddFrame(std::move(each.column));
}

}  // namespace replay::server
