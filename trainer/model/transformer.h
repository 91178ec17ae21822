#pragma once
// Transformer: the decoder-only language model of the Llama family, by configuration Llama, Qwen2/Qwen2.5 or Qwen3.
//
//   x = embed(ids)                                                     [batch, length, hidden]
//   each layer:  x += o( attention( rope(norm?(q)), rope(norm?(k)), v ) of rms_norm(x) )
//                x += down( silu(gate(h)) * up(h) ),  h = rms_norm(x)
//   logits = head( rms_norm(x) )                                       [batch, length, vocab]
//
// Grouped-query attention: query head i reads key/value head i / (heads / kv_heads). Weights carry the names and shapes of the
// Hugging Face layout; q, k and v are kept as one matrix, and so are gate and up: half the calls for the same sums.
//
// Two ways to run it, which agree within rounding:
//   Forward   whole sequences at once, with gradients: training, scoring, and the prompts that generation begins with
//   Extend    some tokens more of sequences whose keys and values are in a KvCache, without: generation
//
// Not thread-safe; generator and trainer own one each.

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/model/safetensors.h"

namespace replay::model {

// How positions beyond the trained length are folded into the rotation. Names as in config.json.
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;  // kLlama3 only, as the next two
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

// The fields of config.json that the computation depends on.
struct ModelConfig {
  std::string model_type = "qwen3";  // llama, qwen2, qwen3
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;  // the context: longer sequences are refused
  double rms_norm_eps = 1e-6;
  double rope_theta = 10'000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of each query and key head, before the rotation
  double initializer_range = 0.02;

  int64_t query_size() const { return num_attention_heads * head_dim; }
  int64_t kv_size() const { return num_key_value_heads * head_dim; }
};

// Empty, or the first rule that the configuration breaks: "hidden_size is 0: must be from 1 to 1048576".
std::string CheckModelConfig(const ModelConfig& config);

class KvCache;

class Transformer {
 public:
  // Random weights: normal with initializer_range, norms 1, biases 0. Seeded by torch::manual_seed.
  explicit Transformer(const ModelConfig& config, torch::Device device = torch::kCPU,
                       torch::ScalarType dtype = torch::kFloat32);
  // Weights of no value yet: for a model that another or a file is about to be copied into. On torch::kMeta only shapes.
  static Transformer Unset(const ModelConfig& config, torch::Device device = torch::kCPU,
                           torch::ScalarType dtype = torch::kFloat32);
  Transformer(Transformer&&) = default;
  Transformer& operator=(Transformer&&) = default;

  const ModelConfig& config() const { return config_; }
  torch::Device device() const { return embedding_.device(); }
  torch::ScalarType dtype() const { return embedding_.scalar_type(); }

  // ids int64 [batch, length], padded on the right: what stands behind a sequence's end does not reach what stands before it.
  // Returns the last hidden states, normed: [batch, length, hidden]. Where a cache is given, its rows 0 … batch-1 become the
  // sequences' keys and values.
  torch::Tensor Forward(const torch::Tensor& ids, KvCache* cache = nullptr) const;

  // `ids` int64 [rows, new] become the tokens lengths[r] … of rows 0 … rows-1 of the cache; lengths int64 [rows], on the
  // model's device, is not advanced. `longest`: at least every length + new. Returns hidden states [rows, new, hidden].
  // No gradients.
  torch::Tensor Extend(const torch::Tensor& ids, const torch::Tensor& lengths, int64_t longest, KvCache* cache) const;

  // hidden [..., hidden] -> [..., vocab]
  torch::Tensor Logits(const torch::Tensor& hidden) const;

  // The trained tensors: what an optimizer steps. Fused matrices are one parameter.
  std::vector<torch::Tensor> Parameters() const;
  int64_t parameter_count() const;

  // The same weights under their names in the Hugging Face layout: views, which share memory with the parameters.
  std::vector<NamedTensor> HuggingFaceTensors() const;
  // Copies the values in, all or none: `source` has tensors of the same names and shapes. Converts device and dtype.
  void CopyFrom(const Transformer& source);

 private:
  enum class Weights : uint8_t { kRandom, kUnset };
  Transformer(const ModelConfig& config, torch::Device device, torch::ScalarType dtype, Weights weights);

  struct Layer {
    torch::Tensor input_norm;            // [hidden]
    torch::Tensor qkv;                   // [query + 2 kv, hidden]
    torch::Tensor qkv_bias;              // [query + 2 kv], or undefined
    torch::Tensor query_norm, key_norm;  // [head_dim], or undefined
    torch::Tensor output;                // [hidden, query]
    torch::Tensor post_attention_norm;   // [hidden]
    torch::Tensor gate_up;               // [2 intermediate, hidden]
    torch::Tensor down;                  // [hidden, intermediate]
  };

  torch::Tensor Norm(const torch::Tensor& x, const torch::Tensor& weight) const;
  // q, k, v of x [rows, new, hidden], rotated by cosine and sine [rows or 1, 1, new, head_dim]: [rows, heads, new, head_dim].
  struct Heads {
    torch::Tensor query, key, value;
  };
  Heads Project(const Layer& layer, const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine) const;
  torch::Tensor FeedForward(const Layer& layer, const torch::Tensor& x) const;
  // All layers; attend(layer, heads) -> [rows, heads, new, head_dim].
  template <typename Attend>
  torch::Tensor Run(const torch::Tensor& ids, const torch::Tensor& cosine, const torch::Tensor& sine, Attend attend) const;
  void BuildRotation();
  template <typename Visit>
  void ForEachParameter(Visit visit) const;

  ModelConfig config_;
  torch::Tensor embedding_;  // [vocab, hidden]
  torch::Tensor final_norm_;
  torch::Tensor head_;  // [vocab, hidden]; undefined if tied
  std::vector<Layer> layers_;
  torch::Tensor cosine_, sine_;  // [max_position_embeddings, head_dim]
};

// Keys and values of up to `rows` sequences of up to `capacity` tokens: two tensors [rows, kv_heads, capacity, head_dim] for each
// layer. A row is reused by writing over it: what lies behind a row's length is never read.
class KvCache {
 public:
  KvCache(const Transformer& model, int64_t rows, int64_t capacity);

  int64_t rows() const { return rows_; }
  int64_t capacity() const { return capacity_; }
  // The first `length` tokens of source's row `from` become those of rows to[0], to[1] …
  void CopyRow(const KvCache& source, int64_t from, const std::vector<int64_t>& to, int64_t length);
  int64_t bytes() const;

 private:
  friend class Transformer;
  void CheckRoom(int64_t rows, int64_t longest) const;

  int64_t rows_;
  int64_t capacity_;
  std::vector<torch::Tensor> keys_, values_;  // by layer
};

}  // namespace replay::model
