#pragma once
// KeptBuffers: the buffers of a data folder, as rows.
//
//   Rows::kBuffers   id, from 1                  name
//   Rows::kStates    id, 0                       head: u64 generation, u64 first record, u32 parts, u64 bytes, u64 XXH3 of these
//                    id, generation, part        1 MiB at most of what Buffer::Save gave
//   Rows::kRecords   id, number of the first     u32 count | records of a Journal | u64 XXH3 of what stands before
//   Rows::kFrames    id, number                  the frame, which ends in its own checksum
//
//   a buffer = its state, and what its records make of it             numbers in keys: 8 bytes, big-endian
//
// Records stand without a gap from the state's first on: one that is missing is an error and not the end. Frames come in one
// write with the records that brought them, and leave in one with the head of a state that no longer names them.
//
// One thread, which may block on the disk. Load: O(states + records). Add: O(bytes). Save: O(state + frames that left).

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "schema/message.h"
#include "server/buffer.h"
#include "storage/database.h"

namespace replay::server {

// What Buffer::Save gave.
struct SavedState {
  explicit SavedState(const Buffer& buffer) { buffer.Save(&bytes, &frames); }
  std::string bytes;
  std::vector<uint64_t> frames;
};

class KeptBuffers {
 public:
  // `database` outlives it.
  explicit KeptBuffers(Database* database) : database_(*database) {}

  struct Loaded {
    uint64_t id = 0;
    std::unique_ptr<Buffer> buffer;
  };
  // Once, before the rest: each buffer as it was when the last records of it survived. Its frames are absent: none is read. The error
  // names the buffer and what is wrong with it; nothing has been changed then.
  StorageError Load(std::vector<Loaded>* loaded);

  // Into `frame`, which has the size. The error says if it is not there, or not what it was. Any thread.
  static StorageError ReadFrame(const Database::View& view, uint64_t id, uint64_t number, Frame* frame);

  // A new buffer; an id is used once. Survives when it returns, as with Drop and Save.
  StorageError Create(uint64_t id, const std::string& name, const SavedState& state);
  StorageError Drop(uint64_t id);
  // All records that were added are in this state.
  StorageError Save(uint64_t id, const SavedState& state);
  // Survives the next Sync of the database.
  StorageError Add(uint64_t id, const Journal::Entries& entries);

 private:
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;  // first, one behind the last; rising, apart
  struct Kept {
    uint64_t generation = 0;
    uint64_t next_record = 0;
    Ranges frames;
  };
  class Frames;

  StorageError LoadOne(uint64_t id, Frames* frames, Kept* kept, std::unique_ptr<Buffer>* buffer);
  StorageError LoadState(uint64_t id, Kept* kept, std::string* bytes);
  StorageError WriteState(uint64_t id, const std::string& name, const SavedState& state, Kept* kept);

  Database& database_;
  std::map<uint64_t, Kept> kept_;
};

}  // namespace replay::server
