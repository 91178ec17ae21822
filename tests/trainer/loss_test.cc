#include "trainer/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/trainer/golden.h"

namespace replay::trainer {
namespace {

using testing::GoldenLosses;
using ::testing::HasSubstr;
using testing::TensorOf;
using torch::Tensor;

constexpr int kRows = 4, kTokens = 5;
constexpr Averaging kAveragings[] = {Averaging::kToken, Averaging::kSequence};

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
  double logprob(int r, int i) const { return at(input.logprobs, r, i); }
  double advantage(int r, int i) const { return at(input.advantage, r, i); }
  double ratio(int r, int i) const { return std::exp(logprob(r, i) - at(input.behaviour_logprobs, r, i)); }

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

// Values and gradients of tests/golden/losses.json: within 1e-12 in double precision, within 1e-6 as it is trained, in single.
TEST(Loss, AgreesWithPyTorch) {
  const nlohmann::json golden = GoldenLosses();
  ASSERT_EQ(golden["cases"].size(), 14u);
  for (const auto& [dtype, tolerance] : {std::pair{torch::kFloat64, 1e-12}, {torch::kFloat32, 1e-6}}) {
    for (const nlohmann::json& each : golden["cases"]) {
      SCOPED_TRACE(each["kind"].dump() + " " + each["averaging"].dump() + " " + each["options"].dump());
      const auto read = [&, dtype = dtype](const char* name) { return TensorOf(golden["input"][name]).to(dtype); };
      const LossInput input{.logprobs = read("logprobs").requires_grad_(true),
                            .behaviour_logprobs = read("behaviour_logprobs"),
                            .mask = read("mask"),
                            .advantage = read("advantage"),
                            .reward = read("reward"),
                            .group_mean = read("group_mean"),
                            .reference_logprobs = read("reference_logprobs")};
      const auto option = [&](const char* name) { return each["options"][name].get<double>(); };
      const LossOptions options{.kind = each["kind"].get<std::string>(),
                                .averaging = each["averaging"] == "token" ? Averaging::kToken : Averaging::kSequence,
                                .clip_low = option("clip_low"),
                                .clip_high = option("clip_high"),
                                .kl_weight = option("kl_weight"),
                                .baseline_shift = option("baseline_shift"),
                                .largest_weight = option("largest_weight")};
      const Loss loss = ComputeLoss(input, options, {.tokens = input.mask.sum().item<double>(), .sequences = 5});
      EXPECT_NEAR(loss.value.item<double>(), each["value"].get<double>(), tolerance);
      loss.value.backward();
      const Tensor gradient = input.logprobs.grad().to(torch::kFloat64);
      EXPECT_TRUE(torch::allclose(gradient, TensorOf(each["gradient"]), /*rtol=*/0, /*atol=*/tolerance)) << gradient;
    }
  }
}

TEST(Loss, GrpoIsTheClippedObjective) {
  for (const Averaging averaging : kAveragings) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Example example(seed);
      const LossOptions options{.averaging = averaging, .clip_low = 0.2, .clip_high = 0.28};
      double clipped = 0;
      const double expected = MeanOf(example, averaging, [&](int r, int i) {
        const double free = example.ratio(r, i) * example.advantage(r, i);
        const double held = std::min(std::max(example.ratio(r, i), 0.8), 1.28) * example.advantage(r, i);
        clipped += held < free ? 1 : 0;
        return -std::min(free, held);
      });
      const Loss loss = ComputeLoss(example.input, options, example.normalizer);
      EXPECT_NEAR(loss.value.item<double>(), expected, 1e-9);
      EXPECT_EQ(loss.metrics.clipped, clipped);
      EXPECT_EQ(loss.metrics.tokens, 14);
    }
  }
}

// rho is 0.7 and 1.4. The clip holds what would go further the way it went, and never what comes back.
TEST(Loss, GrpoClipsBelowForBadTokensAndAboveForGoodOnes) {
  LossInput input;
  input.mask = torch::ones({2, 2});
  input.behaviour_logprobs = torch::full({2, 2}, -2.0f);
  const float less = -2 + std::log(0.7f), more = -2 + std::log(1.4f);
  input.logprobs = torch::tensor({{less, more}, {less, more}}).requires_grad_(true);
  input.advantage = torch::tensor({{1.0f, 1.0f}, {-1.0f, -1.0f}});
  const Normalizer normalizer{.tokens = 4, .sequences = 2};
  const auto moving = [&](double clip_low, double clip_high) {
    input.logprobs.mutable_grad() = Tensor();
    const Loss loss = Grpo(input, {.clip_low = clip_low, .clip_high = clip_high}, normalizer);
    loss.value.backward();
    const Tensor moves = input.logprobs.grad() != 0;
    EXPECT_EQ(loss.metrics.clipped, 4 - moves.sum().item<double>());
    return moves;
  };
  EXPECT_TRUE(torch::equal(moving(0.2, 0.2), torch::tensor({{true, false}, {false, true}})));
  EXPECT_TRUE(torch::equal(moving(0.2, 0.5), torch::tensor({{true, true}, {false, true}})));
  EXPECT_TRUE(torch::equal(moving(0.4, 0.2), torch::tensor({{true, false}, {true, true}})));
}

