// The part of codec.h that builds an Update: what is known later than the insert.

#include <cmath>
#include <utility>

#include "client/request_builder.h"
#include "client/tag_codec.h"
#include "schema/tags.h"

namespace replay {
namespace {

std::string CheckUpdate(const ItemUpdate& update) {
  if (update.trajectory_id.empty() || update.trajectory_id.size() > kMaxIdBytes)
    return "trajectory_id has " + std::to_string(update.trajectory_id.size()) + " bytes: it must have 1 to " +
           std::to_string(kMaxIdBytes);
  if (update.priority && !(*update.priority >= 0 && *update.priority <= kMaxPriority))
    return "priority is " + std::to_string(*update.priority) + ": it must be from 0 to 1e9";
  if (update.reward && !std::isfinite(*update.reward))
    return "reward is " + std::to_string(*update.reward) + ": it must be finite";
  if (update.advantage && !std::isfinite(*update.advantage))
    return "advantage is " + std::to_string(*update.advantage) + ": it must be finite";
  if (update.tags.size() > kMaxTags)
    return "tags has " + std::to_string(update.tags.size()) + " entries: at most " + std::to_string(kMaxTags) + " are allowed";
  for (const auto& [name, value] : update.tags)
    if (std::string error = CheckTag({name, value}); !error.empty()) return error;
  if (!update.priority && !update.reward && !update.correct && !update.advantage && update.tags.empty() &&
      update.columns.empty())
    return "priority, reward, correct, advantage, tags and columns are all missing: nothing to update";
  return "";
}

void FillUpdate(const ItemUpdate& from, schema::ItemUpdate::Builder to) {
  to.setId(AsText(from.trajectory_id));
  to.setHasPriority(from.priority.has_value());
  to.setPriority(from.priority.value_or(0));
  to.setHasReward(from.reward.has_value());
  to.setReward(from.reward.value_or(0));
  to.setHasCorrect(from.correct.has_value());
  to.setCorrect(static_cast<uint8_t>(from.correct.value_or(Correctness::kUnknown)));
  to.setHasRevision(from.revision.has_value());
  to.setRevision(from.revision.value_or(0));
  to.setHasAdvantage(from.advantage.has_value());
  to.setAdvantage(from.advantage.value_or(0));
  if (from.tags.empty()) return;
  auto tags = to.initTags(static_cast<unsigned>(from.tags.size()));
  std::string scratch;
  for (unsigned i = 0; i < tags.size(); ++i) {
    tags[i].setName(AsText(from.tags[i].first));
    FillTag(from.tags[i].second, scratch, tags[i]);
  }
}

}  // namespace

Result<EncodedUpdate> EncodeUpdate(const RequestHead& head, std::string_view buffer, std::span<const ItemUpdate> updates) {
  if (updates.empty() || updates.size() > kMaxIdsPerRequest)
    return Refuse("updates has " + std::to_string(updates.size()) + " entries: it must have 1 to " +
                  std::to_string(kMaxIdsPerRequest));
  uint64_t words = 2, payload_bytes = 0;  // the tags of the lists
  std::vector<EncodedColumn> columns;
  for (size_t i = 0; i < updates.size(); ++i) {
    const ItemUpdate& update = updates[i];
    std::string error = CheckUpdate(update);
    if (error.empty()) error = EncodeColumns(update.columns, update.trajectory_id, static_cast<uint32_t>(i), &columns);
    if (!error.empty()) return Refuse("updates[" + std::to_string(i) + "]." + error);
    words += 6 + TextWords(update.trajectory_id);
    for (const auto& [name, value] : update.tags) {
      const auto* text = std::get_if<std::string>(&value);
      words += 5 + TextWords(name) + (text ? TextWords(*text) : 0);
    }
  }
  words += columns.size();
  for (const EncodedColumn& each : columns) payload_bytes += each.column.size();
  if (columns.size() > kMaxColumnsPerRequest)
    return Refuse("the updates have " + std::to_string(columns.size()) + " columns: at most " +
                  std::to_string(kMaxColumnsPerRequest) + " are allowed in a call");
  if (payload_bytes > kMaxRequestPayloadBytes)
    return Refuse("the columns have " + std::to_string(payload_bytes) + " bytes: at most " +
                  std::to_string(kMaxRequestPayloadBytes) + " are allowed in a call");
  if (const uint64_t bytes = 8 * (kFixedWords + TextWords(buffer) + words); bytes > kMaxRequestControlBytes)
    return Refuse("ids and tags of the updates take " + std::to_string(bytes) + " bytes: at most " +
                  std::to_string(kMaxRequestControlBytes) + " are allowed in a call, send fewer at once");
  EncodedUpdate encoded;
  const auto fill = [&](schema::Request::Builder request) {
    auto update = request.initUpdate();
    update.setBuffer(AsText(std::string(buffer)));
    auto list = update.initUpdates(static_cast<unsigned>(updates.size()));
    for (unsigned i = 0; i < list.size(); ++i) FillUpdate(updates[i], list[i]);
    if (!columns.empty()) FillColumnSizes(columns, update.initColumns(static_cast<unsigned>(columns.size())));
  };
  encoded.control = BuildRequest(head, TextWords(buffer) + static_cast<uint32_t>(words), fill, payload_bytes);
  for (EncodedColumn& each : columns) encoded.columns.push_back(std::move(each.column));
  return encoded;
}

}  // namespace replay
