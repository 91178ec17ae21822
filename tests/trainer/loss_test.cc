#include "trainer/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace replay::trainer {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr int kRows = 4, kTokens = 5;

// Random, in double precision; row r has r + 2 trained tokens. Behaviour is NaN where nothing was generated.
struct Example {
  explicit Example(uint64_t seed) {
    torch::manual_seed(seed);
    const auto options = torch::TensorOptions().dtype(torch::kFloat64);
    input.mask = torch::zeros({kRows, kTokens}, options);
    for (int r = 0; r < kRows; ++r) input.mask[r].narrow(0, 0, r + 2).fill_(1);
    input.behaviour_logprobs =
        torch::where(input.mask > 0, -torch::rand({kRows, kTokens}, options) * 3, torch::full({}, NAN, options));
    input.logprobs = (-torch::rand({kRows, kTokens}, options) * 3).requires_grad_(true);
    input.reference_logprobs = -torch::rand({kRows, kTokens}, options) * 3;
    input.advantage = torch::randn({kRows, 1}, options).expand({kRows, kTokens}).clone();
    input.reward = torch::rand({kRows}, options);
    input.group_mean = torch::rand({kRows}, options);
    normalizer = {.tokens = input.mask.sum().item<double>(), .sequences = kRows};
  }
  double at(const Tensor& tensor, int r, int i) const { return tensor[r][i].item<double>(); }

  LossInput input;
  Normalizer normalizer;
};

// The mean over trained tokens, or over sequences of the mean over their tokens, of term(r, i).
double MeanOf(const Example& example, Averaging averaging, const std::function<double(int, int)>& term) {
  double sum = 0;
  for (int r = 0; r < kRows; ++r) {
    double row = 0;
    const int tokens = r + 2;
    for (int i = 0; i < tokens; ++i) row += term(r, i);
    sum += averaging == Averaging::kToken ? row / example.normalizer.tokens : row / tokens / kRows;
  }
  return sum;
}

void ExpectGradientIsSlope(const Example& example, const LossOptions& options) {
  const Tensor logprobs = example.input.logprobs;
  ComputeLoss(example.input, options, example.normalizer).value.backward();
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kTokens; ++i) {
      const auto value = [&](double shift) {
        LossInput moved = example.input;
        moved.logprobs = logprobs.clone();
        moved.logprobs[r][i] += shift;
        return ComputeLoss(moved, options, example.normalizer).value.item<double>();
      };
      EXPECT_NEAR(logprobs.grad()[r][i].item<double>(), (value(kStep) - value(-kStep)) / (2 * kStep), 1e-6) << r << "," << i;
    }
  }
}

TEST(Loss, GrpoIsTheClippedObjective) {
  for (const Averaging averaging : {Averaging::kToken, Averaging::kSequence}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Example example(seed);
      const LossOptions options{.averaging = averaging, .clip_low = 0.2, .clip_high = 0.28};
      double clipped = 0;
      const double expected = MeanOf(example, averaging, [&](int r, int i) {
        const double ratio =
            std::exp(example.at(example.input.logprobs, r, i) - example.at(example.input.behaviour_logprobs, r, i));
        const double advantage = example.at(example.input.advantage, r, i);
        const double held = std::min(std::max(ratio, 0.8), 1.28) * advantage;
        clipped += held < ratio * advantage ? 1 : 0;
        return -std::min(ratio * advantage, held);
      });
      const Loss loss = ComputeLoss(example.input, options, example.normalizer);
      EXPECT_NEAR(loss.value.item<double>(), expected, 1e-9);
      EXPECT_EQ(loss.metrics.clipped, clipped);
      EXPECT_EQ(loss.metrics.tokens, 14);
    }
  }
}

TEST(Loss, ClippedTokensAreThoseWithoutAGradient) {
  Example example(3);
  const Loss loss = Grpo(example.input, {}, example.normalizer);
  loss.value.backward();
  const Tensor still = ((example.input.logprobs.grad() == 0) * example.input.mask).sum();
  EXPECT_EQ(loss.metrics.clipped, still.item<double>());
  EXPECT_GT(loss.metrics.clipped, 0);
}

TEST(Loss, AsymReWeighsLogprobsByRewardAboveTheShiftedMean) {
  Example example(4);
  const LossOptions options{.kind = "asymre", .baseline_shift = -0.1};
  const double expected = MeanOf(example, Averaging::kToken, [&](int r, int i) {
    const double above = example.input.reward[r].item<double>() - (example.input.group_mean[r].item<double>() - 0.1);
    return -above * example.at(example.input.logprobs, r, i);
  });
  EXPECT_NEAR(ComputeLoss(example.input, options, example.normalizer).value.item<double>(), expected, 1e-9);
}

