#pragma once
// Store: where the bytes of a buffer's items live. Buffer decides what exists; Store only keeps.
//
// What the store knows of an item is its Place, sixteen bytes that the buffer keeps in the item's own row: so a draw finds the
// frame and its size with the cache line it needs anyway, and what lives elsewhere costs no table of its own.
//
// A place is a reference to the frame: with its bytes, or spilled, which is an absent one (message.h). Whoever needs the bytes of one
// that is absent reads them off its thread.
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
    if (frame.is_absent()) CountSpilled(frame.size());
    place->frame_bytes_ = static_cast<uint32_t>(frame.size());
    place->frame_ = std::move(frame);
  }
  const Frame& Find(const Place& place) const { return place.frame_; }
  // Without a look at the frame; 0 of an empty place.
  uint64_t SizeOf(const Place& place) const { return place.frame_bytes_; }
  // The frame is on disk, and `absent` stands for it from here on.
  void Spill(Place* place, Frame absent) {
    CountSpilled(place->frame_bytes_);
    place->frame_ = std::move(absent);
  }
  void Remove(Place* place) {
    frame_bytes_ -= place->frame_bytes_;
    if (place->frame_.is_absent()) {
      --spilled_;
      spilled_bytes_ -= place->frame_bytes_;
    }
    *place = Place();
  }
  uint64_t frame_bytes() const { return frame_bytes_; }
  // Of those that are absent: how many, and of how many bytes.
  uint64_t spilled() const { return spilled_; }
  uint64_t spilled_bytes() const { return spilled_bytes_; }

 private:
  void CountSpilled(uint64_t bytes) {
    ++spilled_;
    spilled_bytes_ += bytes;
  }
  uint64_t frame_bytes_ = 0, spilled_ = 0, spilled_bytes_ = 0;
};

}  // namespace replay
