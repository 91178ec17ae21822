#include "trainer/model/checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace replay::model {

namespace fs = std::filesystem;
using nlohmann::json;
using torch::Tensor;

namespace {

json ParseJson(const std::string& where, const std::string& text) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw CheckpointError(where + " is not a JSON object");
  return parsed;
}

class ConfigReader {
 public:
  ConfigReader(std::string path, const json& object) : path_(std::move(path)), object_(object) {}

  [[noreturn]] void Fail(const std::string& field, const std::string& what) const {
    throw CheckpointError(path_ + ": " + field + " " + what);
  }
  bool Has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  int64_t Integer(const char* name) const {
    if (!Has(name)) Fail(name, "is missing");
    if (!object_[name].is_number_integer()) Fail(name, "is " + object_[name].dump() + ": must be a whole number");
    return object_[name].get<int64_t>();
  }
  int64_t Integer(const char* name, int64_t fallback) const { return Has(name) ? Integer(name) : fallback; }
  double Number(const char* name) const {
    if (!Has(name)) Fail(name, "is missing");
    if (!object_[name].is_number()) Fail(name, "is " + object_[name].dump() + ": must be a number");
    return object_[name].get<double>();
  }
  double Number(const char* name, double fallback) const { return Has(name) ? Number(name) : fallback; }
  bool Flag(const char* name, bool fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_boolean()) Fail(name, "is " + object_[name].dump() + ": must be true or false");
    return object_[name].get<bool>();
  }
  std::string Text(const char* name, const std::string& fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_string()) Fail(name, "is " + object_[name].dump() + ": must be text");
    return object_[name].get<std::string>();
  }
  const json& at(const char* name) const { return object_[name]; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const json& object_;
};

// {"rope_type": "llama3", "factor": 32.0, …}; "type" in older files. Newer ones (transformers 5) call it rope_parameters and put
// rope_theta in it.
void ReadRope(const ConfigReader& config, ModelConfig* model) {
  model->rope_theta = config.Number("rope_theta", model->rope_theta);
  const char* const key = config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.Has(key)) return;
  if (!config.at(key).is_object()) config.Fail(key, "is " + config.at(key).dump() + ": must be an object");
  const ConfigReader rope(config.path() + ": " + key, config.at(key));
  model->rope_theta = rope.Number("rope_theta", model->rope_theta);
  const std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  if (type == "default") return;
  RopeScaling& scaling = model->rope_scaling;
  if (type != "linear" && type != "llama3") rope.Fail("rope_type", "is \"" + type + "\": must be default, linear or llama3");
  scaling.factor = rope.Number("factor");
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    return;
  }
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.low_freq_factor = rope.Number("low_freq_factor");
  scaling.high_freq_factor = rope.Number("high_freq_factor");
  scaling.original_max_position_embeddings = rope.Integer("original_max_position_embeddings");
}

bool HasQkvBias(const std::string& model_type) { return model_type == "qwen2"; }
bool HasQkNorm(const std::string& model_type) { return model_type == "qwen3"; }

