#include "trainer/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <sstream>

namespace replay::model {

namespace {

using torch::Tensor;

std::string Text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// Rotation frequency of each pair of dimensions, [head_dim / 2]. Linear: all slower by `factor`. Llama 3: the slow ones slower by
// `factor`, the fast ones as they are, a linear blend between (Hugging Face transformers, modeling_rope_utils).
std::vector<double> RotationFrequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    double frequency = std::pow(config.rope_theta, -static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (scaling.kind == RopeScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::kLlama3) {
      const double turns = static_cast<double>(scaling.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
      const double kept =
          std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
      frequency *= kept + (1 - kept) / scaling.factor;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

// x [..., head_dim] turned: pairs are (i, i + head_dim/2). `sine` has the sign of its half in it, see BuildRotation.
Tensor Rotate(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  return torch::addcmul(x * cosine, x.roll(x.size(-1) / 2, -1), sine);
}

}  // namespace

std::string CheckModelConfig(const ModelConfig& config) {
  // Room for every model of these families, and no size of a tensor, at most 2 * intermediate_size * hidden_size = 2^43, can
  // overflow. The rotation's tables are made whole: 2 * 4 bytes * 2^20 positions * head_dim 128 = 1 GiB.
  const struct {
    const char* name;
    int64_t value, most;
  } sizes[] = {
      {"vocab_size", config.vocab_size, 1 << 24},
      {"hidden_size", config.hidden_size, 1 << 20},
      {"intermediate_size", config.intermediate_size, 1 << 22},
      {"num_hidden_layers", config.num_hidden_layers, 1'000},
      {"num_attention_heads", config.num_attention_heads, 1'024},
      {"num_key_value_heads", config.num_key_value_heads, 1'024},
      {"head_dim", config.head_dim, 1'024},
      {"max_position_embeddings", config.max_position_embeddings, 1 << 20},
      {"rope_scaling.original_max_position_embeddings", config.rope_scaling.original_max_position_embeddings, 1 << 20}};
  for (const auto& [name, value, most] : sizes) {
    if (value < 1 || value > most)
      return std::string(name) + " is " + std::to_string(value) + ": must be from 1 to " + std::to_string(most);
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    return "num_attention_heads is " + std::to_string(config.num_attention_heads) +
           ": must be a multiple of num_key_value_heads, " + std::to_string(config.num_key_value_heads);
  if (config.head_dim % 2 != 0) return "head_dim is " + std::to_string(config.head_dim) + ": must be even";
  const RopeScaling& scaling = config.rope_scaling;
  const struct {
    const char* name;
    double value, least;
  } numbers[] = {{"rope_theta", config.rope_theta, 1},
                 {"rms_norm_eps", config.rms_norm_eps, 1e-12},
                 {"initializer_range", config.initializer_range, 0},
                 {"rope_scaling.factor", scaling.factor, 1},
                 {"rope_scaling.low_freq_factor", scaling.low_freq_factor, 0}};
  for (const auto& [name, value, least] : numbers) {
    if (!(value >= least && std::isfinite(value)))
      return std::string(name) + " is " + Text(value) + ": must be at least " + Text(least);
  }
  if (!(scaling.high_freq_factor > scaling.low_freq_factor && std::isfinite(scaling.high_freq_factor)))
    return "rope_scaling.high_freq_factor is " + Text(scaling.high_freq_factor) + ": must be above low_freq_factor, " +
           Text(scaling.low_freq_factor);
  return "";
}

Transformer::Transformer(const ModelConfig& config, torch::Device device, torch::ScalarType dtype)
    : Transformer(config, device, dtype, Weights::kRandom) {}

Transformer Transformer::Unset(const ModelConfig& config, torch::Device device, torch::ScalarType dtype) {
  return Transformer(config, device, dtype, Weights::kUnset);
}

Transformer::Transformer(const ModelConfig& config, torch::Device device, torch::ScalarType dtype, Weights weights)
    : config_(config) {
  const std::string error = CheckModelConfig(config);
  TORCH_CHECK(error.empty(), error);
  const auto options = torch::TensorOptions().device(device).dtype(dtype);
  const auto matrix = [&](int64_t rows, int64_t columns) {
    if (weights == Weights::kUnset) return torch::empty({rows, columns}, options);
    return (torch::randn({rows, columns}, torch::kFloat32) * config.initializer_range).to(options);
  };
  embedding_ = matrix(config.vocab_size, config.hidden_size);
  if (!config.tie_word_embeddings) head_ = matrix(config.vocab_size, config.hidden_size);
  final_norm_ = torch::ones({config.hidden_size}, options);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    Layer layer;
    layer.input_norm = torch::ones({config.hidden_size}, options);
    layer.qkv = matrix(config.query_size() + 2 * config.kv_size(), config.hidden_size);
    if (config.qkv_bias) layer.qkv_bias = torch::zeros({config.query_size() + 2 * config.kv_size()}, options);
    if (config.qk_norm) {
      layer.query_norm = torch::ones({config.head_dim}, options);
      layer.key_norm = torch::ones({config.head_dim}, options);
    }
    layer.output = matrix(config.hidden_size, config.query_size());
    layer.post_attention_norm = torch::ones({config.hidden_size}, options);
    layer.gate_up = matrix(2 * config.intermediate_size, config.hidden_size);
    layer.down = matrix(config.hidden_size, config.intermediate_size);
    layers_.push_back(std::move(layer));
  }
  ForEachParameter([](Tensor tensor) { tensor.requires_grad_(true); });
  BuildRotation();
}

// cosine and sine of each position's angles, twice side by side; the sine of the first half negative, so that Rotate needs no
// other sign: (a, b) -> (a cos - b sin, b cos + a sin).
void Transformer::BuildRotation() {
  const auto frequencies = torch::tensor(RotationFrequencies(config_), torch::kFloat64).to(device(), torch::kFloat32);
  const auto positions = torch::arange(config_.max_position_embeddings, frequencies.options());
  const Tensor angles = torch::outer(positions, frequencies);
  cosine_ = torch::cat({angles.cos(), angles.cos()}, -1).to(dtype());
  sine_ = torch::cat({-angles.sin(), angles.sin()}, -1).to(dtype());
}

Tensor Transformer::Norm(const Tensor& x, const Tensor& weight) const {
  return at::rms_norm(x, {x.size(-1)}, weight, config_.rms_norm_eps);
}

Transformer::Heads Transformer::Project(const Layer& layer, const Tensor& x, const Tensor& cosine, const Tensor& sine) const {
  const int64_t rotated = config_.num_attention_heads + config_.num_key_value_heads;
  const Tensor all = torch::linear(x, layer.qkv, layer.qkv_bias)
                         .view({x.size(0), x.size(1), rotated + config_.num_key_value_heads, config_.head_dim});
  Tensor turning = all.narrow(2, 0, rotated);
  if (config_.qk_norm) {
    turning = torch::cat({Norm(turning.narrow(2, 0, config_.num_attention_heads), layer.query_norm),
                          Norm(turning.narrow(2, config_.num_attention_heads, config_.num_key_value_heads), layer.key_norm)},
                         2);
  }
  turning = Rotate(turning, cosine, sine).transpose(1, 2);
  return {turning.narrow(1, 0, config_.num_attention_heads),
          turning.narrow(1, config_.num_attention_heads, config_.num_key_value_heads),
          all.narrow(2, rotated, config_.num_key_value_heads).transpose(1, 2)};
}

Tensor Transformer::FeedForward(const Layer& layer, const Tensor& x) const {
  const Tensor both = torch::linear(x, layer.gate_up);
  return torch::linear(torch::silu(both.narrow(-1, 0, config_.intermediate_size)) *
                           both.narrow(-1, config_.intermediate_size, config_.intermediate_size),
                       layer.down);
}

template <typename Attend>
Tensor Transformer::Run(const Tensor& ids, const Tensor& cosine, const Tensor& sine, Attend attend) const {
  Tensor x = torch::embedding(embedding_, ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const Heads heads = Project(layer, Norm(x, layer.input_norm), cosine, sine);
    x = x + torch::linear(attend(i, heads).transpose(1, 2).flatten(2), layer.output);
    x = x + FeedForward(layer, Norm(x, layer.post_attention_norm));
  }
  return Norm(x, final_norm_);
}

Tensor Transformer::Forward(const Tensor& ids, KvCache* cache) const {
  const int64_t batch = ids.size(0), length = ids.size(1);
  TORCH_CHECK(length <= config_.max_position_embeddings, "a sequence of ", length, " tokens: the model's context is ",
              config_.max_position_embeddings);
  if (cache) cache->CheckRoom(batch, length);
  const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
  const auto per_query_head = [&](const Tensor& x) { return group == 1 ? x : x.repeat_interleave(group, 1); };
  const auto attend = [&](size_t layer, const Heads& heads) {
    if (cache) {
      cache->keys_[layer].narrow(0, 0, batch).narrow(2, 0, length).copy_(heads.key.detach());
      cache->values_[layer].narrow(0, 0, batch).narrow(2, 0, length).copy_(heads.value.detach());
    }
    return at::scaled_dot_product_attention(heads.query, per_query_head(heads.key), per_query_head(heads.value),
                                            /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true);
  };
  return Run(ids, cosine_.narrow(0, 0, length).view({1, length, 1, config_.head_dim}),
             sine_.narrow(0, 0, length).view({1, length, 1, config_.head_dim}), attend);
}

Tensor Transformer::Extend(const Tensor& ids, const Tensor& lengths, int64_t longest, KvCache* cache) const {
  const torch::NoGradGuard no_grad;
  const int64_t rows = ids.size(0), added = ids.size(1);
  const int64_t kv_heads = config_.num_key_value_heads, group = config_.num_attention_heads / kv_heads, dim = config_.head_dim;
  cache->CheckRoom(rows, longest);
  const Tensor positions = lengths.unsqueeze(1) + torch::arange(added, lengths.options());  // [rows, added]
  const Tensor flat = positions.flatten();
  const Tensor place = positions.view({rows, 1, added, 1}).expand({rows, kv_heads, added, dim});
  // Added to the scores: 0 where a token may look, else -inf. Made once, in the type that each layer's attention would make it.
  const Tensor hidden = torch::arange(longest, lengths.options()) > positions.unsqueeze(-1);  // [rows, added, longest]
  // The query heads that share a key head stand side by side as if they were further queries of it: nothing is repeated.
  const Tensor mask = torch::zeros(hidden.sizes(), cosine_.options())
                          .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
                          .view({rows, 1, 1, added, longest})
                          .expand({rows, 1, group, added, longest})
                          .reshape({rows, 1, group * added, longest});
  const auto attend = [&](size_t layer, const Heads& heads) {
    const Tensor keys = cache->keys_[layer].narrow(0, 0, rows), values = cache->values_[layer].narrow(0, 0, rows);
    keys.scatter_(2, place, heads.key);
    values.scatter_(2, place, heads.value);
    return at::scaled_dot_product_attention(heads.query.reshape({rows, kv_heads, group * added, dim}),
                                            keys.narrow(2, 0, longest), values.narrow(2, 0, longest), mask)
        .view({rows, config_.num_attention_heads, added, dim});
  };
  return Run(ids, cosine_.index_select(0, flat).view({rows, added, 1, dim}),
             sine_.index_select(0, flat).view({rows, added, 1, dim}), attend);
}

Tensor Transformer::Logits(const Tensor& hidden) const { return torch::linear(hidden, head_.defined() ? head_ : embedding_); }

template <typename Visit>
void Transformer::ForEachParameter(Visit visit) const {
  visit(embedding_);
  for (const Layer& layer : layers_) {
    visit(layer.input_norm);
    visit(layer.qkv);
    if (layer.qkv_bias.defined()) visit(layer.qkv_bias);
    if (layer.query_norm.defined()) visit(layer.query_norm);
    if (layer.key_norm.defined()) visit(layer.key_norm);
    visit(layer.output);
    visit(layer.post_attention_norm);
    visit(layer.gate_up);
    visit(layer.down);
  }
  visit(final_norm_);
  if (head_.defined()) visit(head_);
}

std::vector<Tensor> Transformer::Parameters() const {
  std::vector<Tensor> parameters;
  ForEachParameter([&](const Tensor& tensor) { parameters.push_back(tensor); });
  return parameters;
}

int64_t Transformer::parameter_count() const {
  int64_t count = 0;
  ForEachParameter([&](const Tensor& tensor) { count += tensor.numel(); });
  return count;
}

std::vector<NamedTensor> Transformer::HuggingFaceTensors() const {
  const int64_t query = config_.query_size(), kv = config_.kv_size(), intermediate = config_.intermediate_size;
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", embedding_.detach()}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const char* name, const Tensor& tensor) { tensors.push_back({prefix + name, tensor.detach()}); };
    add("input_layernorm.weight", layer.input_norm);
    add("self_attn.q_proj.weight", layer.qkv.narrow(0, 0, query));
    add("self_attn.k_proj.weight", layer.qkv.narrow(0, query, kv));
    add("self_attn.v_proj.weight", layer.qkv.narrow(0, query + kv, kv));
    if (config_.qkv_bias) {
      add("self_attn.q_proj.bias", layer.qkv_bias.narrow(0, 0, query));
      add("self_attn.k_proj.bias", layer.qkv_bias.narrow(0, query, kv));
      add("self_attn.v_proj.bias", layer.qkv_bias.narrow(0, query + kv, kv));
    }
    if (config_.qk_norm) {
      add("self_attn.q_norm.weight", layer.query_norm);
      add("self_attn.k_norm.weight", layer.key_norm);
    }
    add("self_attn.o_proj.weight", layer.output);
    add("post_attention_layernorm.weight", layer.post_attention_norm);
    add("mlp.gate_proj.weight", layer.gate_up.narrow(0, 0, intermediate));
    add("mlp.up_proj.weight", layer.gate_up.narrow(0, intermediate, intermediate));
    add("mlp.down_proj.weight", layer.down);
  }
  tensors.push_back({"model.norm.weight", final_norm_.detach()});
  if (head_.defined()) tensors.push_back({"lm_head.weight", head_.detach()});
  return tensors;
}

void Transformer::CopyFrom(const Transformer& source) {
  const torch::NoGradGuard no_grad;
  const std::vector<NamedTensor> theirs = source.HuggingFaceTensors(), ours = HuggingFaceTensors();
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    TORCH_CHECK(i < ours.size(), "the other model has a tensor \"", theirs[i].name, "\", this one has not");
    TORCH_CHECK(i < theirs.size() && theirs[i].name == ours[i].name, "this model has a tensor \"", ours[i].name,
                "\", the other one has not");
    TORCH_CHECK(theirs[i].tensor.sizes() == ours[i].tensor.sizes(), "tensor \"", ours[i].name, "\" has shape ",
                ours[i].tensor.sizes(), ", that of the other model ", theirs[i].tensor.sizes());
  }
  for (size_t i = 0; i < ours.size(); ++i) ours[i].tensor.copy_(theirs[i].tensor);
}

KvCache::KvCache(const Transformer& model, int64_t rows, int64_t capacity) : rows_(rows), capacity_(capacity) {
  const ModelConfig& config = model.config();
  TORCH_CHECK(rows >= 1, "a cache of ", rows, " rows: must be at least 1");
  TORCH_CHECK(capacity >= 1, "a cache of ", capacity, " tokens: must be at least 1");
  TORCH_CHECK(capacity <= config.max_position_embeddings, "a cache of ", capacity, " tokens: the model's context is ",
              config.max_position_embeddings);
  const auto options = torch::TensorOptions().device(model.device()).dtype(model.dtype());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    // Zero, not uninitialised: what is masked is still multiplied by 0, and 0 times NaN is NaN.
    keys_.push_back(torch::zeros({rows, config.num_key_value_heads, capacity, config.head_dim}, options));
    values_.push_back(torch::zeros({rows, config.num_key_value_heads, capacity, config.head_dim}, options));
  }
}

void KvCache::CheckRoom(int64_t rows, int64_t longest) const {
  TORCH_CHECK(rows <= rows_ && longest <= capacity_, rows, " sequences of up to ", longest,
              " tokens do not fit into a cache of ", rows_, " by ", capacity_);
}

void KvCache::CopyRow(const KvCache& source, int64_t from, const std::vector<int64_t>& to, int64_t length) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const Tensor key = source.keys_[i][from].narrow(1, 0, length), value = source.values_[i][from].narrow(1, 0, length);
    for (const int64_t row : to) {
      keys_[i][row].narrow(1, 0, length).copy_(key);
      values_[i][row].narrow(1, 0, length).copy_(value);
    }
  }
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& key : keys_) bytes += 2 * static_cast<int64_t>(key.nbytes());
  return bytes;
}

}  // namespace replay::model
