#include "server/kept_buffers.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "server/archive.h"
#include "server/check.h"

namespace replay::server {

using std::to_string;

namespace {

constexpr uint64_t kPartBytes = 1u << 20;
constexpr uint64_t kRangeFrom = 32;  // So many rows in a row are deleted as a range, which each read has to look at.

std::string Key(uint64_t id) { return BigEndian(id); }
std::string Key(uint64_t id, uint64_t number) { return BigEndian(id) + BigEndian(number); }
std::string Key(uint64_t id, uint64_t number, uint64_t part) { return BigEndian(id) + BigEndian(number) + BigEndian(part); }

uint64_t ChecksumOf(std::string_view bytes) { return Checksum({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}); }

StorageError Damaged(const std::string& what) { return {StorageProblem::kIo, what}; }

struct Head {
  uint64_t generation = 0, first_record = 0;
  uint32_t parts = 0;
  uint64_t bytes = 0, checksum = 0;
  void Persist(Archive& archive) { archive(generation, first_record, parts, bytes, checksum); }
};

void AddNumber(std::vector<std::pair<uint64_t, uint64_t>>* ranges, uint64_t number) {
  if (!ranges->empty() && ranges->back().second == number)
    ++ranges->back().second;
  else
    ranges->emplace_back(number, number + 1);
}

// Sorted.
std::vector<uint64_t> EachOnce(std::vector<uint64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::pair<uint64_t, uint64_t>> RangesOf(std::span<const uint64_t> numbers) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const uint64_t number : numbers) AddNumber(&ranges, number);
  return ranges;
}

// What `numbers`, sorted, leave of the ranges goes; `gone`: the ranges of that which are long.
void DeleteOthers(uint64_t id, std::span<const std::pair<uint64_t, uint64_t>> ranges, std::span<const uint64_t> numbers,
                  Database::Batch* batch, std::vector<std::pair<uint64_t, uint64_t>>* gone) {
  const auto remove = [&](uint64_t begin, uint64_t end) {
    if (begin < end && end - begin >= kRangeFrom) {
      gone->emplace_back(begin, end);
      return batch->DeleteRange(Rows::kFrames, Key(id, begin), Key(id, end));
    }
    for (; begin < end; ++begin) batch->Delete(Rows::kFrames, Key(id, begin));
  };
  auto kept = numbers.begin();
  for (const auto& [first, end] : ranges) {
    uint64_t begin = first;
    for (; kept != numbers.end() && *kept < end; ++kept) {
      remove(begin, *kept);
      begin = *kept + 1;
    }
    remove(begin, end);
  }
}

}  // namespace

// The frames of one buffer, without their bytes; notes which were asked for.
class KeptBuffers::Frames : public FrameSource {
 public:
  void Begin() { numbers_.clear(); }
  Frame Fetch(uint64_t number, uint32_t size) override {
    numbers_.push_back(number);
    return Frame::Absent(size, number);
  }
  const std::vector<uint64_t>& numbers() const { return numbers_; }

 private:
  std::vector<uint64_t> numbers_;
};

StorageError KeptBuffers::ReadFrame(const Database::View& view, uint64_t id, uint64_t number, Frame* frame) {
  std::string why;
  const StorageError error = view.Get(Rows::kFrames, Key(id, number), [&](std::optional<std::string_view> bytes) {
    if (!bytes)
      why = "is not there";
    else if (bytes->size() != frame->size())
      why = "has " + to_string(bytes->size()) + " bytes, not " + to_string(frame->size());
    else
      std::memcpy(frame->mutable_data(), bytes->data(), bytes->size());
  });
  if (error.failed()) return error;
  if (why.empty() && !FrameChecksumMatches(frame->bytes())) why = "is damaged: its checksum does not match";
  frame->SetNumber(number);
  return why.empty() ? StorageError{} : Damaged("frame " + to_string(number) + " " + why);
}