TEST(Loss, ReinforceTruncatesTheWeightAndDoesNotDifferentiateIt) {
  Example example(5);
  const LossOptions options{.kind = "reinforce", .largest_weight = 1.5};
  const Loss loss = ComputeLoss(example.input, options, example.normalizer);
  const double expected = MeanOf(example, Averaging::kToken, [&](int r, int i) {
    const double ratio =
        std::exp(example.at(example.input.logprobs, r, i) - example.at(example.input.behaviour_logprobs, r, i));
    return -std::min(ratio, 1.5) * example.at(example.input.advantage, r, i) * example.at(example.input.logprobs, r, i);
  });
  EXPECT_NEAR(loss.value.item<double>(), expected, 1e-9);
  loss.value.backward();
  for (int i = 0; i < 2; ++i) {
    const double ratio =
        std::exp(example.at(example.input.logprobs, 0, i) - example.at(example.input.behaviour_logprobs, 0, i));
    EXPECT_NEAR(example.at(example.input.logprobs.grad(), 0, i),
                -std::min(ratio, 1.5) * example.at(example.input.advantage, 0, i) / 14, 1e-9);
  }
}

TEST(Loss, SupervisedIsTheMeanOfMinusLogprob) {
  Example example(6);
  const double expected =
      MeanOf(example, Averaging::kToken, [&](int r, int i) { return -example.at(example.input.logprobs, r, i); });
  EXPECT_NEAR(ComputeLoss(example.input, {.kind = "supervised"}, example.normalizer).value.item<double>(), expected, 1e-9);
}

TEST(Loss, KlTermIsTheThirdEstimator) {
  Example example(7);
  const double without = ComputeLoss(example.input, {}, example.normalizer).value.item<double>();
  const double with = ComputeLoss(example.input, {.kl_weight = 0.5}, example.normalizer).value.item<double>();
  const double expected = MeanOf(example, Averaging::kToken, [&](int r, int i) {
    const double log_ratio = example.at(example.input.reference_logprobs, r, i) - example.at(example.input.logprobs, r, i);
    return std::exp(log_ratio) - 1 - log_ratio;
  });
  EXPECT_NEAR(with - without, 0.5 * expected, 1e-9);
  example.input.reference_logprobs = Tensor();
  EXPECT_THAT([&] { ComputeLoss(example.input, {.kl_weight = 0.5}, example.normalizer); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("kl_weight is 0.5 but there is no reference")));
}

TEST(Loss, GradientsAreSlopes) {
  for (const Averaging averaging : {Averaging::kToken, Averaging::kSequence}) {
    ExpectGradientIsSlope(Example(8), {.kind = "grpo", .averaging = averaging, .kl_weight = 0.1});
    ExpectGradientIsSlope(Example(9), {.kind = "asymre", .averaging = averaging});
    ExpectGradientIsSlope(Example(10), {.kind = "supervised", .averaging = averaging});
  }
}

TEST(Loss, IsNotTouchedByWhatStandsBesideTheMask) {
  for (const char* kind : {"grpo", "asymre", "reinforce", "supervised"}) {
    Example example(11);
    const Loss loss = ComputeLoss(example.input, {.kind = kind}, example.normalizer);
    loss.value.backward();
    const Tensor gradient = example.input.logprobs.grad().clone();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << kind;
    EXPECT_EQ((gradient * (1 - example.input.mask)).abs().sum().item<double>(), 0) << kind;
    Example other(11);
    other.input.logprobs =
        torch::where(other.input.mask > 0, other.input.logprobs, torch::full({}, -77.0, torch::kFloat64)).detach();
    EXPECT_EQ(ComputeLoss(other.input, {.kind = kind}, other.normalizer).value.item<double>(), loss.value.item<double>())
        << kind;
  }
}

TEST(LossMetrics, CountSequenceWeightsForTheEffectiveSampleSize) {
  // Two sequences of two tokens; log ratios add up to log 1 and log 3: ESS = (1 + 3)² / (2 (1 + 9)) = 0.8.
  LossInput input;
  input.mask = torch::ones({2, 2});
  input.behaviour_logprobs = torch::full({2, 2}, -2.0f);
  input.logprobs = torch::tensor({{-2.0f, -2.0f}, {-2.0f + std::log(3.0f), -2.0f}});
  input.advantage = torch::ones({2, 2});
  const LossMetrics metrics = Grpo(input, {}, {.tokens = 4, .sequences = 2}).metrics;
  EXPECT_NEAR(metrics.weight * metrics.weight / (metrics.sequences * metrics.weight_squared), 0.8, 1e-5);
  EXPECT_NEAR(metrics.ratio, 6, 1e-5);
  EXPECT_EQ(metrics.clipped, 1);
}

}  // namespace
}  // namespace replay::trainer
