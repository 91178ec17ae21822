#include "server/receipts.h"

#include <algorithm>
#include <vector>

#include "server/check.h"
#include "server/slot_index.h"
#include "storage/segmented_array.h"

namespace replay::server {
namespace {

struct Entry {
  uint64_t sequence;
  uint64_t first_item;
  uint32_t count;
  uint32_t fingerprint;
  void Persist(Archive& archive) { archive(sequence, first_item, count, fingerprint); }
};

struct Writer {
  Key128 key;
  uint64_t acknowledged = 0;
  std::vector<Entry> entries;  // By sequence; those before `begin` are acknowledged and wait to be cut off together.
  size_t begin = 0;
  uint32_t less_recent = kNoSlot;
  uint32_t more_recent = kNoSlot;  // Of a free slot: the next free one.

  uint64_t size() const { return entries.size() - begin; }
};

constexpr size_t kKeptCapacity = 64;  // A writer that is idle keeps room for this many.

}  // namespace

struct Receipts::Tables {
  uint32_t max_writers;
  uint32_t max_per_writer;
  uint64_t max_receipts;
  SegmentedArray<Writer, 256> writers;
  SlotIndex index;
  uint32_t slot_count = 0;
  uint32_t free = kNoSlot;
  uint32_t most_recent = kNoSlot;
  uint32_t least_recent = kNoSlot;
  uint64_t receipts = 0;
  uint64_t entry_capacity = 0;  // of all writers

  uint32_t Find(const Key128& key) const {
    if (most_recent != kNoSlot && writers[most_recent].key == key) return most_recent;  // As in each Record after its Look.
    return index.Find(SlotIndex::Hash(key), [&](uint32_t slot) { return writers[slot].key == key; });
  }

  void Unlink(uint32_t slot) {
    Writer& writer = writers[slot];
    (writer.less_recent == kNoSlot ? least_recent : writers[writer.less_recent].more_recent) = writer.more_recent;
    (writer.more_recent == kNoSlot ? most_recent : writers[writer.more_recent].less_recent) = writer.less_recent;
  }

  void LinkAsMostRecent(uint32_t slot) {
    Writer& writer = writers[slot];
    writer.less_recent = most_recent;
    writer.more_recent = kNoSlot;
    (most_recent == kNoSlot ? least_recent : writers[most_recent].more_recent) = slot;
    most_recent = slot;
  }

  void Forget(uint32_t slot) {
    Writer& writer = writers[slot];
    index.Erase(SlotIndex::Hash(writer.key), slot);
    Unlink(slot);
    receipts -= writer.size();
    entry_capacity -= writer.entries.capacity();
    writer = Writer();
    writer.more_recent = free;
    free = slot;
  }

  uint32_t Add(const Key128& key) {
    if (index.size() >= max_writers) Forget(least_recent);
    uint32_t slot = free;
    if (slot != kNoSlot) {
      free = writers[slot].more_recent;
    } else {
      slot = slot_count++;
      writers.Reserve(slot_count);
    }
    writers[slot].key = key;
    index.Insert(SlotIndex::Hash(key), slot);
    LinkAsMostRecent(slot);
    return slot;
  }

  void Acknowledge(Writer* writer, uint64_t through) {
    if (through <= writer->acknowledged) return;
    writer->acknowledged = through;
    std::vector<Entry>& entries = writer->entries;
    while (writer->begin < entries.size() && entries[writer->begin].sequence <= through) {
      ++writer->begin;
      --receipts;
    }
    if (writer->begin == 0 || writer->begin < writer->size()) return;  // Moving the rest then costs O(1) for each cut off.
    entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(writer->begin));
    writer->begin = 0;
    if (entries.empty() && entries.capacity() > kKeptCapacity) {
      entry_capacity -= entries.capacity();
      entries = std::vector<Entry>();
    }
  }
};

Receipts::Receipts(uint32_t max_writers, uint32_t max_receipts_per_writer, uint64_t max_receipts)
    : tables_(new Tables{max_writers, max_receipts_per_writer, max_receipts, {}, {}}) {
  CHECK(max_writers > 0 && max_receipts_per_writer > 0 && max_receipts >= max_receipts_per_writer);
}
Receipts::~Receipts() = default;

