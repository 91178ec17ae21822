#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace replay::server {
namespace {

using testing::HasSubstr;

ServerStats OneBuffer() {
  ServerStats stats;
  stats.requests.resize(static_cast<size_t>(Verb::kCount));
  stats.errors.resize(static_cast<size_t>(ErrorCode::kCount));
  stats.requests[static_cast<size_t>(Verb::kInsert)] = 3;
  BufferStats& buffer = stats.buffers.emplace_back();
  buffer.name = "rollouts";
  buffer.items = 12;
  buffer.accepted = 20;
  buffer.removed[static_cast<size_t>(RemoveReason::kMaxDraws)] = 8;
  buffer.staleness = Histogram(kStepBounds);
  buffer.reuse_gap = Histogram(kStepBounds);
  buffer.item_draws = Histogram(kDrawBounds);
  for (const double staleness : {0.0, 1.0, 3.0, 5000.0}) buffer.staleness.Observe(staleness);
  buffer.sample_waits[static_cast<size_t>(WaitReason::kMinSize)] = 2;
  return stats;
}

TEST(Metrics, ShowsCountersAndGaugesOfABuffer) {
  const std::string text = RenderMetrics(OneBuffer());
  EXPECT_THAT(text, HasSubstr("replay_buffer_items{buffer=\"rollouts\",tier=\"memory\"} 12\n"));
  EXPECT_THAT(text,
              HasSubstr("# TYPE replay_items_inserted_total counter\nreplay_items_inserted_total{buffer=\"rollouts\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("replay_items_removed_total{buffer=\"rollouts\",reason=\"max_draws\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("replay_requests_total{method=\"Insert\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("replay_waiters{buffer=\"rollouts\",op=\"sample\",reason=\"min_size\"} 2\n"));
}

TEST(Metrics, HistogramBucketsAreCumulativeAndEndAtInfinity) {
  const std::string text = RenderMetrics(OneBuffer());
  EXPECT_THAT(text, HasSubstr("replay_sample_staleness_steps_bucket{buffer=\"rollouts\",le=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("replay_sample_staleness_steps_bucket{buffer=\"rollouts\",le=\"2\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("replay_sample_staleness_steps_bucket{buffer=\"rollouts\",le=\"1024\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("replay_sample_staleness_steps_bucket{buffer=\"rollouts\",le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("replay_sample_staleness_steps_count{buffer=\"rollouts\"} 4\n"));
}

TEST(Metrics, SeriesExistBeforeTheFirstEvent) {
  EXPECT_THAT(RenderMetrics(OneBuffer()), HasSubstr("replay_items_sampled_total{buffer=\"rollouts\"} 0\n"));
}

TEST(Metrics, ADroppedBufferLeavesNoSeries) {
  ServerStats stats = OneBuffer();
  stats.buffers.clear();
  EXPECT_THAT(RenderMetrics(stats), testing::Not(HasSubstr("rollouts")));
}

}  // namespace
}  // namespace replay::server
