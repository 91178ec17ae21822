#include "client/window.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace replay {

void Bundle::Append(EncodedGroup group) {
  units.push_back(static_cast<uint32_t>(group.frames.size()));
  bytes += group.bytes;
  for (EncodedColumn& each : group.columns)
    columns.push_back({static_cast<uint32_t>(frames.size()) + each.frame, std::move(each.column)});
  frames.insert(frames.end(), std::make_move_iterator(group.frames.begin()), std::make_move_iterator(group.frames.end()));
}

std::vector<Bundle> Bundle::Split() && {
  std::vector<Bundle> parts;
  auto next = frames.begin();
  auto column = columns.begin();
  uint32_t first = 0;  // frame of the part
  for (const uint32_t count : units) {
    Bundle part;
    part.units = {count};
    for (uint32_t i = 0; i < count; ++i, ++next) {
      part.bytes += next->size();
      part.frames.push_back(std::move(*next));
    }
    for (; column != columns.end() && column->frame < first + count; ++column) {
      part.bytes += column->column.size();
      part.columns.push_back({column->frame - first, std::move(column->column)});
    }
    first += count;
    parts.push_back(std::move(part));
  }
  return parts;
}

void Window::Add(Bundle bundle) {
  Request request;
  request.sequence = next_sequence_++;
  request.bundle = std::move(bundle);
  to_send_.push_back(request.sequence);
  requests_.push_back(std::move(request));
}

const Window::Request* Window::Send() {
  if (to_send_.empty()) return nullptr;
  const uint64_t sequence = to_send_.front();
  to_send_.pop_front();
  sent_.push_back(sequence);
  return &Find(sequence);
}

Bundle Window::End() {
  const uint64_t sequence = sent_.front();
  sent_.pop_front();
  return Finish(sequence);
}

Bundle Window::EndNext() {
  const uint64_t sequence = to_send_.front();
  to_send_.pop_front();
  return Finish(sequence);
}

Bundle Window::Finish(uint64_t sequence) {
  Request& request = Find(sequence);
  request.ended = true;
  Bundle bundle = std::exchange(request.bundle, {});
  DropEnded();
  return bundle;
}

void Window::SendAgain() {
  const uint64_t sequence = sent_.front();
  sent_.pop_front();
  Find(sequence).uncertain = false;
  to_send_.insert(std::lower_bound(to_send_.begin(), to_send_.end(), sequence), sequence);
}

void Window::OnBroken() {
  for (const uint64_t sequence : sent_) Find(sequence).uncertain = true;
  to_send_.insert(to_send_.end(), sent_.begin(), sent_.end());
  std::sort(to_send_.begin(), to_send_.end());
  sent_.clear();
}

std::pair<std::vector<Bundle>, std::vector<Bundle>> Window::EndUnsent() {
  std::pair<std::vector<Bundle>, std::vector<Bundle>> ended;
  for (const uint64_t sequence : to_send_) {
    Request& request = Find(sequence);
    request.ended = true;
    (request.uncertain ? ended.second : ended.first).push_back(std::exchange(request.bundle, {}));
  }
  to_send_.clear();
  DropEnded();
  return ended;
}

std::vector<Bundle> Window::Renumber(Key128 writer, bool server_is_empty) {
  std::vector<Bundle> ended;
  std::deque<Request> old = std::exchange(requests_, {});
  to_send_.clear();
  writer_ = writer;
  next_sequence_ = 1;
  for (Request& request : old) {
    if (request.ended) continue;
    if (request.uncertain && !server_is_empty) {
      ended.push_back(std::move(request.bundle));
    } else {
      Add(std::move(request.bundle));
    }
  }
  return ended;
}

void Window::DropEnded() {
  while (!requests_.empty() && requests_.front().ended) requests_.pop_front();
}

}  // namespace replay
