#include "trainer/model/checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

namespace replay::model {

namespace fs = std::filesystem;
using nlohmann::json;
using std::to_string;
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
  double Number(const char* name, double fallback) const {
    if (!Has(name)) return fallback;
    if (!object_[name].is_number()) Fail(name, "is " + object_[name].dump() + ": must be a number");
    return object_[name].get<double>();
  }
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
  if (!config.at(key).is_object()) config.Fail(key, "must be an object");
  const ConfigReader rope(config.path() + ": " + key, config.at(key));
  model->rope_theta = rope.Number("rope_theta", model->rope_theta);
  const std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  if (type == "default") return;
  RopeScaling& scaling = model->rope_scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
  } else {
    config.Fail(key, "has rope_type \"" + type + "\": only default, linear and llama3 are supported");
  }
  scaling.factor = rope.Number("factor", 1);
  scaling.low_freq_factor = rope.Number("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = rope.Number("high_freq_factor", scaling.high_freq_factor);
  scaling.original_max_position_embeddings =
      rope.Integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
}

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
                 {"torch_dtype", dtype == torch::kBFloat16  ? "bfloat16"
                                 : dtype == torch::kFloat16 ? "float16"
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

// The files of `folder` that hold weights.
std::vector<SafeTensors> OpenWeights(const std::string& folder) {
  std::vector<SafeTensors> files;
  const std::string index = folder + "/model.safetensors.index.json";
  if (!fs::exists(index)) {
    files.emplace_back(folder + "/model.safetensors");
    return files;
  }
  const json parsed = ParseJson(index, ReadText(index));
  if (!parsed.contains("weight_map") || !parsed["weight_map"].is_object()) throw CheckpointError(index + " has no weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : parsed["weight_map"].items()) {
    // A name only: an index must not lead out of its folder.
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>())
      throw CheckpointError(index + ": weight_map." + tensor + " is " + file.dump() + ": must be the name of a file beside it");
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) files.emplace_back(folder + "/" + name);
  return files;
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
  model.qkv_bias = model.model_type == "qwen2";
  if (!model.qkv_bias && config.Flag("attention_bias", false)) config.Fail("attention_bias", "is true: not supported");
  model.qk_norm = model.model_type == "qwen3";
  ReadRope(config, &model);
  if (std::string error = CheckModelConfig(model); !error.empty()) throw CheckpointError(path + ": " + error);
  return model;
}

Transformer LoadModel(const std::string& folder, torch::Device device, torch::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  Transformer model(ReadModelConfig(folder), device, dtype);
  const std::vector<SafeTensors> files = OpenWeights(folder);
  std::set<std::string> used;
  for (const auto& [name, tensor] : model.HuggingFaceTensors()) {
    const auto file =
        std::find_if(files.begin(), files.end(), [&, &name = name](const SafeTensors& each) { return each.Has(name); });
    if (file == files.end())
      throw CheckpointError(folder + ": tensor \"" + name + "\" is missing; config.json asks for shape " +
                            ShapeText(tensor.sizes()));
    const Tensor stored = file->Get(name);
    if (stored.sizes() != tensor.sizes())
      throw CheckpointError(file->path() + ": tensor \"" + name + "\" has shape " + ShapeText(stored.sizes()) +
                            ", config.json asks for " + ShapeText(tensor.sizes()));
    if (!stored.is_floating_point())
      throw CheckpointError(file->path() + ": tensor \"" + name + "\" is " + DtypeText(stored.scalar_type()) +
                            ": must be F32, F16 or BF16");
    tensor.copy_(stored);
    used.insert(name);
  }
  for (const SafeTensors& file : files) {
    for (const std::string& name : file.Names()) {
      // Tied models are sometimes stored with both ends; and old ones with the frequencies of the rotation.
      if (used.contains(name) || (name == "lm_head.weight" && model.config().tie_word_embeddings) ||
          name.ends_with("rotary_emb.inv_freq"))
        continue;
      throw CheckpointError(file.path() + ": tensor \"" + name + "\" is of no use to a " + model.config().model_type +
                            " of this config.json");
    }
  }
  return model;
}

void SaveModel(const std::string& folder, const Transformer& model, const SaveOptions& options) {
  if (fs::exists(folder)) throw CheckpointError(folder + " exists already");
  const std::string temporary = TemporaryName(folder);
  try {
    std::error_code error;
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
    if (rename(temporary.c_str(), folder.c_str()) != 0) FailErrno(folder, "cannot be put in place");
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  if (options.sync) SyncFolder(fs::path(folder).parent_path());
}

}  // namespace replay::model
