#include "server/columns.h"

#include <algorithm>

#include "server/check.h"
#include "server/frame_note.h"
#include "server/requests_archive.h"

namespace replay::server {

uint32_t Columns::Look(std::string_view name) const {
  for (uint32_t number = 0; number < names_.size(); ++number)
    if (names_[number].columns > 0 && names_[number].text == name) return number;
  return kNoName;
}

void Columns::Put(uint32_t slot, Frame column) {
  const std::string_view name = NameOf(column);
  uint32_t number = Look(name);
  if (number == kNoName) {
    const auto unused = std::find_if(names_.begin(), names_.end(), [](const Name& each) { return each.columns == 0; });
    number = static_cast<uint32_t>(unused - names_.begin());
    if (unused == names_.end()) names_.emplace_back();
    names_[number].text = name;
  }
  if (column.is_absent()) column = MakeAbsent(column);  // Its name is known now.
  std::vector<Entry>& entries = by_slot_[slot];
  const auto same = std::find_if(entries.begin(), entries.end(), [number](const Entry& entry) { return entry.name == number; });
  held_bytes_ += column.size();
  if (column.is_absent()) spilled_bytes_ += column.size();
  if (same != entries.end()) {
    held_bytes_ -= same->column.size();
    if (same->column.is_absent()) spilled_bytes_ -= same->column.size();
    same->column = std::move(column);
    return;
  }
  entries.push_back({std::move(column), number});
  held_bytes_ += Frame::kOverheadBytes;
  ++names_[number].columns;
  ++count_;
}

uint64_t Columns::Spill(uint32_t slot, uint64_t written, bool* left) {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return 0;
  uint64_t bytes = 0;
  for (Entry& entry : found->second) {
    if (entry.column.is_absent()) continue;
    if (entry.column.number() > written) {
      *left = true;
      continue;
    }
    bytes += entry.column.size();
    spilled_bytes_ += entry.column.size();
    entry.column = MakeAbsent(entry.column);
  }
  return bytes;
}

void Columns::RemoveAll(uint32_t slot) {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return;
  for (const Entry& entry : found->second) {
    --names_[entry.name].columns;
    held_bytes_ -= entry.column.size() + Frame::kOverheadBytes;
    if (entry.column.is_absent()) spilled_bytes_ -= entry.column.size();
  }
  count_ -= found->second.size();
  by_slot_.erase(found);
}

const Frame* Columns::Find(uint32_t slot, std::string_view name) const {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return nullptr;
  for (const Entry& entry : found->second)
    if (names_[entry.name].text == name) return &entry.column;
  return nullptr;
}

void Columns::Collect(uint32_t slot, uint32_t frame, std::span<const std::string> names, std::vector<ColumnOf>* to) const {
  for (const std::string& name : names)
    if (const Frame* column = Find(slot, name)) to->push_back({frame, *column});
}

uint64_t Columns::HeldBytesWith(uint32_t slot, std::span<const Frame> columns) const {
  uint64_t bytes = 0;
  for (const Frame& column : columns) bytes += column.size() + Frame::kOverheadBytes;
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return bytes;
  for (const Entry& entry : found->second) {
    const bool replaced = std::any_of(columns.begin(), columns.end(),
                                      [&](const Frame& column) { return NameOf(column) == names_[entry.name].text; });
    if (!replaced) bytes += entry.column.size() + Frame::kOverheadBytes;
  }
  return bytes;
}

std::string Columns::WhyTooMany(std::vector<std::string_view> names) const {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const auto added = std::count_if(names.begin(), names.end(), [this](std::string_view name) { return Look(name) == kNoName; });
  const auto known = std::count_if(names_.begin(), names_.end(), [](const Name& name) { return name.columns > 0; });
  if (added == 0 || added + known <= int64_t{kMaxColumnNames}) return "";
  return "the columns have " + std::to_string(added) + " names that are new to the buffer, which has " + std::to_string(known) +
         ": at most " + std::to_string(kMaxColumnNames) + " different ones are allowed";
}

std::string Columns::WhyRefused(std::span<const Frame> columns) const {
  std::vector<std::string_view> names;
  for (const Frame& column : columns) names.push_back(NameOf(column));
  return WhyTooMany(std::move(names));
}

std::string Columns::WhyRefused(std::span<const ColumnOf> columns) const {
  std::vector<std::string_view> names;
  for (const ColumnOf& each : columns) names.push_back(NameOf(each.column));
  return WhyTooMany(std::move(names));
}

std::vector<std::pair<std::string, uint64_t>> Columns::CountsByName() const {
  std::vector<std::pair<std::string, uint64_t>> counts;
  for (const Name& name : names_)
    if (name.columns > 0) counts.emplace_back(name.text, name.columns);
  std::sort(counts.begin(), counts.end());
  return counts;
}

uint64_t Columns::memory_bytes() const {
  constexpr uint64_t kNodeBytes =
      sizeof(void*) + sizeof(std::pair<const uint32_t, std::vector<Entry>>) + 16;  // malloc's header
  uint64_t bytes = by_slot_.bucket_count() * sizeof(void*) + by_slot_.size() * kNodeBytes + names_.capacity() * sizeof(Name);
  for (const auto& [slot, entries] : by_slot_) bytes += entries.capacity() * sizeof(Entry) + 16;
  return bytes;
}

void Columns::Persist(Archive& archive) {
  archive(names_, count_, held_bytes_);
  PersistBySlot(archive, by_slot_);
  if (!archive.loading()) return;
  for (const auto& [slot, entries] : by_slot_)
    for (const Entry& entry : entries) spilled_bytes_ += entry.column.is_absent() ? entry.column.size() : 0;
}

void Columns::CheckInvariants() const {
  uint64_t count = 0, bytes = 0, spilled = 0;
  std::vector<uint64_t> by_name(names_.size());
  for (const auto& [slot, entries] : by_slot_) {
    CHECK(!entries.empty()) << "slot " << slot;
    for (const Entry& entry : entries) {
      CHECK(entry.column.is_absent() || NameOf(entry.column) == names_[entry.name].text) << "slot " << slot;
      ++by_name[entry.name];
      bytes += entry.column.size();
      spilled += entry.column.is_absent() ? entry.column.size() : 0;
    }
    count += entries.size();
  }
  CHECK(spilled == spilled_bytes_) << spilled << " bytes spilled, counted " << spilled_bytes_;
  CHECK(count == count_ && bytes == this->bytes()) << count << " columns of " << bytes << " bytes";
  for (size_t i = 0; i < by_name.size(); ++i) CHECK(by_name[i] == names_[i].columns) << names_[i].text;
}

}  // namespace replay::server