StorageError KeptBuffers::Load(std::vector<Loaded>* loaded) {
  std::vector<std::pair<uint64_t, std::string>> names;
  StorageError error = database_.ForEach(Rows::kBuffers, Key(1), [&](std::string_view key, std::string_view value) {
    names.emplace_back(FromBigEndian(key).value_or(0), value);
    return true;
  });
  Frames frames;
  for (const auto& [id, name] : names) {
    if (error.failed()) break;
    Loaded& one = loaded->emplace_back();
    one.id = id;
    frames.Begin();
    error = LoadOne(id, &frames, &kept_[id], &one.buffer);
    if (!error.failed() && one.buffer->name() != name) error = Damaged("is \"" + one.buffer->name() + "\" by its state");
    if (error.failed()) error.message = "buffer \"" + name + "\" cannot be loaded: " + error.message;
  }
  if (error.failed()) loaded->clear();
  return error;
}

StorageError KeptBuffers::LoadState(uint64_t id, Kept* kept, std::string* bytes) {
  std::optional<std::string> row;
  StorageError error = database_.Get(Rows::kStates, Key(id, 0), &row);
  if (error.failed()) return error;
  if (!row) return Damaged("it has no state");
  Head head;
  Archive reading(*row, nullptr);
  reading(head);
  if (reading.failed() || !reading.at_end()) return Damaged("the head of its state is damaged");
  kept->generation = head.generation;
  kept->next_record = head.first_record;
  uint32_t parts = 0;
  error = database_.ForEach(Rows::kStates, Key(id, head.generation, 0), [&](std::string_view key, std::string_view value) {
    if (parts == head.parts || key != Key(id, head.generation, parts)) return false;
    bytes->append(value);
    ++parts;
    return true;
  });
  if (error.failed()) return error;
  if (parts != head.parts || bytes->size() != head.bytes || ChecksumOf(*bytes) != head.checksum)
    return Damaged("its state is damaged: " + to_string(parts) + " of " + to_string(head.parts) + " parts, " +
                   to_string(bytes->size()) + " of " + to_string(head.bytes) + " bytes");
  return {};
}

StorageError KeptBuffers::LoadOne(uint64_t id, Frames* frames, Kept* kept, std::unique_ptr<Buffer>* buffer) {
  std::string bytes;
  if (StorageError error = LoadState(id, kept, &bytes); error.failed()) return error;
  std::string why;
  *buffer = Buffer::Load(bytes, frames, &why);
  if (!*buffer) return Damaged("its state " + why);
  StorageError damage;
  StorageError error =
      database_.ForEach(Rows::kRecords, Key(id, kept->next_record), [&](std::string_view key, std::string_view value) {
        if (!key.starts_with(Key(id))) return false;
        const uint64_t number = FromBigEndian(key.substr(8)).value_or(0);
        const auto damaged = [&](const std::string& what) {
          damage = Damaged(what);
          return false;
        };
        if (number != kept->next_record) return damaged("record " + to_string(kept->next_record) + " is missing");
        uint32_t count = 0;
        uint64_t checksum = 0;
        if (value.size() < sizeof count + sizeof checksum) return damaged("record " + to_string(number) + " is damaged");
        std::memcpy(&count, value.data(), sizeof count);
        std::memcpy(&checksum, value.data() + value.size() - sizeof checksum, sizeof checksum);
        value.remove_suffix(sizeof checksum);
        if (ChecksumOf(value) != checksum) return damaged("record " + to_string(number) + " is damaged");
        value.remove_prefix(sizeof count);
        for (uint32_t i = 0; i < count; ++i, ++kept->next_record) {
          if (std::string wrong = (*buffer)->Replay(&value, frames); !wrong.empty())
            return damaged("record " + to_string(kept->next_record) + " " + wrong);
        }
        return value.empty() || damaged("record " + to_string(number) + " has more in it than it says");
      });
  if (error.failed()) return error;
  if (damage.failed()) return damage;
  kept->frames = RangesOf(EachOnce(frames->numbers()));
  return {};
}

