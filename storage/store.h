#pragma once
// Store: where the bytes of a buffer's items live. Buffer decides what exists; Store only keeps.
//
// What the store knows of an item is its Place, sixteen bytes that the buffer keeps in the item's own row: so a draw finds the
// frame and its size with the cache line it needs anyway, and what lives elsewhere costs no table of its own.
//
// This is the memory tier: a place is a reference to the frame, which is there at once. A tier that can be slow answers Find
// with an empty frame, and the caller loads it off its thread.
//
// Belongs to the thread of its buffer.

#include <cstdint>
#include <utility>

#include "schema/message.h"

namespace replay {

class Store {
 public:
  class Place {
   private:
    friend class Store;
    Frame frame_;
    uint32_t frame_bytes_ = 0;  // kMaxFrameBytes fits
  };
  static_assert(sizeof(Place) == 16);

  // Into an empty place.
  void Put(Place* place, Frame frame) {
    frame_bytes_ += frame.size();
    place->frame_bytes_ = static_cast<uint32_t>(frame.size());
    place->frame_ = std::move(frame);
  }
  const Frame& Find(const Place& place) const { return place.frame_; }
  // Without a look at the frame; 0 of an empty place.
  uint64_t SizeOf(const Place& place) const { return place.frame_bytes_; }
  void Remove(Place* place) {
    frame_bytes_ -= place->frame_bytes_;
    *place = Place();
  }
  uint64_t frame_bytes() const { return frame_bytes_; }

 private:
  uint64_t frame_bytes_ = 0;
};

}  // namespace replay