TEST(Loss, CountsAsClippedTheTokensWithoutAGradient) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Example example(seed);
    const Loss loss = Grpo(example.input, {}, example.normalizer);
    loss.value.backward();
    const Tensor still = ((example.input.logprobs.grad() == 0) * example.input.mask).sum();
    EXPECT_EQ(loss.metrics.clipped, still.item<double>()) << "seed " << seed;
  }
}

TEST(Loss, AsymReWeighsLogprobsByRewardAboveTheShiftedMean) {
  for (const Averaging averaging : kAveragings) {
    Example example(4);
    const LossOptions options{.kind = "asymre", .averaging = averaging, .baseline_shift = -0.1};
    const double expected = MeanOf(example, averaging, [&](int r, int i) {
      const double above = example.input.reward[r].item<double>() - (example.input.group_mean[r].item<double>() - 0.1);
      return -above * example.logprob(r, i);
    });
    EXPECT_NEAR(ComputeLoss(example.input, options, example.normalizer).value.item<double>(), expected, 1e-9);
  }
}

TEST(Loss, ReinforceTruncatesTheWeightAndDoesNotDifferentiateIt) {
  for (const Averaging averaging : kAveragings) {
    Example example(5);
    const LossOptions options{.kind = "reinforce", .averaging = averaging, .largest_weight = 1.5};
    const Loss loss = ComputeLoss(example.input, options, example.normalizer);
    double cut = 0;
    const double expected = MeanOf(example, averaging, [&](int r, int i) {
      cut += example.ratio(r, i) > 1.5 ? 1 : 0;
      return -std::min(example.ratio(r, i), 1.5) * example.advantage(r, i) * example.logprob(r, i);
    });
    EXPECT_NEAR(loss.value.item<double>(), expected, 1e-9);
    EXPECT_EQ(loss.metrics.clipped, cut);
    loss.value.backward();
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < r + 2; ++i) {
        const double share = averaging == Averaging::kToken ? 1.0 / 14 : 1.0 / (r + 2) / kRows;
        EXPECT_NEAR(example.at(example.input.logprobs.grad(), r, i),
                    -std::min(example.ratio(r, i), 1.5) * example.advantage(r, i) * share, 1e-9);
      }
    }
  }
}

TEST(Loss, SupervisedIsTheMeanOfMinusLogprob) {
  for (const Averaging averaging : kAveragings) {
    Example example(6);
    const double expected = MeanOf(example, averaging, [&](int r, int i) { return -example.logprob(r, i); });
    const LossOptions options{.kind = "supervised", .averaging = averaging};
    EXPECT_NEAR(ComputeLoss(example.input, options, example.normalizer).value.item<double>(), expected, 1e-9);
  }
}

TEST(Loss, KlTermIsTheThirdEstimator) {
  for (const Averaging averaging : kAveragings) {
    for (const char* kind : {"grpo", "asymre", "reinforce"}) {
      Example example(7);
      const auto value = [&](double kl_weight) {
        const LossOptions options{.kind = kind, .averaging = averaging, .kl_weight = kl_weight};
        return ComputeLoss(example.input, options, example.normalizer).value.item<double>();
      };
      const double expected = MeanOf(example, averaging, [&](int r, int i) {
        const double log_ratio = example.at(example.input.reference_logprobs, r, i) - example.logprob(r, i);
        return std::exp(log_ratio) - 1 - log_ratio;
      });
      EXPECT_NEAR(value(0.5) - value(0), 0.5 * expected, 1e-9) << kind;
      example.input.reference_logprobs = Tensor();
      EXPECT_THAT([&] { value(0.5); },
                  ::testing::ThrowsMessage<c10::Error>(HasSubstr("kl_weight is 0.5 but there is no reference")));
    }
  }
}

