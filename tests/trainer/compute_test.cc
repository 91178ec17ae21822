#include "trainer/compute.h"

#include <gtest/gtest.h>

#include <random>

namespace replay::trainer {
namespace {

// The paper's table for Qwen2.5-7B at (W, T) of 8 GPUs; draws / rollouts = mu T / W. It says mu = 5.28; its numbers are those of 5.2.
TEST(Gamma, IsThatOfThePaper) {
  constexpr double kMu = 5.2;
  const struct {
    double workers, trainers, gamma;
  } published[] = {{7, 1, 1.29}, {6, 2, 0.65}, {5, 3, 0.43}, {4, 4, 0.32}, {2, 6, 0.22}, {1, 7, 0.18}};
  for (const auto& [workers, trainers, gamma] : published) {
    const uint64_t rollouts = 1'000'000;
    const auto draws = static_cast<uint64_t>(1e6 * kMu * trainers / workers);
    EXPECT_NEAR(Gamma(kMu, rollouts, draws), gamma, 0.0051) << workers << "," << trainers;
    EXPECT_NEAR(kMu / ReplayRatio(rollouts, draws), workers / trainers, 1e-4);
  }
}

TEST(ComputeUnits, CountOneForEachStepWithoutABuffer) {
  EXPECT_DOUBLE_EQ(ComputeUnits(5.28, 64 * 100, 64 * 100, 64), 100);
  EXPECT_DOUBLE_EQ(ComputeUnits(1, 64 * 100, 64 * 100, 64), 100);
  // And gamma for each with one.
  EXPECT_NEAR(ComputeUnits(5.28, 3'640, 6'400, 64), 100 * Gamma(5.28, 3'640, 6'400), 1e-9);
  EXPECT_EQ(ComputeUnits(5.28, 0, 0, 64), 0);
  EXPECT_EQ(ReplayRatio(0, 5), 0);
  EXPECT_EQ(Gamma(5.28, 5, 0), 0);
}

constexpr uint64_t kServer = 77;  // its generation

BufferStats Stats(uint64_t accepted, uint64_t generated, double generation_seconds, uint64_t trained, double training_seconds) {
  BufferStats stats;
  stats.accepted = accepted;
  stats.tokens_inserted = accepted * 10;
  stats.generated_trajectories = generated;
  stats.generation_seconds = generation_seconds;
  stats.trained_draws = trained;
  stats.training_seconds = training_seconds;
  return stats;
}

TEST(ComputeMeter, CountsWhatCameDuringTheRunAndOverRestarts) {
  ComputeMeter meter;
  meter.Update(kServer, Stats(500, 500, 50, 1'000, 10));  // another run left these
  EXPECT_EQ(meter.rollouts(), 0u);
  EXPECT_EQ(meter.MeasuredMu(), 0);
  meter.Update(kServer, Stats(600, 600, 56, 1'200, 14));
  EXPECT_EQ(meter.rollouts(), 100u);
  EXPECT_DOUBLE_EQ(meter.MeasuredMu(), (6.0 / 100) / (4.0 / 200));
  meter.Update(kServer, Stats(40, 30, 2, 0, 0));  // the daemon came back at zero
  EXPECT_EQ(meter.rollouts(), 140u);
  EXPECT_EQ(meter.tokens_inserted(), 1'400u);
  meter.Update(kServer, Stats(70, 60, 3, 20, 1));
  EXPECT_EQ(meter.rollouts(), 170u);
  EXPECT_DOUBLE_EQ(meter.generation_seconds(), 9);
  EXPECT_DOUBLE_EQ(meter.training_seconds(), 5);
  meter.AddDraws(64);
  EXPECT_EQ(meter.draws(), 64u);
}

TEST(ComputeMeter, NoticesADaemonThatCameBackAndCaughtUp) {
  ComputeMeter meter;
  meter.Update(kServer, Stats(0, 0, 0, 0, 0));
  meter.Update(kServer, Stats(10, 10, 1, 10, 4));
  meter.Update(kServer + 1, Stats(12, 12, 2, 12, 5));
  EXPECT_EQ(meter.rollouts(), 22u);
  EXPECT_DOUBLE_EQ(meter.training_seconds(), 9);
}

TEST(ComputeMeter, NoticesABufferMadeAgainByAnyOfTheCounters) {
  // All but the seconds of training have caught up since.
  ComputeMeter meter;
  meter.Update(kServer, Stats(0, 0, 0, 0, 0));
  meter.Update(kServer, Stats(10, 10, 1, 10, 4));
  meter.Update(kServer, Stats(12, 12, 2, 12, 3));
  EXPECT_EQ(meter.rollouts(), 22u);
  EXPECT_DOUBLE_EQ(meter.training_seconds(), 7);
}

TEST(ComputeMeter, LosesNothingOverManyRestarts) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    ComputeMeter meter;
    meter.Update(0, Stats(0, 0, 0, 0, 0));
    uint64_t rollouts = 0, since_start = 0, generation = 0;  // in all, and of the daemon that runs
    for (int look = 0; look < 500; ++look) {
      if (random() % 10 == 0) {
        since_start = 0;
        ++generation;
      }
      const uint64_t fresh = random() % 50;
      rollouts += fresh;
      since_start += fresh;
      const auto count = static_cast<double>(since_start);
      const uint64_t before = meter.rollouts();
      meter.Update(generation, Stats(since_start, since_start, 0.5 * count, 2 * since_start, 0.25 * count));
      EXPECT_GE(meter.rollouts(), before) << "seed " << seed;
    }
    EXPECT_EQ(meter.rollouts(), rollouts) << "seed " << seed;
    EXPECT_EQ(meter.tokens_inserted(), 10 * rollouts) << "seed " << seed;
    EXPECT_DOUBLE_EQ(meter.generation_seconds(), 0.5 * static_cast<double>(rollouts)) << "seed " << seed;
    EXPECT_DOUBLE_EQ(meter.training_seconds(), 0.25 * static_cast<double>(rollouts)) << "seed " << seed;
    EXPECT_DOUBLE_EQ(meter.MeasuredMu(), 0.5 / (0.25 / 2)) << "seed " << seed;
  }
}

TEST(ComputeMeter, GoesOnFromACheckpoint) {
  ComputeMeter meter;
  meter.Resume(1'000, 2'000);
  meter.Update(kServer, Stats(300, 0, 0, 0, 0));
  meter.Update(kServer, Stats(310, 0, 0, 0, 0));
  meter.AddDraws(5);
  EXPECT_EQ(meter.rollouts(), 1'010u);
  EXPECT_EQ(meter.draws(), 2'005u);
}

}  // namespace
}  // namespace replay::trainer
