// What a Buffer does with what is not in its core frames: columns, and the advantage and tags that come later.

#include <algorithm>
#include <utility>

#include "schema/column.h"
#include "server/buffer_state.h"
#include "server/frame_note.h"

namespace replay::server {

using std::to_string;

uint64_t StoredItem::payload_bytes() const {
  uint64_t bytes = frame.size();
  for (const Frame& column : columns) bytes += column.size();
  return bytes;
}

StoredItem Buffer::State::Stored(uint32_t slot, std::span<const std::string> column_names) const {
  const Item& item = items[slot];
  const auto tags = late_tags.Of(slot);
  StoredItem shown{.frame = FrameOf(slot),
                   .item = item.number,
                   .draw_count = item.draws,
                   .reward = item.reward,
                   .revision = items.revision(slot),
                   .late_tags = {tags.begin(), tags.end()},
                   .columns = {}};
  for (const std::string& each : column_names)
    if (const Frame* column = columns.Find(slot, each)) shown.columns.push_back(*column);
  return shown;
}

uint64_t Buffer::State::PlaceColumns(const SampleRequest& request, SampleResult* result) const {
  for (uint32_t frame = 0; frame < batch_slots.size(); ++frame)
    columns.Collect(batch_slots[frame], frame, request.columns, &result->columns);
  uint64_t bytes = 0;
  for (const ColumnOf& each : result->columns) bytes += each.column.size();
  return bytes;
}

void Buffer::State::WriteLate(uint32_t slot, const ItemUpdate& update) {
  if (update.advantage) items.SetAdvantage(slot, *update.advantage);
  for (const Frame& column : update.columns) columns.Put(slot, column);
  if (!update.columns.empty() && items[slot].number <= spilled_through) late_columns.emplace_back(slot, items[slot].number);
  late_tags.Put(slot, update.tags);
}

std::string Buffer::WhyUpdateRefused(std::span<const ItemUpdate> updates) const {
  const State& s = *state_;
  std::vector<Frame> all_columns;
  for (size_t i = 0; i < updates.size(); ++i) {
    const ItemUpdate& update = updates[i];
    if (update.tags.empty() && update.columns.empty()) continue;
    const uint32_t slot = s.items.Find(HashId(update.id));
    if (slot == kNoSlot) continue;
    const std::string at = "updates[" + to_string(i) + "]: ";
    // Also those that come before it in the request.
    std::vector<NamedTag> tags;
    for (size_t j = 0; j <= i && !update.tags.empty(); ++j)
      if (updates[j].id == update.id) tags.insert(tags.end(), updates[j].tags.begin(), updates[j].tags.end());
    if (std::string why = s.late_tags.WhyRefused(slot, tags); !why.empty()) return at + why;
    const uint32_t token_count = s.items[slot].token_count;
    for (const Frame& frame : update.columns) {
      FrameColumn column;
      ReadColumn(frame.bytes(), /*check_checksum=*/false, &column);
      if (column.alignment != FrameColumn::Alignment::kRow && column.token_count != token_count)
        return at + "column \"" + std::string(column.name) + "\" has " + to_string(column.token_count) +
               " tokens, the item has " + to_string(token_count) + ": they must agree";
      all_columns.push_back(frame);
    }
    const uint64_t bytes = s.BytesOf(s.store.SizeOf(s.items[slot].place), 1) + s.columns.HeldBytesWith(slot, update.columns) +
                           s.late_tags.HeldBytesWith(slot, tags);
    if (!s.retention.Fits(1, bytes))
      return at + "the item would take " + to_string(bytes) + " bytes with its columns and tags, capacity_bytes is " +
             to_string(s.options.capacity_bytes);
  }
  return s.columns.WhyRefused(all_columns);
}

uint64_t Buffer::Spill(uint64_t bytes, uint64_t written) {
  State& s = *state_;
  uint64_t gone = 0;
  if (written == 0) return 0;
  std::erase_if(s.late_columns, [&](const std::pair<uint32_t, uint64_t>& late) {
    bool left = false;
    if (s.items[late.first].number == late.second) gone += s.columns.Spill(late.first, written, &left);
    return !left;
  });
  uint32_t last = kNoSlot;
  for (uint32_t slot = s.items.FirstAfter(s.spilled_through); slot != kNoSlot && gone < bytes; slot = s.items[slot].newer) {
    Item& item = s.items[slot];
    const Frame& frame = s.store.Find(item.place);
    bool left = !frame.is_absent() && frame.number() > written;
    if (!frame.is_absent() && !left) {
      gone += frame.size();
      s.store.Spill(&item.place, MakeAbsent(frame, item.has_tags));
    }
    gone += s.columns.Spill(slot, written, &left);
    if (left) break;
    s.spilled_through = item.number;
    last = slot;
  }
  if (last != kNoSlot) s.items.RememberPage(s.spilled_through, last);
  if (gone < bytes) s.plans.Spill(written);
  return gone;
}

uint64_t Buffer::frame_bytes() const { return state_->store.frame_bytes() + state_->columns.bytes(); }

uint64_t Buffer::resident_bytes() const {
  const State& s = *state_;
  return s.store.frame_bytes() - s.store.spilled_bytes() + s.columns.bytes() - s.columns.spilled_bytes();
}

}  // namespace replay::server
