#include "trainer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace replay::trainer {
namespace {

using torch::Tensor;

TEST(LearningRate, WarmsUpAndDecays) {
  const OptimizerOptions options{.learning_rate = 1, .warmup_steps = 4, .decay_begin = 6, .decay_end = 10};
  const std::vector<double> expected = {0.25, 0.5, 0.75, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_DOUBLE_EQ(LearningRate(options, static_cast<int64_t>(step)), expected[step]) << step;
  EXPECT_DOUBLE_EQ(LearningRate({.learning_rate = 0.5}, 1'000'000), 0.5);
}

// The formulas of optimizer.h in plain double precision.
TEST(AdamW, FollowsItsFormulas) {
  const OptimizerOptions options{
      .learning_rate = 0.01, .warmup_steps = 5, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .max_gradient_norm = 1.5};
  torch::manual_seed(1);
  const Tensor a = torch::randn({3}).requires_grad_(true), b = torch::randn({2, 2}).requires_grad_(true);
  std::vector<double> p, m(7, 0), v(7, 0);
  const auto read = [&](const Tensor& x, const Tensor& y) {
    const Tensor all = torch::cat({x.flatten(), y.flatten()}).to(torch::kFloat64).contiguous();
    return std::vector<double>(all.data_ptr<double>(), all.data_ptr<double>() + 7);
  };
  p = read(a.detach(), b.detach());
  AdamW adam({a, b}, options);
  for (int step = 1; step <= 20; ++step) {
    a.mutable_grad() = torch::randn({3}) * step / 5;
    b.mutable_grad() = torch::randn({2, 2}) * step / 5;
    std::vector<double> g = read(a.grad(), b.grad());
    double norm = 0;
    for (const double each : g) norm += each * each;
    norm = std::sqrt(norm);
    const double scale = norm > 1.5 ? 1.5 / norm : 1;
    const double rate = LearningRate(options, step - 1);
    for (size_t i = 0; i < 7; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i] * scale;
      v[i] = 0.95 * v[i] + 0.05 * g[i] * scale * g[i] * scale;
      p[i] -= rate * (0.1 * p[i] + m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8));
    }
    const AdamW::Result result = adam.Step();
    EXPECT_TRUE(result.taken);
    EXPECT_NEAR(result.gradient_norm, norm, 1e-4 * norm);
    EXPECT_DOUBLE_EQ(result.learning_rate, rate);
    const std::vector<double> now = read(a.detach(), b.detach());
    for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(now[i], p[i], 2e-5) << "step " << step << ", " << i;
    EXPECT_FALSE(a.grad().defined());
  }
}

TEST(AdamW, TakesNoStepOnAGradientThatIsNotFinite) {
  for (const float bad : {NAN, INFINITY}) {
    const Tensor a = torch::ones({3}).requires_grad_(true), b = torch::ones({2}).requires_grad_(true);
    AdamW adam({a, b}, {.learning_rate = 0.1});
    a.mutable_grad() = torch::ones({3});
    b.mutable_grad() = torch::tensor({1.0f, bad});
    const AdamW::Result result = adam.Step();
    EXPECT_FALSE(result.taken);
    EXPECT_FALSE(std::isfinite(result.gradient_norm));
    EXPECT_TRUE(torch::equal(a.detach(), torch::ones({3})));
    EXPECT_EQ(adam.steps_taken(), 0);
    for (const model::NamedTensor& each : adam.State()) EXPECT_EQ(each.tensor.abs().sum().item<double>(), 0) << each.name;
    EXPECT_FALSE(b.grad().defined());  // nothing of it is left for the next step
  }
}

TEST(AdamW, LeavesAParameterWithoutAGradientAlone) {
  const Tensor a = torch::ones({3}).requires_grad_(true), b = torch::ones({2}).requires_grad_(true);
  AdamW adam({a, b}, {.learning_rate = 0.1, .weight_decay = 0.5});
  a.mutable_grad() = torch::ones({3});
  EXPECT_TRUE(adam.Step().taken);
  EXPECT_TRUE(torch::equal(b.detach(), torch::ones({2})));
  EXPECT_FALSE(torch::equal(a.detach(), torch::ones({3})));
  EXPECT_FALSE(adam.Step().taken);
}

TEST(AdamW, GoesOnFromItsStateToTheBit) {
  const auto gradient = [](int step) { return torch::sin(torch::arange(5, torch::kFloat32) * step); };
  const Tensor a = torch::ones({5}).requires_grad_(true);
  AdamW first({a}, {.learning_rate = 0.1, .warmup_steps = 10});
  for (int step = 0; step < 4; ++step) {
    a.mutable_grad() = gradient(step);
    first.Step();
  }
  std::vector<model::NamedTensor> state;
  for (const model::NamedTensor& each : first.State()) state.push_back({each.name, each.tensor.clone()});
  const Tensor b = a.detach().clone().requires_grad_(true);
  AdamW second({b}, {.learning_rate = 0.1, .warmup_steps = 10});
  second.Load(state);
  for (int step = 4; step < 8; ++step) {
    a.mutable_grad() = gradient(step);
    b.mutable_grad() = gradient(step);
    first.Step();
    second.Step();
  }
  EXPECT_TRUE(torch::equal(a, b));
  AdamW other({torch::ones({6}).requires_grad_(true)}, {});
  EXPECT_THROW(other.Load(state), c10::Error);
}

}  // namespace
}  // namespace replay::trainer
