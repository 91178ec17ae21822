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

TEST(Metrics, ShowsWhatIsHeldBackAndWhatStandsBesideTheFrames) {
  ServerStats stats = OneBuffer();
  BufferStats& buffer = stats.buffers[0];
  buffer.reserved_groups = 2;
  buffer.pending = 5;
  buffer.expired_groups = 3;
  buffer.held = 4;
  buffer.leases = 1;
  buffer.expired_leases = 6;
  buffer.column_bytes = 4096;
  const std::string text = RenderMetrics(stats);
  for (const char* lines : {"# TYPE replay_groups_incomplete gauge\nreplay_groups_incomplete{buffer=\"rollouts\"} 2\n",
                            "# TYPE replay_groups_expired_total counter\nreplay_groups_expired_total{buffer=\"rollouts\"} 3\n",
                            "# TYPE replay_buffer_items_pending gauge\nreplay_buffer_items_pending{buffer=\"rollouts\"} 5\n",
                            "# TYPE replay_buffer_items_held gauge\nreplay_buffer_items_held{buffer=\"rollouts\"} 4\n",
                            "# TYPE replay_leases gauge\nreplay_leases{buffer=\"rollouts\"} 1\n",
                            "# TYPE replay_leases_expired_total counter\nreplay_leases_expired_total{buffer=\"rollouts\"} 6\n",
                            "# TYPE replay_buffer_column_bytes gauge\nreplay_buffer_column_bytes{buffer=\"rollouts\"} 4096\n"})
    EXPECT_THAT(text, HasSubstr(lines));
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

BreakdownRow Row(const std::string& name, uint64_t inserted, uint64_t deleted, uint64_t withheld) {
  BreakdownRow row;
  row.name = name;
  row.inserted = inserted;
  row.live = inserted - deleted;
  row.withheld = withheld;
  row.removed[static_cast<size_t>(RemoveReason::kDeleted)] = deleted;
  return row;
}

TEST(Metrics, ShowsABufferBySourceByLengthAndByDraws) {
  ServerStats stats = OneBuffer();
  stats.buffers[0].sources = {Row("math", 9, 2, 1), Row("", 3, 0, 0)};
  stats.buffers[0].lengths = {Row("1-128", 12, 2, 1)};
  stats.buffers[0].draws = {Row("3-4", 0, 0, 0)};
  stats.buffers[0].draws[0].removed[static_cast<size_t>(RemoveReason::kAge)] = 2;
  const std::string text = RenderMetrics(stats);
  for (const char* line : {"replay_buffer_items_by_source{buffer=\"rollouts\",source=\"math\"} 7\n",
                           "replay_buffer_items_by_source{buffer=\"rollouts\",source=\"\"} 3\n",
                           "replay_buffer_items_withheld_by_source{buffer=\"rollouts\",source=\"math\"} 1\n",
                           "replay_items_inserted_by_source_total{buffer=\"rollouts\",source=\"math\"} 9\n",
                           "replay_items_removed_by_source_total{buffer=\"rollouts\",source=\"math\"} 2\n",
                           "replay_buffer_items_by_length{buffer=\"rollouts\",tokens=\"1-128\"} 10\n",
                           "replay_buffer_items_withheld_by_length{buffer=\"rollouts\",tokens=\"1-128\"} 1\n",
                           "replay_items_inserted_by_length_total{buffer=\"rollouts\",tokens=\"1-128\"} 12\n",
                           "replay_items_removed_by_length_total{buffer=\"rollouts\",tokens=\"1-128\",reason=\"deleted\"} 2\n",
                           "replay_items_removed_by_draws_total{buffer=\"rollouts\",draws=\"3-4\",reason=\"age\"} 2\n",
                           "replay_items_removed_by_draws_total{buffer=\"rollouts\",draws=\"3-4\",reason=\"capacity\"} 0\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(Metrics, ASourceOfAnyBytesIsALabelOfItsOwn) {
  ServerStats stats = OneBuffer();
  stats.buffers[0].sources = {Row("a\xff", 1, 0, 0), Row("a%FF", 2, 0, 0), Row("\"\\\n", 3, 0, 0)};
  const std::string text = RenderMetrics(stats);
  EXPECT_THAT(text, HasSubstr("replay_buffer_items_by_source{buffer=\"rollouts\",source=\"a%FF\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("replay_buffer_items_by_source{buffer=\"rollouts\",source=\"a%25FF\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("replay_buffer_items_by_source{buffer=\"rollouts\",source=\"\\\"\\\\%0A\"} 3\n"));
}

}  // namespace
}  // namespace replay::server