Receipts::Answer Receipts::Look(Key128 key, uint64_t sequence, uint64_t acknowledged_through, Receipt* receipt, bool* changed) {
  Tables& tables = *tables_;
  uint32_t slot = tables.Find(key);
  if (slot == kNoSlot) {
    if (sequence != 1) return Answer::kExpired;
    slot = tables.Add(key);
    if (changed) *changed = true;
  } else if (slot != tables.most_recent) {
    if (changed) *changed = true;
    tables.Unlink(slot);
    tables.LinkAsMostRecent(slot);
  }
  Writer& writer = tables.writers[slot];
  if (changed && acknowledged_through > writer.acknowledged) *changed = true;
  tables.Acknowledge(&writer, acknowledged_through);
  if (sequence <= writer.acknowledged) return Answer::kExpired;
  if (sequence - writer.acknowledged > tables.max_per_writer) return Answer::kTooMany;
  const auto first = writer.entries.begin() + static_cast<std::ptrdiff_t>(writer.begin);
  if (first == writer.entries.end() || writer.entries.back().sequence < sequence) return Answer::kNew;
  const auto at = std::lower_bound(first, writer.entries.end(), sequence,
                                   [](const Entry& entry, uint64_t wanted) { return entry.sequence < wanted; });
  if (at->sequence != sequence) return Answer::kNew;
  *receipt = {at->first_item, at->count, at->fingerprint};
  return Answer::kDuplicate;
}

bool Receipts::Has(Key128 key, uint64_t sequence) const {
  const uint32_t slot = tables_->Find(key);
  if (slot == kNoSlot) return false;
  const Writer& writer = tables_->writers[slot];
  return std::binary_search(writer.entries.begin() + static_cast<std::ptrdiff_t>(writer.begin), writer.entries.end(),
                            Entry{sequence, 0, 0, 0}, [](const Entry& a, const Entry& b) { return a.sequence < b.sequence; });
}

void Receipts::Record(Key128 key, uint64_t sequence, const Receipt& receipt) {
  Tables& tables = *tables_;
  const uint32_t slot = tables.Find(key);
  CHECK(slot != kNoSlot) << "Record without Look";
  Writer& writer = tables.writers[slot];
  std::vector<Entry>& entries = writer.entries;
  const Entry entry{sequence, receipt.first_item, receipt.count, receipt.fingerprint};
  tables.entry_capacity -= entries.capacity();
  if (writer.begin == entries.size() || entries.back().sequence < sequence) [[likely]] {
    entries.push_back(entry);
  } else {
    auto at = entries.end();
    while (at != entries.begin() + static_cast<std::ptrdiff_t>(writer.begin) && std::prev(at)->sequence > sequence) --at;
    entries.insert(at, entry);
  }
  tables.entry_capacity += entries.capacity();
  ++tables.receipts;
  while (tables.receipts > tables.max_receipts) tables.Forget(tables.least_recent);
}

uint64_t Receipts::writer_count() const { return tables_->index.size(); }
uint64_t Receipts::receipt_count() const { return tables_->receipts; }

// The writers, the least recent first; of each what is not acknowledged.
void Receipts::Persist(Archive& archive) {
  Tables& tables = *tables_;
  if (!archive.loading()) {
    archive.Count(writer_count());
    for (uint32_t slot = tables.least_recent; slot != kNoSlot; slot = tables.writers[slot].more_recent) {
      Writer& writer = tables.writers[slot];
      archive(writer.key, writer.acknowledged);
      archive.Count(writer.size());
      for (size_t i = writer.begin; i < writer.entries.size(); ++i) archive(writer.entries[i]);
    }
    return;
  }
  for (uint64_t left = archive.Count(0); left > 0 && !archive.failed(); --left) {
    Key128 key;
    archive(key);
    Writer& writer = tables.writers[tables.Add(key)];
    archive(writer.acknowledged, writer.entries);
    tables.receipts += writer.entries.size();
    tables.entry_capacity += writer.entries.capacity();
  }
}

uint64_t Receipts::memory_bytes() const {
  return tables_->writers.memory_bytes() + tables_->index.memory_bytes() + tables_->entry_capacity * sizeof(Entry);
}

}  // namespace replay::server
