// The part of codec.h that reads what Update brings, and what requests say about columns.

#include <algorithm>
#include <cmath>

#include "schema/column.h"
#include "server/decode.h"

namespace replay::server {
namespace {

using std::to_string;

void DecodeTags(capnp::List<schema::Tag>::Reader from, const std::string& at, std::vector<NamedTag>* to) {
  if (from.size() > kMaxTags)
    Refuse(at + "tags has " + to_string(from.size()) + " entries: at most " + to_string(kMaxTags) + " are allowed");
  for (const auto& tag : from) {
    const capnp::Text::Reader name = tag.getName();
    NamedTag& added = to->emplace_back(NamedTag{.name = {name.begin(), name.size()}, .value = {}});
    switch (tag.which()) {
      case schema::Tag::TEXT:
        added.value = std::string(tag.getText().begin(), tag.getText().size());
        break;
      case schema::Tag::INTEGER:
        added.value = int64_t{tag.getInteger()};
        break;
      case schema::Tag::REAL:
        added.value = tag.getReal();
        break;
      case schema::Tag::FLAG:
        added.value = tag.getFlag();
        break;
    }
    if (std::string error = CheckTag(added); !error.empty()) Refuse(at + error);
  }
}

ItemUpdate DecodeItemUpdate(schema::ItemUpdate::Reader from, const std::string& at) {
  ItemUpdate to;
  Assign(&to.id, from.getId(), "updates.id", kMaxIdBytes);
  if (to.id.empty()) Refuse(at + "id is empty");
  const auto finite = [&at](const char* field, float value) {
    if (!std::isfinite(value)) Refuse(at + field + " is " + to_string(value) + ": it must be finite");
    return value;
  };
  if (from.getHasPriority()) {
    to.priority = from.getPriority();
    if (!(*to.priority >= 0 && *to.priority <= kMaxPriority))
      Refuse(at + "priority is " + to_string(*to.priority) + ": it must be from 0 to 1e9");
  }
  if (from.getHasReward()) to.reward = finite("reward", from.getReward());
  if (from.getHasAdvantage()) to.advantage = finite("advantage", from.getAdvantage());
  if (from.getHasCorrect()) {
    if (from.getCorrect() > static_cast<uint8_t>(Outcome::kCorrect))
      Refuse(at + "correct is " + to_string(from.getCorrect()) + ": it must be 0 (unknown), 1 (no) or 2 (yes)");
    to.correct = static_cast<Outcome>(from.getCorrect());
  }
  if (from.getHasRevision()) to.revision = from.getRevision();
  if (from.hasTags()) DecodeTags(from.getTags(), at, &to.tags);
  return to;
}

}  // namespace

void DecodeColumnSizes(capnp::List<schema::ColumnSize>::Reader from, size_t count, std::vector<ColumnSize>* to) {
  to->clear();
  if (from.size() > kMaxColumnsPerRequest)
    Refuse("columns has " + to_string(from.size()) + " entries: at most " + to_string(kMaxColumnsPerRequest) + " are allowed");
  uint32_t before = 0;
  for (const auto& column : from) {
    const std::string at = "columns[" + to_string(to->size()) + "].";
    const uint32_t frame = column.getFrame();
    if (frame >= count || frame < before)
      Refuse(at + "frame is " + to_string(frame) + ": it must be below " + to_string(count) + " and, after " +
             to_string(before) + ", not fall");
    if (std::string error = CheckColumnSize(column.getBytes()); !error.empty()) Refuse(at + "bytes " + error);
    to->push_back({frame, column.getBytes()});
    before = frame;
  }
}

void DecodeColumnNames(capnp::List<capnp::Text>::Reader from, std::vector<std::string>* to) {
  if (from.size() > kMaxColumnNamesPerRequest)
    Refuse("columns has " + to_string(from.size()) + " names: at most " + to_string(kMaxColumnNamesPerRequest) +
           " are allowed");
  to->clear();
  for (const auto name : from) {
    std::string text(name.begin(), name.size());
    if (std::string error = ValidateColumnName(text); !error.empty()) Refuse("columns: " + error);
    if (std::find(to->begin(), to->end(), text) != to->end()) Refuse("columns has \"" + text + "\" twice");
    to->push_back(std::move(text));
  }
}

void DecodeUpdate(schema::Update::Reader from, Request* request) {
  Assign(&request->buffer, from.getBuffer(), "buffer", kMaxBufferNameBytes);
  const auto updates = from.getUpdates();
  if (updates.size() == 0 || updates.size() > kMaxIdsPerRequest)
    Refuse("updates has " + to_string(updates.size()) + " entries: it must have 1 to " + to_string(kMaxIdsPerRequest));
  DecodeColumnSizes(from.getColumns(), updates.size(), &request->columns);
  request->updates.clear();
  for (const auto& update : updates) {
    const auto index = static_cast<uint32_t>(request->updates.size());
    const std::string at = "updates[" + to_string(index) + "].";
    const ItemUpdate& to = request->updates.emplace_back(DecodeItemUpdate(update, at));
    const bool has_column = std::any_of(request->columns.begin(), request->columns.end(),
                                        [index](const ColumnSize& column) { return column.frame == index; });
    if (!to.priority && !to.reward && !to.correct && !to.advantage && to.tags.empty() && !has_column)
      Refuse(at + "priority, reward, correct, advantage, tags and columns are all missing: nothing to update");
  }
}

}  // namespace replay::server