TEST(Loss, RefusesAKindThatItDoesNotKnow) {
  const Example example(1);
  EXPECT_THAT([&] { ComputeLoss(example.input, {.kind = "ppo"}, example.normalizer); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("the loss \"ppo\" is not known")));
}

TEST(Loss, GradientsAreSlopes) {
  for (const Averaging averaging : kAveragings) {
    ExpectGradientIsSlope(Example(8), {.kind = "grpo", .averaging = averaging, .kl_weight = 0.1});
    ExpectGradientIsSlope(Example(9), {.kind = "asymre", .averaging = averaging, .kl_weight = 0.1});
    ExpectGradientIsSlope(Example(10), {.kind = "supervised", .averaging = averaging});
  }
}

TEST(Loss, IsNotTouchedByWhatStandsBesideTheMask) {
  for (const char* kind : {"grpo", "asymre", "reinforce", "supervised"}) {
    for (const Averaging averaging : kAveragings) {
      const LossOptions options{.kind = kind, .averaging = averaging, .kl_weight = 0.1};
      const Example example(11);
      const Loss loss = ComputeLoss(example.input, options, example.normalizer);
      loss.value.backward();
      Example other(11);
      const auto spoil = [&](Tensor& tensor) {
        tensor = torch::where(other.input.mask > 0, tensor.detach(), torch::full({}, NAN, torch::kFloat64));
      };
      for (Tensor* tensor :
           {&other.input.logprobs, &other.input.behaviour_logprobs, &other.input.reference_logprobs, &other.input.advantage})
        spoil(*tensor);
      other.input.logprobs.requires_grad_(true);
      const Loss spoilt = ComputeLoss(other.input, options, other.normalizer);
      spoilt.value.backward();
      EXPECT_EQ(spoilt.value.item<double>(), loss.value.item<double>()) << kind;
      EXPECT_TRUE(torch::equal(other.input.logprobs.grad(), example.input.logprobs.grad())) << kind;
      EXPECT_EQ((example.input.logprobs.grad() * (1 - example.input.mask)).abs().sum().item<double>(), 0) << kind;
      EXPECT_EQ(spoilt.metrics.clipped, loss.metrics.clipped) << kind;
      EXPECT_EQ(spoilt.metrics.kl, loss.metrics.kl) << kind;
      EXPECT_EQ(spoilt.metrics.weight_squared, loss.metrics.weight_squared) << kind;
    }
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
  EXPECT_NEAR(metrics.kl, 1.0 / 3 - 1 + std::log(3.0), 1e-5);
  EXPECT_EQ(metrics.clipped, 1);
}

TEST(LossMetrics, OfPartsAddUpToThoseOfTheWhole) {
  const Example example(12);
  const torch::NoGradGuard no_grad;
  const LossMetrics whole = Grpo(example.input, {}, example.normalizer).metrics;
  LossMetrics parts;
  for (int64_t r = 0; r < kRows; ++r) {
    LossInput row = example.input;
    for (Tensor* tensor : {&row.logprobs, &row.behaviour_logprobs, &row.mask, &row.advantage})
      *tensor = tensor->narrow(0, r, 1);
    parts += Grpo(row, {}, example.normalizer).metrics;
  }
  EXPECT_EQ(parts.tokens, whole.tokens);
  EXPECT_EQ(parts.clipped, whole.clipped);
  EXPECT_EQ(parts.sequences, whole.sequences);
  EXPECT_NEAR(parts.ratio, whole.ratio, 1e-9);
  EXPECT_NEAR(parts.kl, whole.kl, 1e-9);
  EXPECT_NEAR(parts.weight, whole.weight, 1e-9 * whole.weight);
  EXPECT_NEAR(parts.weight_squared, whole.weight_squared, 1e-9 * whole.weight_squared);
}

// A thousand tokens that are each 5 % likelier than they were: w = e^50, whose square single precision does not hold.
TEST(LossMetrics, OfLongSequencesStayFinite) {
  LossInput input;
  input.mask = torch::ones({2, 1000});
  input.behaviour_logprobs = torch::full({2, 1000}, -1.0f);
  input.logprobs = torch::full({2, 1000}, -0.95f);
  input.advantage = torch::ones({2, 1000});
  const LossMetrics metrics = Grpo(input, {}, {.tokens = 2000, .sequences = 2}).metrics;
  EXPECT_NEAR(std::log(metrics.weight_squared / 2), 100, 1e-3);
  EXPECT_NEAR(metrics.weight * metrics.weight / (metrics.sequences * metrics.weight_squared), 1, 1e-6);
}

}  // namespace
}  // namespace replay::trainer
