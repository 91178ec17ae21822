#pragma once
// Models in the Hugging Face layout: a folder with config.json and model.safetensors (or several, named by
// model.safetensors.index.json). What is wrong with one is a CheckpointError that names the file, the field and the rule.

#include <torch/types.h>

#include <string>

#include "trainer/model/safetensors.h"
#include "trainer/model/transformer.h"

namespace replay::model {

// config.json of `folder`. Fields that this model cannot honour (a sliding window in use, another activation) are errors too.
ModelConfig ReadModelConfig(const std::string& folder);

// The model of `folder`, every weight checked against the configuration.
Transformer LoadModel(const std::string& folder, torch::Device device = torch::kCPU, torch::ScalarType dtype = torch::kFloat32);

// Makes `folder` with config.json and model.safetensors: whole or not at all, since it is renamed when complete. It must not exist.
void SaveModel(const std::string& folder, const Transformer& model, const SaveOptions& options = {});

}  // namespace replay::model
