#include "server/archive.h"

#include "server/check.h"

namespace replay::server {

void Archive::Value(Frame& frame) {
  uint64_t number = frame ? frame.number() : 0;
  auto size = static_cast<uint32_t>(frame.size());
  CHECK(loading() || !frame || number != 0) << "a frame of " << size << " bytes without a number";
  (*this)(number, size);
  if (numbers_ && number != 0) numbers_->push_back(number);
  if (!loading()) return;
  frame = number == 0 || frames_ == nullptr ? Frame() : frames_->Fetch(number, size);
  if (number != 0 && !frame) Fail();
}

}  // namespace replay::server