StorageError KeptBuffers::WriteState(uint64_t id, const std::string& name, const SavedState& state, Kept* kept) {
  const uint64_t generation = kept->generation + 1;
  Head head{.generation = generation,
            .first_record = kept->next_record,
            .parts = static_cast<uint32_t>((state.bytes.size() + kPartBytes - 1) / kPartBytes),
            .bytes = state.bytes.size(),
            .checksum = ChecksumOf(state.bytes)};
  if (StorageError error = database_.HasRoomFor(head.bytes); error.failed()) return error;
  // What a save that did not come to its head has left there goes first.
  for (uint32_t part = 0; part < head.parts; ++part) {
    Database::Batch batch(database_);
    if (part == 0) batch.DeleteRange(Rows::kStates, Key(id, generation), Key(id + 1));
    batch.Put(Rows::kStates, Key(id, generation, part), std::string_view(state.bytes).substr(part * kPartBytes, kPartBytes));
    if (StorageError error = database_.Write(batch, Database::Survives::kLater); error.failed()) return error;
  }
  const std::vector<uint64_t> numbers = EachOnce(state.frames);
  std::string row;
  Archive writing(&row);
  writing(head);
  Database::Batch batch(database_);
  if (!name.empty()) batch.Put(Rows::kBuffers, Key(id), name);
  batch.Put(Rows::kStates, Key(id, 0), row);
  if (kept->generation > 0) {
    batch.DeleteRange(Rows::kStates, Key(id, 1), Key(id, generation));
    batch.DeleteRange(Rows::kRecords, Key(id), Key(id, kept->next_record));
  }
  Ranges gone;
  DeleteOthers(id, kept->frames, numbers, &batch, &gone);
  if (StorageError error = database_.Write(batch, Database::Survives::kNow); error.failed()) return error;
  for (const auto& [begin, end] : gone) database_.DropFiles(Rows::kFrames, Key(id, begin), Key(id, end));
  kept->generation = generation;
  kept->frames = RangesOf(numbers);
  return {};
}

StorageError KeptBuffers::Create(uint64_t id, const std::string& name, const SavedState& state) {
  CHECK(state.frames.empty()) << "buffer " << name << " has frames that were never added";
  Kept kept;
  if (StorageError error = WriteState(id, name, state, &kept); error.failed()) return error;
  kept_[id] = std::move(kept);
  return {};
}

StorageError KeptBuffers::Drop(uint64_t id) {
  Database::Batch batch(database_);
  batch.Delete(Rows::kBuffers, Key(id));
  for (const Rows rows : {Rows::kStates, Rows::kRecords, Rows::kFrames}) batch.DeleteRange(rows, Key(id), Key(id + 1));
  if (StorageError error = database_.Write(batch, Database::Survives::kNow); error.failed()) return error;
  database_.DropFiles(Rows::kFrames, Key(id), Key(id + 1));
  kept_.erase(id);
  return {};
}

StorageError KeptBuffers::Save(uint64_t id, const SavedState& state) { return WriteState(id, "", state, &kept_.at(id)); }

StorageError KeptBuffers::Add(uint64_t id, const Journal::Entries& entries) {
  Kept& kept = kept_.at(id);
  const auto count = static_cast<uint32_t>(entries.count);
  std::string row(reinterpret_cast<const char*>(&count), sizeof count);
  row += entries.records;
  const uint64_t checksum = ChecksumOf(row);
  row.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  Database::Batch batch(database_);
  for (const Frame& frame : entries.frames)
    batch.Put(Rows::kFrames, Key(id, frame.number()), {reinterpret_cast<const char*>(frame.data()), frame.size()});
  batch.Put(Rows::kRecords, Key(id, kept.next_record), row);
  if (StorageError error = database_.Write(batch, Database::Survives::kLater); error.failed()) return error;
  for (const Frame& frame : entries.frames) AddNumber(&kept.frames, frame.number());
  kept.next_record += entries.count;
  return {};
}

}  // namespace replay::server
