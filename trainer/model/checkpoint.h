#pragma once
// Models in the Hugging Face layout: a folder with config.json and model.safetensors (or several, named by
// model.safetensors.index.json).
//
//   safetensors file = u64 length | JSON header [length] | bytes
//   header           = { "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end] }, …, "__metadata__": {…} }
//
// Offsets count from the end of the header, little-endian, row-major; the tensors cover the bytes without a gap or an overlap
// (github.com/huggingface/safetensors, "Format").
//
// Whatever is wrong with a file is a CheckpointError that names the file, the tensor and the rule; nothing is allocated by what
// a header claims before it has been checked against the file's size.

#include <torch/torch.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/model/transformer.h"

namespace replay::model {

struct CheckpointError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file, mapped. Tensors are views of the mapping, which lives as long as any of them: do not write to them.
class SafeTensors {
 public:
  explicit SafeTensors(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> Names() const;
  bool Has(const std::string& name) const { return entries_.contains(name); }
  // In the file's dtype, on the CPU.
  torch::Tensor Get(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Mapping;
  struct Entry {
    torch::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin;
    uint64_t end;
  };

  void ReadHeader(const std::string& text, uint64_t data_bytes);

  const std::string path_;
  std::shared_ptr<Mapping> mapping_;
  uint64_t data_at_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes `path` so that it is there whole or not at all: beside it first, synced, then renamed. On failure, as when the disk is
// full, nothing is left behind and the error says why. Any device; contiguous or not.
void WriteSafeTensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// config.json of `folder`. Fields that this model cannot honour (a sliding window in use, another activation) are errors too.
ModelConfig ReadModelConfig(const std::string& folder);

// The model of `folder`, every weight checked against the configuration.
Transformer LoadModel(const std::string& folder, torch::Device device = torch::kCPU, torch::ScalarType dtype = torch::kFloat32);

// Makes `folder` with config.json and model.safetensors: whole or not at all, since it is renamed when complete. It must not exist.
void SaveModel(const std::string& folder, const Transformer& model, const std::map<std::string, std::string>& metadata = {});

}  // namespace replay::model
