#include "trainer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/golden.h"

namespace replay::trainer {
namespace {

using testing::GoldenLosses;
using ::testing::HasSubstr;
using testing::TensorOf;
using torch::Tensor;

Tensor Parameter(const Tensor& values) { return values.to(torch::kFloat32).clone().requires_grad_(true); }

std::vector<model::NamedTensor> Copied(const std::vector<model::NamedTensor>& state) {
  std::vector<model::NamedTensor> copies;
  for (const model::NamedTensor& each : state) copies.push_back({each.name, each.tensor.clone()});
  return copies;
}

void ExpectEqual(const std::vector<model::NamedTensor>& a, const std::vector<model::NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(torch::equal(a[i].tensor, b[i].tensor)) << a[i].name;
  }
}

TEST(LearningRate, WarmsUpAndDecays) {
  const OptimizerOptions options{.learning_rate = 1, .warmup_steps = 4, .decay_begin = 6, .decay_end = 10};
  const std::vector<double> expected = {0.25, 0.5, 0.75, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_DOUBLE_EQ(LearningRate(options, static_cast<int64_t>(step)), expected[step]) << step;
  EXPECT_DOUBLE_EQ(LearningRate({.learning_rate = 0.5}, 1'000'000), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate({.learning_rate = 0.5, .decay_begin = 7, .decay_end = 7}, 6), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate({.learning_rate = 0.5, .decay_begin = 7, .decay_end = 7}, 7), 0);
}

// The formulas of optimizer.h in plain double precision; parameters are single, which 20 steps of 0.01 keep to 1e-6.
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
  int bounded = 0;
  for (int step = 1; step <= 20; ++step) {
    a.mutable_grad() = torch::randn({3}) * step / 10;
    b.mutable_grad() = torch::randn({2, 2}) * step / 10;
    std::vector<double> g = read(a.grad(), b.grad());
    double norm = 0;
    for (const double each : g) norm += each * each;
    norm = std::sqrt(norm);
    const double scale = norm > 1.5 ? 1.5 / norm : 1;
    bounded += norm > 1.5 ? 1 : 0;
    const double rate = LearningRate(options, step - 1);
    for (size_t i = 0; i < 7; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i] * scale;
      v[i] = 0.95 * v[i] + 0.05 * g[i] * scale * g[i] * scale;
      p[i] -= rate * (0.1 * p[i] + m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8));
    }
    const AdamW::Result result = adam.Step();
    EXPECT_TRUE(result.taken);
    EXPECT_NEAR(result.gradient_norm, norm, 1e-6 * norm);
    EXPECT_DOUBLE_EQ(result.learning_rate, rate);
    const std::vector<double> now = read(a.detach(), b.detach());
    for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(now[i], p[i], 2e-6) << "step " << step << ", " << i;
    EXPECT_FALSE(a.grad().defined());
  }
  EXPECT_GT(bounded, 5);
  EXPECT_LT(bounded, 20);
}

// torch.optim.AdamW with clip_grad_norm_ and a warm-up, in double precision: within 2e-6 over 20 steps.
TEST(AdamW, AgreesWithPyTorch) {
  const nlohmann::json golden = GoldenLosses()["adamw"];
  const auto option = [&](const char* name) { return golden["options"][name].get<double>(); };
  std::vector<Tensor> parameters;
  for (size_t i = 0; i < 2; ++i)
    parameters.push_back(Parameter(TensorOf(golden["begin"][i]).view(golden["shapes"][i].get<std::vector<int64_t>>())));
  AdamW adam(parameters, {.learning_rate = option("learning_rate"),
                          .warmup_steps = golden["options"]["warmup_steps"].get<int64_t>(),
                          .beta1 = option("beta1"),
                          .beta2 = option("beta2"),
                          .epsilon = option("epsilon"),
                          .weight_decay = option("weight_decay"),
                          .max_gradient_norm = option("max_gradient_norm")});
  ASSERT_EQ(golden["steps"].size(), 20u);
  for (const nlohmann::json& step : golden["steps"]) {
    for (size_t i = 0; i < 2; ++i)
      parameters[i].mutable_grad() = TensorOf(step["gradients"][i]).to(torch::kFloat32).view_as(parameters[i]);
    const AdamW::Result result = adam.Step();
    EXPECT_NEAR(result.gradient_norm, step["norm"].get<double>(), 1e-6 * result.gradient_norm);
    for (size_t i = 0; i < 2; ++i) {
      const Tensor now = parameters[i].detach().to(torch::kFloat64).flatten();
      EXPECT_TRUE(torch::allclose(now, TensorOf(step["parameters"][i]), /*rtol=*/0, /*atol=*/2e-6))
          << "step " << adam.steps_taken() << ", parameter " << i;
    }
  }
}