json ConfigJson(const ModelConfig& config, torch::ScalarType dtype) {
  json object = {{"architectures",
                  {config.model_type == "llama"   ? "LlamaForCausalLM"
                   : config.model_type == "qwen2" ? "Qwen2ForCausalLM"
                                                  : "Qwen3ForCausalLM"}},
                 {"model_type", config.model_type},
                 {"vocab_size", config.vocab_size},
                 {"hidden_size", config.hidden_size},
                 {"intermediate_size", config.intermediate_size},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"num_attention_heads", config.num_attention_heads},
                 {"num_key_value_heads", config.num_key_value_heads},
                 {"head_dim", config.head_dim},
                 {"max_position_embeddings", config.max_position_embeddings},
                 {"rms_norm_eps", config.rms_norm_eps},
                 {"rope_theta", config.rope_theta},
                 {"tie_word_embeddings", config.tie_word_embeddings},
                 {"initializer_range", config.initializer_range},
                 {"hidden_act", "silu"},
                 {"torch_dtype", dtype == torch::kFloat64    ? "float64"
                                 : dtype == torch::kBFloat16 ? "bfloat16"
                                 : dtype == torch::kFloat16  ? "float16"
                                                             : "float32"}};
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kLinear)
    object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.kind == RopeScaling::Kind::kLlama3)
    object["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_freq_factor},
                              {"high_freq_factor", scaling.high_freq_factor},
                              {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  return object;
}

// The files of `folder` that hold weights: model.safetensors, or else those that the index names.
std::vector<SafeTensors> OpenWeights(const std::string& folder) {
  std::vector<SafeTensors> files;
  const std::string single = folder + "/model.safetensors", index = single + ".index.json";
  std::error_code unknown;  // then it is opened, which says why it cannot be
  if (fs::exists(single, unknown) || !fs::exists(index, unknown)) {
    files.emplace_back(single);
    return files;
  }
  const json parsed = ParseJson(index, ReadText(index));
  if (!parsed.contains("weight_map") || !parsed["weight_map"].is_object())
    throw CheckpointError(index + ": weight_map is not an object");
  std::set<std::string> names;
  for (const auto& [tensor, file] : parsed["weight_map"].items()) {
    // A name only: an index must not lead out of its folder.
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.find('/') != std::string::npos || !name.ends_with(".safetensors"))
      throw CheckpointError(index + ": weight_map." + tensor + " is " + file.dump() +
                            ": must be the name of a .safetensors file beside it");
    names.insert(name);
  }
  for (const std::string& name : names) files.emplace_back(folder + "/" + name);
  return files;
}

// Which of `files` holds each of the model's tensors, in their order; an error if one is missing, does not fit or is not asked for.
std::vector<const SafeTensors*> MatchWeights(const std::string& folder, const ModelConfig& config,
                                             const std::vector<NamedTensor>& tensors, const std::vector<SafeTensors>& files) {
  std::map<std::string, const SafeTensors*> holders;
  for (const SafeTensors& file : files) {
    for (const std::string& name : file.Names()) {
      const auto [other, is_new] = holders.emplace(name, &file);
      if (!is_new) throw CheckpointError(file.path() + ": tensor \"" + name + "\" is in " + other->second->path() + " too");
    }
  }
  std::vector<const SafeTensors*> matched;
  for (const auto& [name, tensor] : tensors) {
    const auto holder = holders.find(name);
    if (holder == holders.end())
      throw CheckpointError(folder + ": tensor \"" + name + "\" is missing; config.json asks for shape " +
                            ShapeText(tensor.sizes()));
    const SafeTensors& file = *matched.emplace_back(holder->second);
    const Tensor stored = file.Get(name);
    if (stored.sizes() != tensor.sizes())
      throw CheckpointError(file.path() + ": tensor \"" + name + "\" has shape " + ShapeText(stored.sizes()) +
                            ", config.json asks for " + ShapeText(tensor.sizes()));
    if (!stored.is_floating_point())
      throw CheckpointError(file.path() + ": tensor \"" + name + "\" is " + DtypeText(stored.scalar_type()) +
                            ": must be F64, F32, F16 or BF16");
    holders.erase(holder);
  }
  for (const auto& [name, file] : holders) {
    // Tied models are sometimes stored with both ends; and old ones with the frequencies of the rotation.
    if ((name == "lm_head.weight" && config.tie_word_embeddings) || name.ends_with("rotary_emb.inv_freq")) continue;
    throw CheckpointError(file->path() + ": tensor \"" + name + "\" is of no use to a " + config.model_type +
                          " of this config.json");
  }
  return matched;
}

}  // namespace

