#include "server/leases.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace replay::server {

uint64_t Leases::Open(uint64_t holder, uint64_t expires_ms, std::vector<Unit> units) {
  const uint64_t number = next_number_++;
  leases_.push_back({number, holder, expires_ms, std::move(units)});
  by_number_.emplace(number, std::prev(leases_.end()));
  next_expiry_ms_ = std::min(next_expiry_ms_, expires_ms);
  return number;
}

void Leases::CloseWhole(List::iterator lease, std::vector<Unit>* units) {
  units->insert(units->end(), lease->units.begin(), lease->units.end());
  by_number_.erase(lease->number);
  leases_.erase(lease);
}

std::vector<Leases::Unit> Leases::Close(uint64_t number, std::span<const uint64_t> items) {
  std::vector<Unit> closed;
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return closed;
  const auto lease = found->second;
  if (items.empty()) {
    CloseWhole(lease, &closed);
    return closed;
  }
  const auto is_named = [items](const Unit& unit) {
    return std::any_of(items.begin(), items.end(),
                       [&](uint64_t item) { return item - unit.first_item < unit.count; });  // wraps below
  };
  const auto kept_end = std::stable_partition(lease->units.begin(), lease->units.end(), std::not_fn(is_named));
  closed.assign(kept_end, lease->units.end());
  lease->units.erase(kept_end, lease->units.end());
  if (lease->units.empty()) CloseWhole(lease, &closed);
  return closed;
}

std::vector<Leases::Unit> Leases::CloseExpired(uint64_t now_ms) {
  std::vector<Unit> closed;
  if (now_ms < next_expiry_ms_) return closed;
  next_expiry_ms_ = UINT64_MAX;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    const auto next = std::next(lease);
    if (lease->expires_ms <= now_ms)
      CloseWhole(lease, &closed);
    else
      next_expiry_ms_ = std::min(next_expiry_ms_, lease->expires_ms);
    lease = next;
  }
  return closed;
}

std::vector<Leases::Unit> Leases::CloseOf(uint64_t holder) {
  std::vector<Unit> closed;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    const auto next = std::next(lease);
    if (lease->holder == holder) CloseWhole(lease, &closed);
    lease = next;
  }
  return closed;
}

std::vector<Leases::Unit> Leases::CloseAll() {
  std::vector<Unit> closed;
  while (!leases_.empty()) CloseWhole(leases_.begin(), &closed);
  return closed;
}

void Leases::Persist(Archive& archive) {
  archive(next_number_, leases_);
  if (!archive.loading()) return;
  for (auto lease = leases_.begin(); lease != leases_.end(); ++lease) {
    by_number_.emplace(lease->number, lease);
    next_expiry_ms_ = std::min(next_expiry_ms_, lease->expires_ms);
  }
}

uint64_t Leases::memory_bytes() const {
  uint64_t bytes = by_number_.size() * 56 + by_number_.bucket_count() * sizeof(void*);
  for (const Lease& lease : leases_) bytes += sizeof(Lease) + 16 + lease.units.capacity() * sizeof(Unit);
  return bytes;
}

}  // namespace replay::server
