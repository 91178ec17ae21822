#include "storage/store.h"

#include <utility>

namespace replay {

void Store::Put(uint32_t slot, Frame frame) {
  frames_.Reserve(uint64_t{slot} + 1);
  frame_bytes_ += frame.size() - frames_[slot].size();
  frames_[slot] = std::move(frame);
}

void Store::Remove(uint32_t slot) {
  frame_bytes_ -= frames_[slot].size();
  frames_[slot] = Frame();
}

}  // namespace replay