ModelConfig ReadModelConfig(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const json parsed = ParseJson(path, ReadText(path));
  const ConfigReader config(path, parsed);
  ModelConfig model;
  model.model_type = config.Text("model_type", "");
  if (model.model_type != "llama" && model.model_type != "qwen2" && model.model_type != "qwen3")
    config.Fail("model_type", "is \"" + model.model_type + "\": must be llama, qwen2 or qwen3");
  if (const std::string act = config.Text("hidden_act", "silu"); act != "silu")
    config.Fail("hidden_act", "is \"" + act + "\": must be silu");
  if (config.Flag("use_sliding_window", false)) config.Fail("use_sliding_window", "is true: sliding windows are not supported");
  if (config.Has("layer_types")) {
    for (const json& type : config.at("layer_types"))
      if (type != "full_attention") config.Fail("layer_types", "has " + type.dump() + ": only \"full_attention\" is supported");
  }
  if (config.Flag("mlp_bias", false)) config.Fail("mlp_bias", "is true: not supported");
  model.vocab_size = config.Integer("vocab_size");
  model.hidden_size = config.Integer("hidden_size");
  model.intermediate_size = config.Integer("intermediate_size");
  model.num_hidden_layers = config.Integer("num_hidden_layers");
  model.num_attention_heads = config.Integer("num_attention_heads");
  model.num_key_value_heads = config.Integer("num_key_value_heads", model.num_attention_heads);
  const int64_t per_head = model.num_attention_heads > 0 ? model.hidden_size / model.num_attention_heads : 0;
  model.head_dim = config.Integer("head_dim", model.model_type == "qwen3" ? 128 : per_head);
  model.max_position_embeddings = config.Integer("max_position_embeddings");
  model.rms_norm_eps = config.Number("rms_norm_eps", model.rms_norm_eps);
  model.tie_word_embeddings = config.Flag("tie_word_embeddings", false);
  model.initializer_range = config.Number("initializer_range", model.initializer_range);
  // Qwen2 always has the bias of q, k and v and never says so. What the others mean by attention_bias includes the output.
  model.qkv_bias = HasQkvBias(model.model_type);
  if (!model.qkv_bias && config.Flag("attention_bias", false)) config.Fail("attention_bias", "is true: not supported");
  model.qk_norm = HasQkNorm(model.model_type);
  ReadRope(config, &model);
  if (std::string error = CheckModelConfig(model); !error.empty()) throw CheckpointError(path + ": " + error);
  return model;
}

Transformer LoadModel(const std::string& folder, torch::Device device, torch::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  const ModelConfig config = ReadModelConfig(folder);
  const std::vector<SafeTensors> files = OpenWeights(folder);
  // First against shapes without memory: what a config.json claims is allocated only when the files bear it out.
  const auto holders = MatchWeights(folder, config, Transformer::Unset(config, torch::kMeta).HuggingFaceTensors(), files);
  Transformer model = Transformer::Unset(config, device, dtype);
  const std::vector<NamedTensor> tensors = model.HuggingFaceTensors();
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.copy_(holders[i]->Get(tensors[i].name));
  return model;
}

void SaveModel(const std::string& folder, const Transformer& model, const SaveOptions& options) {
  const ModelConfig& config = model.config();
  if (config.qkv_bias != HasQkvBias(config.model_type) || config.qk_norm != HasQkNorm(config.model_type))
    throw CheckpointError(folder + ": config.json cannot say that a " + config.model_type + " has " +
                          (config.qkv_bias ? "a" : "no") + " qkv_bias and " + (config.qk_norm ? "a" : "no") + " qk_norm");
  std::error_code error;
  if (fs::exists(folder, error)) throw CheckpointError(folder + " exists already");
  const std::string temporary = TemporaryName(folder);
  try {
    fs::remove_all(temporary, error);
    if (!fs::create_directories(temporary, error) && error)
      throw CheckpointError(temporary + " cannot be made: " + error.message());
    SaveOptions with_format = options;
    with_format.metadata["format"] = "pt";  // transformers asks for it
    WriteSafeTensors(temporary + "/model.safetensors", model.HuggingFaceTensors(), with_format);
    const std::string text = ConfigJson(model.config(), model.dtype()).dump(2) + "\n";
    File file(temporary + "/config.json", O_WRONLY | O_CREAT | O_TRUNC);
    file.Write(text.data(), text.size());
    file.Close(options.sync);
    if (options.sync) SyncFolder(temporary);
    if (rename(temporary.c_str(), folder.c_str()) != 0) FailErrno(folder, "cannot be put in place");
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  if (options.sync) SyncFolder(fs::path(folder).parent_path());
}

}  // namespace replay::model