TEST(AdamW, TakesNoStepOnAGradientThatIsNotFinite) {
  for (const float bad : {NAN, INFINITY, 3e38f}) {  // 3e38: finite, but its square is not
    const Tensor a = Parameter(torch::ones({3})), b = Parameter(torch::ones({2}));
    AdamW adam({a, b}, {.learning_rate = 0.1, .weight_decay = 0.1});
    const auto step = [&](float value) {
      a.mutable_grad() = torch::ones({3});
      b.mutable_grad() = torch::tensor({1.0f, value});
      return adam.Step();
    };
    EXPECT_TRUE(step(2).taken);
    const Tensor a_before = a.detach().clone(), b_before = b.detach().clone();
    const auto state = Copied(adam.State());
    const AdamW::Result result = step(bad);
    EXPECT_FALSE(result.taken);
    EXPECT_FALSE(std::isfinite(result.gradient_norm));
    EXPECT_TRUE(torch::equal(a, a_before));
    EXPECT_TRUE(torch::equal(b, b_before));
    EXPECT_EQ(adam.steps_taken(), 1);
    ExpectEqual(adam.State(), state);
    EXPECT_FALSE(b.grad().defined());  // nothing of it is left for the next step
    EXPECT_TRUE(step(2).taken);
  }
}

TEST(AdamW, LeavesAParameterWithoutAGradientAlone) {
  const Tensor a = Parameter(torch::ones({3})), b = Parameter(torch::ones({2}));
  AdamW adam({a, b}, {.learning_rate = 0.1, .weight_decay = 0.5});
  a.mutable_grad() = torch::ones({3});
  EXPECT_TRUE(adam.Step().taken);
  EXPECT_TRUE(torch::equal(b, torch::ones({2})));
  EXPECT_FALSE(torch::equal(a, torch::ones({3})));
  EXPECT_FALSE(adam.Step().taken);
}

TEST(AdamW, GoesOnFromItsStateToTheBit) {
  const auto gradient = [](int step) { return torch::sin(torch::arange(5, torch::kFloat32) * step); };
  const OptimizerOptions options{.learning_rate = 0.1, .warmup_steps = 10, .weight_decay = 0.1};
  const Tensor a = Parameter(torch::ones({5}));
  AdamW first({a}, options);
  for (int step = 0; step < 4; ++step) {
    a.mutable_grad() = gradient(step);
    first.Step();
  }
  const Tensor b = Parameter(a.detach());
  AdamW second({b}, options);
  second.Load(Copied(first.State()));
  ExpectEqual(second.State(), first.State());
  for (int step = 4; step < 8; ++step) {
    a.mutable_grad() = gradient(step);
    b.mutable_grad() = gradient(step);
    first.Step();
    second.Step();
  }
  EXPECT_TRUE(torch::equal(a, b));
  EXPECT_EQ(second.steps_taken(), 8);
}

TEST(AdamW, RefusesTheStateOfOtherParametersByNameAndKeepsItsOwn) {
  const Tensor a = Parameter(torch::ones({5})), b = Parameter(torch::ones({2}));
  AdamW adam({a, b}, {});
  a.mutable_grad() = torch::ones({5});
  adam.Step();
  const auto before = Copied(adam.State());
  const auto refusal = [&](auto change) -> std::string {
    auto state = Copied(before);
    for (model::NamedTensor& each : state) each.tensor += 1;
    change(state);
    try {
      adam.Load(state);
    } catch (const c10::Error& error) {
      ExpectEqual(adam.State(), before);
      return error.what_without_backtrace();
    }
    return "";
  };
  ASSERT_EQ(before[3].name, "v.1");
  EXPECT_EQ(refusal([](auto& state) { state[3].tensor = torch::ones({3}); }),
            "the optimizer's \"v.1\" has shape [3], the model asks for [2]");
  EXPECT_EQ(refusal([](auto& state) { state.erase(state.begin() + 3); }), "the optimizer's state has no \"v.1\"");
  EXPECT_EQ(refusal([](auto& state) { state.pop_back(); }), "the optimizer's state has no \"steps\"");
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(adam.steps_taken(), 2);
}

}  // namespace
}  // namespace replay::trainer
