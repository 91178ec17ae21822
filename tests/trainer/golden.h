#pragma once
// tests/golden/losses.json, which tests/golden/make_loss_goldens.py makes.

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace replay::trainer::testing {

inline nlohmann::json GoldenLosses() {
  return nlohmann::json::parse(test::ReadFile(std::string(REPLAY_GOLDEN_FOLDER) + "/losses.json"));
}

// A list, or a list of equally long lists, in double precision; null is NaN.
inline torch::Tensor TensorOf(const nlohmann::json& list) {
  std::vector<torch::Tensor> entries;
  for (const nlohmann::json& entry : list)
    entries.push_back(entry.is_array() ? TensorOf(entry)
                                       : torch::full({}, entry.is_null() ? NAN : entry.get<double>(), torch::kFloat64));
  return torch::stack(entries);
}

}  // namespace replay::trainer::testing
