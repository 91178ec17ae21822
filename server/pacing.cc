#include "server/pacing.h"

#include <algorithm>
#include <cmath>

namespace replay::server {
Pacing::Pacing(const BufferOptions& options) { Configure(options); }

void Pacing::Configure(const BufferOptions& options) {
  replay_ratio_ = options.replay_ratio;
  tolerance_ = options.tolerance;
  min_size_ = options.min_size;
  pace_draws_ = options.pace_draws;
  pace_inserts_ = options.pace_inserts;
}

void Pacing::Alter(const BufferOptions& options) {
  carried_ = balance();
  inserted_ = drawn_ = 0;
  Configure(options);
  carried_ = std::clamp(carried_, -tolerance_, tolerance_);
}

double Pacing::balance() const {
  if (replay_ratio_ == 0) return 0;
  return carried_ + static_cast<double>(inserted_) * replay_ratio_ - static_cast<double>(drawn_);
}

bool Pacing::InsertMustWait(uint64_t count, uint64_t available) const {
  if (replay_ratio_ == 0 || !pace_inserts_ || filling(available)) return false;
  return balance() + static_cast<double>(count) * replay_ratio_ > tolerance_;
}

bool Pacing::DrawMustWait(uint64_t count, uint64_t given_back) const {
  if (replay_ratio_ == 0 || !pace_draws_) return false;
  return balance() + static_cast<double>(std::min(given_back, outstanding_)) - static_cast<double>(count) < -tolerance_;
}

bool Pacing::OnInsert(uint64_t count, uint64_t available) {
  if (replay_ratio_ == 0 || filling(available)) return false;
  inserted_ += static_cast<int64_t>(count);
  return true;
}

uint64_t Pacing::OnDraw(uint64_t count, uint64_t given_back) {
  given_back = std::min(given_back, outstanding_);
  outstanding_ += count - given_back;
  drawn_ += static_cast<int64_t>(count) - static_cast<int64_t>(given_back);
  return given_back;
}

void Pacing::OnDeleteOfUndrawn() { --inserted_; }

std::string Pacing::WhyInsertWaits(uint64_t count, uint64_t available) const {
  if (!InsertMustWait(count, available)) return "";
  const double after = balance() + static_cast<double>(count) * replay_ratio_;
  return "balance " + NumberText(balance()) + " + " + std::to_string(count) + " inserts * replay_ratio " +
         NumberText(replay_ratio_) + " would exceed tolerance " + NumberText(tolerance_) + ": " +
         NumberText(std::ceil(after - tolerance_)) + " more draws are needed";
}

std::string Pacing::WhyDrawWaits(uint64_t count, uint64_t given_back) const {
  if (!DrawMustWait(count, given_back)) return "";
  const double now = balance() + static_cast<double>(std::min(given_back, outstanding_));
  const double missing = -tolerance_ - (now - static_cast<double>(count));
  return "balance " + NumberText(now) + " - " + std::to_string(count) + " draws would fall below -tolerance " +
         NumberText(-tolerance_) + ": " + NumberText(std::ceil(missing / replay_ratio_)) + " more inserts are needed";
}

}  // namespace replay::server
