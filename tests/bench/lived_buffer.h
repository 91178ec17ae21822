#pragma once
// A buffer that has lived with its selector and retention, and what its draws and inserts cost.

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "schema/validate.h"
#include "server/buffer.h"
#include "server/check.h"
#include "server/policy_versions.h"
#include "server/random.h"
#include "storage/store.h"

namespace replay::bench {

// Of this thread.
inline double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// What the selector draws from.
enum class Drawn : uint8_t {
  kItems,   // all of them
  kOfView,  // a view of those that are correct, half of them; the buffer itself is uniform
  kGroups,  // groups of kGroupSize
};
inline constexpr std::array<std::string_view, 3> kDrawnNames = {"items", "view", "groups"};

struct Kind {
  server::SelectorKind selector;
  server::RetentionKind retention;
  Drawn drawn = Drawn::kItems;
};

class LivedBuffer {
 public:
  static constexpr uint64_t kFrameBytes = 64;
  static constexpr uint64_t kVersions = 100;  // in the freshest N items
  static constexpr uint32_t kBatch = 256;     // trajectories
  static constexpr uint32_t kGroupSize = 8;
  static constexpr size_t kBatchesPerRound = 32, kInsertsPerRound = 2048;

  LivedBuffer(const Kind& kind, uint64_t items)
      : items_(items),
        group_size_(kind.drawn == Drawn::kGroups ? kGroupSize : 1),
        view_(kind.drawn == Drawn::kOfView ? "correct" : ""),
        has_priorities_(kind.selector == server::SelectorKind::kPrioritized),
        random_(1) {
    server::ViewOptions selection{.name = view_, .filter = "correct = yes", .selector = kind.selector};
    if (has_priorities_) selection.priority_exponent = 0.6;
    if (kind.selector == server::SelectorKind::kRecency) selection.staleness_decay = kVersions / 4.0;
    server::BufferOptions options;
    options.unit = kind.drawn == Drawn::kGroups ? server::Unit::kGroup : server::Unit::kTrajectory;
    options.capacity_items = items_ / group_size_;
    options.retention = kind.retention;
    if (kind.retention != server::RetentionKind::kFifo) options.delta = {1, 4};
    if (kind.drawn == Drawn::kOfView) {
      options.views.push_back(selection);
    } else {
      options.selector = selection.selector;
      options.priority_exponent = selection.priority_exponent;
      options.staleness_decay = selection.staleness_decay;
    }
    options.seed = 1;
    const std::string error = CheckOptions(&options);
    CHECK(error.empty()) << error;
    buffer_ = std::make_unique<server::Buffer>("bench", options, server::PolicyVersions::Empty());
    while (buffer_->live() < items_) InsertUntimed(items_ - buffer_->live());
    for (const uint64_t end = number_ + items_ / 4; number_ < end;) InsertUntimed(end - number_);
  }

  struct Costs {
    double draw = 0, insert = 0;  // ns a trajectory
  };
  // For about so many seconds, without those in which inserts are prepared.
  Costs Run(double seconds) {
    double draw_seconds = 0, insert_seconds = 0;
    uint64_t rounds = 0;
    while (draw_seconds + insert_seconds < seconds) {
      draw_seconds += Draw();
      insert_seconds += Insert();
      ++rounds;
    }
    return {.draw = draw_seconds * 1e9 / static_cast<double>(rounds * kBatchesPerRound * kBatch),
            .insert = insert_seconds * 1e9 / static_cast<double>(rounds * kInsertsPerRound)};
  }

  // What the index says of itself, and the header of the frame.
  double BytesPerItem() const {
    const server::BufferStats stats = buffer_->Stats();
    return static_cast<double>(stats.index_bytes) / static_cast<double>(stats.items) + double{Frame::kOverheadBytes};
  }
  uint64_t live() const { return buffer_->live(); }
  // Gives back what is not the buffer's.
  void DropScratch() {
    frames_ = std::vector<Frame>();
    facts_ = std::vector<TrajectoryFacts>();
    sampled_ = server::SampleResult();
  }

 private:
  // A round of each; the seconds it took.
  double Draw() {
    server::SampleRequest request{.count = kBatch / group_size_};
    request.view = view_;
    const double start = CpuSeconds();
    for (size_t i = 0; i < kBatchesPerRound; ++i) CHECK(buffer_->Sample(request, &sampled_).done());
    return CpuSeconds() - start;
  }
  double Insert() {
    Prepare(kInsertsPerRound);
    server::InsertRequest request;
    const double start = CpuSeconds();
    for (size_t i = 0; i < kInsertsPerRound; i += group_size_) {
      request.frames = {&frames_[i], group_size_};
      request.facts = {&facts_[i], group_size_};
      CHECK(buffer_->Insert(request, &inserted_).done());
    }
    return CpuSeconds() - start;
  }
  void Prepare(size_t count) {
    frames_.resize(count);
    facts_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      frames_[i] = Frame::Allocate(kFrameBytes);
      facts_[i] = {};
      TrajectoryFacts& facts = facts_[i];
      facts.id = {number_ * 0x9e3779b97f4a7c15, number_};  // as evenly spread as a hash
      facts.run = {1, 1};
      facts.min_version = facts.max_version = static_cast<int64_t>(number_ * kVersions / items_);
      facts.token_count = 1000;
      facts.correct = random_.Below(2) ? Outcome::kCorrect : Outcome::kIncorrect;
      // Rises by its own spread while the buffer is replaced once.
      facts.reward = static_cast<float>(random_.Unit() + static_cast<double>(number_) / static_cast<double>(items_));
      if (has_priorities_) facts.priority = static_cast<float>(0.01 + random_.Unit());
      if (group_size_ > 1) {
        const uint64_t group = (number_ - 1) / group_size_ + 1;
        facts.group = {group * 0x9e3779b97f4a7c15, group};
        facts.group_size = group_size_;
        facts.index_in_group = static_cast<uint32_t>(i % group_size_);
      }
      ++number_;
    }
  }
  void InsertUntimed(uint64_t most) {
    Prepare(std::min<uint64_t>((most + group_size_ - 1) / group_size_ * group_size_, 128));
    server::InsertRequest request;
    request.frames = frames_;
    request.facts = facts_;
    CHECK(buffer_->Insert(request, &inserted_).done());
  }

  const uint64_t items_;
  const uint32_t group_size_;  // 1: no groups
  const std::string view_;     // that is drawn from
  const bool has_priorities_;
  server::Random random_;
  std::unique_ptr<server::Buffer> buffer_;
  uint64_t number_ = 1;
  std::vector<Frame> frames_;
  std::vector<TrajectoryFacts> facts_;
  server::SampleResult sampled_;
  server::InsertResult inserted_;
};

}  // namespace replay::bench
