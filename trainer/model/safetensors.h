#pragma once
// The safetensors file format, read by mapping and written whole or not at all.
//
//   safetensors file = u64 length | JSON header [length] | bytes
//   header           = { "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end] }, …, "__metadata__": {…} }
//
// Offsets count from the end of the header, little-endian, row-major; the tensors cover the bytes without a gap or an overlap
// (github.com/huggingface/safetensors, "Format").
//
// Whatever is wrong with a file is a CheckpointError that names the file, the tensor and the rule; nothing is allocated by what
// a header claims before it has been checked against the file's size.

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/model/file.h"

namespace replay::model {

struct NamedTensor {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  torch::Tensor tensor;
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

struct SaveOptions {
  bool sync = true;  // to disk before the rename: survives a power cut. Without, a hundred times faster.
  std::map<std::string, std::string> metadata{};
};

// Writes `path` so that it is there whole or not at all: beside it first, then renamed. On failure, as when the disk is full,
// nothing is left behind and the error says why. Any device; contiguous or not.
void WriteSafeTensors(const std::string& path, const std::vector<NamedTensor>& tensors, const SaveOptions& options = {});

// "(2, 3)" and "BF16", as errors show them.
std::string ShapeText(c10::IntArrayRef shape);
std::string DtypeText(torch::ScalarType dtype);

}  // namespace replay::model
