#pragma once
// What a disk would keep of a Buffer: its state as it was saved last, what it has decided since, and the frames.
//
//   KeptBuffer kept;
//   buffer.SetJournal(&kept.journal);
//   kept.Save(buffer);
//   …
//   std::unique_ptr<Buffer> recovered = kept.Recover(&error);

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/buffer.h"

namespace replay::server {

class KeptBuffer : public FrameSource {
 public:
  Frame Fetch(uint64_t number, uint32_t size) override {
    const auto found = frames.find(number);
    return found == frames.end() || found->second.size() != size ? Frame() : Frame::Absent(size, number);
  }
  // What was given absent, as it is on the disk.
  void Present(Frame& frame) const {
    if (frame.is_absent()) frame = frames.at(frame.number());
  }
  void Present(SampleResult& result) const {
    for (Frame& frame : result.frames) Present(frame);
    for (ColumnOf& each : result.columns) Present(each.column);
  }
  void Present(StoredItem& item) const {
    Present(item.frame);
    for (Frame& column : item.columns) Present(column);
  }
  void Save(const Buffer& buffer) {
    Take();
    records.clear();
    state.clear();
    buffer.Save(&state);
  }
  // What the journal has so far.
  void Take() {
    Journal::Entries entries = journal.Take();
    records += entries.records;
    if (!entries.frames.empty()) written = entries.frames.back().number();
    for (Frame& frame : entries.frames) frames.emplace(frame.number(), std::move(frame));
  }
  // Null, and `error`, if it cannot be what it was.
  std::unique_ptr<Buffer> Recover(std::string* error) {
    Take();
    std::unique_ptr<Buffer> buffer = Buffer::Load(state, this, error);
    std::string_view left = records;
    while (buffer && error->empty() && !left.empty()) *error = buffer->Replay(&left, this);
    return error->empty() ? std::move(buffer) : nullptr;
  }

  Journal journal;
  std::string state, records;
  std::map<uint64_t, Frame> frames;  // by number
  uint64_t written = 0;              // the last of them
};

inline std::string StateOf(const Buffer& buffer) {
  std::string state;
  buffer.Save(&state);
  return state;
}

}  // namespace replay::server
