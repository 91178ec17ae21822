#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace replay::trainer {

using torch::Tensor;

double LearningRate(const OptimizerOptions& options, int64_t step) {
  double rate = options.learning_rate;
  if (step < options.warmup_steps) rate *= static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  if (options.decay_end > 0 && step >= options.decay_begin)
    rate *= std::max(0.0, static_cast<double>(options.decay_end - step) /
                              static_cast<double>(std::max<int64_t>(1, options.decay_end - options.decay_begin)));
  return rate;
}

AdamW::AdamW(std::vector<Tensor> parameters, const OptimizerOptions& options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const Tensor& parameter : parameters_) {
    first_.push_back(torch::zeros_like(parameter, torch::kFloat32));
    second_.push_back(torch::zeros_like(parameter, torch::kFloat32));
  }
}

void AdamW::ClearGradients() {
  for (const Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
}

AdamW::Result AdamW::Step() {
  const torch::NoGradGuard no_grad;
  Result result{.learning_rate = LearningRate(options_, steps_taken_)};
  std::vector<Tensor> parameters, gradients, first, second, steps;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    parameters.push_back(parameters_[i]);
    gradients.push_back(parameters_[i].grad());
    first.push_back(first_[i]);
    second.push_back(second_[i]);
    // The kernel wants the number of this step, counted from 1, with each parameter.
    steps.push_back(torch::full({}, static_cast<float>(steps_taken_ + 1), torch::kFloat32));
  }
  if (gradients.empty()) return result;
  result.gradient_norm = torch::stack(at::_foreach_norm(gradients)).norm().item<double>();
  if (std::isfinite(result.gradient_norm)) {
    if (options_.max_gradient_norm > 0 && result.gradient_norm > options_.max_gradient_norm)
      at::_foreach_mul_(gradients, options_.max_gradient_norm / result.gradient_norm);
    at::_fused_adamw_(parameters, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, result.learning_rate, options_.beta1,
                      options_.beta2, options_.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
    ++steps_taken_;
    result.taken = true;
  }
  ClearGradients();
  return result;
}

std::vector<model::NamedTensor> AdamW::State() const {
  std::vector<model::NamedTensor> state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({"m." + std::to_string(i), first_[i]});
    state.push_back({"v." + std::to_string(i), second_[i]});
  }
  state.push_back({"steps", torch::full({1}, steps_taken_, torch::kInt64)});
  return state;
}

void AdamW::Load(const std::vector<model::NamedTensor>& state) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> first, second;  // all are found before any is taken over
  const auto find = [&](const std::string& name, c10::IntArrayRef shape) -> const Tensor& {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const model::NamedTensor& each) { return each.name == name; });
    TORCH_CHECK(found != state.end(), "the optimizer's state has no \"", name, "\"");
    TORCH_CHECK(found->tensor.sizes() == shape, "the optimizer's \"", name, "\" has shape ", found->tensor.sizes(),
                ", the model asks for ", shape);
    return found->tensor;
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    first.push_back(find("m." + std::to_string(i), parameters_[i].sizes()));
    second.push_back(find("v." + std::to_string(i), parameters_[i].sizes()));
  }
  steps_taken_ = find("steps", {1}).item<int64_t>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    first_[i].copy_(first[i]);
    second_[i].copy_(second[i]);
  }
}

}  // namespace replay::trainer
