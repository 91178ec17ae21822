#include "client/cli/stats_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace replay::cli {
namespace {

using testing::HasSubstr;

// 200 rollouts in 100 s, 400 draws trained on in 50 s, by 6 workers for 4 trainers.
BufferStats Reported() {
  BufferStats stats;
  stats.accepted = 200;
  stats.drawn = 500;
  stats.scored = 40;
  stats.correct = 10;
  stats.outcomes = {{"insert_correct", 30},    {"insert_incorrect", 90}, {"sample_correct", 200},
                    {"sample_incorrect", 200}, {"remove_correct", 0},    {"remove_incorrect", 80}};
  stats.staleness = {.bounds = {0, 1, 2, 4}, .counts = {5, 0, 4, 0, 1}, .sum = 0};
  stats.item_draws = {.bounds = {0, 1, 2}, .counts = {10, 20, 6, 4}, .sum = 0};
  stats.generation_seconds = 100;
  stats.generated_trajectories = 200;
  stats.training_seconds = 50;
  stats.trained_draws = 400;
  stats.workers = 6;
  stats.trainers = 4;
  return stats;
}

TEST(StatsView, ComputesEachShareAsItsHeaderSays) {
  const StatsView view = ViewOf(Reported(), nullptr, 0);
  EXPECT_EQ(4, view.mu);  // (100 / 200) / (50 / 400)
  EXPECT_EQ(1.5, view.workers_per_trainer);
  EXPECT_EQ(0.25, view.accuracy_stored);
  EXPECT_EQ(0.25, view.accuracy_inserted);
  EXPECT_EQ(0.5, view.accuracy_drawn);
  EXPECT_EQ(0, view.accuracy_removed);
  EXPECT_EQ(2.5, view.replay_ratio);
  EXPECT_EQ(0.25, view.never_used);  // 10 of 40
  EXPECT_EQ(0, view.staleness_p50);  // 5 of 10 in the first bucket
  EXPECT_EQ(2, view.staleness_p90);
}

// Not 0: nobody has said anything yet.
TEST(StatsView, IsNullBeforeAnythingWasReported) {
  const BufferStats stats;
  const StatsView view = ViewOf(stats, nullptr, 0);
  const Json json = JsonOf(stats, view);
  for (const char* name :
       {"mu", "workers_per_trainer", "accuracy_stored", "accuracy_inserted", "accuracy_drawn", "accuracy_removed",
        "replay_ratio", "never_used", "staleness_p50", "staleness_p90", "inserted_per_second", "sampled_per_second"})
    EXPECT_TRUE(json.at(name).is_null()) << name;
  const std::string text = TextOf(stats, view, "b");
  EXPECT_THAT(text, HasSubstr("accuracy        stored -, inserted -, drawn -, removed -\n"));
  EXPECT_THAT(text, Not(HasSubstr("mu")));
}

TEST(StatsView, ACostNeedsTheReportsOfBothSides) {
  BufferStats stats = Reported();
  stats.trained_draws = 0;
  EXPECT_FALSE(ViewOf(stats, nullptr, 0).mu);
  EXPECT_THAT(TextOf(stats, ViewOf(stats, nullptr, 0), "b"), HasSubstr("mu -, W/T 6/4\n"));
  stats = Reported();
  stats.generated_trajectories = 0;
  EXPECT_FALSE(ViewOf(stats, nullptr, 0).mu);
  stats = Reported();
  stats.training_seconds = 0;
  EXPECT_FALSE(ViewOf(stats, nullptr, 0).mu);
  stats = Reported();
  stats.workers = 0;
  EXPECT_FALSE(ViewOf(stats, nullptr, 0).workers_per_trainer);
  stats = Reported();
  stats.trainers = 0;
  EXPECT_FALSE(ViewOf(stats, nullptr, 0).workers_per_trainer);
}

TEST(StatsView, RatesComeFromTwoSnapshotsOfOneLife) {
  const BufferStats before = Reported();
  BufferStats now = before;
  now.accepted += 30;
  now.drawn += 5;
  const StatsView view = ViewOf(now, &before, 2);
  EXPECT_EQ(15, view.inserted_per_second);
  EXPECT_EQ(2.5, view.sampled_per_second);
  EXPECT_FALSE(ViewOf(now, &before, 0).inserted_per_second);
  EXPECT_FALSE(ViewOf(before, &now, 2).inserted_per_second) << "another buffer of that name: its counts began anew";
}

TEST(StatsView, AQuantileBeyondTheLastBoundIsNotAtIt) {
  BufferStats stats;
  stats.staleness = {.bounds = {0, 1}, .counts = {1, 0, 9}, .sum = 0};
  const StatsView view = ViewOf(stats, nullptr, 0);
  EXPECT_TRUE(std::isinf(view.staleness_p50.value()));
  EXPECT_TRUE(JsonOf(stats, view).at("staleness_p50").is_null()) << "JSON has no infinity";
  EXPECT_THAT(TextOf(stats, view, "b"), HasSubstr("p50 > 1, p90 > 1 steps"));
}

}  // namespace
}  // namespace replay::cli
