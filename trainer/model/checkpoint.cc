#include "trainer/model/checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

namespace replay::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::to_string;
using torch::Tensor;

constexpr uint64_t kMaxHeaderBytes = 100u << 20;  // as the reference implementation
constexpr size_t kMaxDimensions = 8;

struct DtypeName {
  const char* name;
  torch::ScalarType dtype;
};
constexpr DtypeName kDtypes[] = {{"F64", torch::kFloat64}, {"F32", torch::kFloat32}, {"F16", torch::kFloat16},
                                 {"BF16", torch::kBFloat16}, {"I64", torch::kInt64},  {"I32", torch::kInt32},
                                 {"I16", torch::kInt16},    {"I8", torch::kInt8},    {"U8", torch::kUInt8},
                                 {"BOOL", torch::kBool}};

std::string DtypeText(torch::ScalarType dtype) {
  for (const DtypeName& known : kDtypes)
    if (known.dtype == dtype) return known.name;
  throw CheckpointError("a tensor of type " + std::string(c10::toString(dtype)) + " has no name in safetensors");
}

std::string ShapeText(c10::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

[[noreturn]] void FailErrno(const std::string& path, const char* what) {
  throw CheckpointError(path + ": " + what + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) FailErrno(path, "cannot be opened");
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  void Write(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = write(fd_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) FailErrno(path_, "cannot be written");
      at += written;
      size -= static_cast<size_t>(written);
    }
  }
  void SyncAndClose() {
    if (fsync(fd_) != 0) FailErrno(path_, "cannot be synced");
    if (close(std::exchange(fd_, -1)) != 0) FailErrno(path_, "cannot be closed");
  }

 private:
  const std::string path_;
  int fd_;
};

void SyncFolder(const fs::path& folder) {
  const File file(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
  if (fsync(file.fd()) != 0) FailErrno(folder.string(), "cannot be synced");
}

// `path` under a name of our own until it is complete.
std::string TemporaryName(const std::string& path) { return path + ".tmp" + to_string(getpid()); }

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) FailErrno(path, "cannot be opened");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

json ParseJson(const std::string& where, const std::string& text) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw CheckpointError(where + " is not a JSON object");
  return parsed;
}

}  // namespace

// --- safetensors ---------------------------------------------------------------------------------------------------------------

struct SafeTensors::Mapping {
  explicit Mapping(const std::string& path) {
    const File file(path, O_RDONLY);
    struct stat status{};
    if (fstat(file.fd(), &status) != 0) FailErrno(path, "cannot be read");
    size = static_cast<uint64_t>(status.st_size);
    if (size == 0) throw CheckpointError(path + " is empty");
    // Private and writable, so that torch may hold it as a tensor; nothing reaches the file.
    data = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.fd(), 0));
    if (data == MAP_FAILED) FailErrno(path, "cannot be mapped");
  }
  ~Mapping() { munmap(data, size); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data;
  uint64_t size;
};

SafeTensors::SafeTensors(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>(path)) {
  uint64_t header_bytes = 0;
  if (mapping_->size < sizeof header_bytes) throw CheckpointError(path + " has " + to_string(mapping_->size) + " bytes: not a safetensors file");
  std::memcpy(&header_bytes, mapping_->data, sizeof header_bytes);
  const uint64_t rest = mapping_->size - sizeof header_bytes;
  if (header_bytes > std::min(rest, kMaxHeaderBytes))
    throw CheckpointError(path + ": its header claims " + to_string(header_bytes) + " bytes, the file has " + to_string(mapping_->size) +
                          ": truncated, or not a safetensors file");
  data_at_ = sizeof header_bytes + header_bytes;
  ReadHeader({mapping_->data + sizeof header_bytes, header_bytes}, rest - header_bytes);
}

void SafeTensors::ReadHeader(const std::string& text, uint64_t data_bytes) {
  const json header = ParseJson(path_ + ": the header", text);
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (const auto& [name, value] : header.items()) {
    const auto fail = [&, &name = name](const std::string& what) { throw CheckpointError(path_ + ": tensor \"" + name + "\" " + what); };
    if (name == "__metadata__") {
      if (!value.is_object()) throw CheckpointError(path_ + ": __metadata__ is not an object");
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) throw CheckpointError(path_ + ": __metadata__." + key + " is not text");
        metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
      fail("has no dtype, shape and data_offsets");
    Entry entry{};
    const DtypeName* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& known) { return value["dtype"] == known.name; });
    if (dtype == std::end(kDtypes)) fail("has dtype " + value["dtype"].dump() + ", which is not supported");
    entry.dtype = dtype->dtype;
    if (!value["shape"].is_array() || value["shape"].size() > kMaxDimensions) fail("has a shape that is not a list of at most 8 sizes");
    uint64_t bytes = c10::elementSize(entry.dtype);
    for (const json& size : value["shape"]) {
      if (!size.is_number_unsigned()) fail("has a size " + size.dump() + " in its shape");
      if (__builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes) || size.get<uint64_t>() > INT64_MAX) fail("has a shape beyond all bounds");
      entry.shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
    }
    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail("has data_offsets that are not two positions");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.begin > entry.end || entry.end > data_bytes)
      fail("lies at " + to_string(entry.begin) + " to " + to_string(entry.end) + ", the file has " + to_string(data_bytes) + " bytes of data: truncated?");
    if (entry.end - entry.begin != bytes)
      fail("of shape " + ShapeText(entry.shape) + " takes " + to_string(bytes) + " bytes, its data_offsets span " + to_string(entry.end - entry.begin));
    pieces.emplace_back(entry.begin, entry.end);
    entries_.emplace(name, std::move(entry));
  }
  std::sort(pieces.begin(), pieces.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : pieces) {
    if (begin != covered) throw CheckpointError(path_ + ": the tensors " + (begin < covered ? "overlap" : "leave a gap") + " at byte " + to_string(begin));
    covered = end;
  }
  if (covered != data_bytes) throw CheckpointError(path_ + ": " + to_string(data_bytes - covered) + " bytes behind the last tensor");
}

std::vector<std::string> SafeTensors::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

Tensor SafeTensors::Get(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw CheckpointError(path_ + " has no tensor \"" + name + "\"");
  const Entry& entry = found->second;
  char* const data = mapping_->data + data_at_ + entry.begin;
  const auto options = torch::TensorOptions().dtype(entry.dtype);
  // A writer need not align its header; torch needs its elements aligned.
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.dtype) != 0) {
    Tensor copy = torch::empty(entry.shape, options);
    std::memcpy(copy.data_ptr(), data, entry.end - entry.begin);
    return copy;
  }
  return torch::from_blob(data, entry.shape, [mapping = mapping_](void*) {}, options);
}

void WriteSafeTensors(const std::string& path, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (header.contains(name)) throw CheckpointError(path + ": tensor \"" + name + "\" stands twice");
    header[name] = {{"dtype", DtypeText(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
  const uint64_t header_bytes = text.size();

  const std::string temporary = TemporaryName(path);
  try {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.Write(&header_bytes, sizeof header_bytes);
    file.Write(text.data(), text.size());
    for (const auto& [name, tensor] : tensors) {
      const Tensor bytes = tensor.detach().to(torch::kCPU).contiguous();
      file.Write(bytes.data_ptr(), bytes.nbytes());
    }
    file.SyncAndClose();
    if (rename(temporary.c_str(), path.c_str()) != 0) FailErrno(path, "cannot be put in place");
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  SyncFolder(fs::path(path).parent_path());
}

// --- config.json ---------------------------------------------------------------------------------------------------------------

namespace {

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
  scaling.original_max_position_embeddings = rope.Integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
}

json ConfigJson(const ModelConfig& config, torch::ScalarType dtype) {
  json object = {{"architectures", {config.model_type == "llama"   ? "LlamaForCausalLM"
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
                 {"torch_dtype", dtype == torch::kBFloat16 ? "bfloat16" : dtype == torch::kFloat16 ? "float16" : "float32"}};
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kLinear) object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
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
  if (const std::string act = config.Text("hidden_act", "silu"); act != "silu") config.Fail("hidden_act", "is \"" + act + "\": must be silu");
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
    const auto file = std::find_if(files.begin(), files.end(), [&, &name = name](const SafeTensors& each) { return each.Has(name); });
    if (file == files.end()) throw CheckpointError(folder + ": tensor \"" + name + "\" is missing; config.json asks for shape " + ShapeText(tensor.sizes()));
    const Tensor stored = file->Get(name);
    if (stored.sizes() != tensor.sizes())
      throw CheckpointError(file->path() + ": tensor \"" + name + "\" has shape " + ShapeText(stored.sizes()) + ", config.json asks for " + ShapeText(tensor.sizes()));
    if (!stored.is_floating_point()) throw CheckpointError(file->path() + ": tensor \"" + name + "\" is " + DtypeText(stored.scalar_type()) + ": must be F32, F16 or BF16");
    tensor.copy_(stored);
    used.insert(name);
  }
  for (const SafeTensors& file : files) {
    for (const std::string& name : file.Names()) {
      // Tied models are sometimes stored with both ends; and old ones with the frequencies of the rotation.
      if (used.contains(name) || (name == "lm_head.weight" && model.config().tie_word_embeddings) || name.ends_with("rotary_emb.inv_freq")) continue;
      throw CheckpointError(file.path() + ": tensor \"" + name + "\" is of no use to a " + model.config().model_type + " of this config.json");
    }
  }
  return model;
}

void SaveModel(const std::string& folder, const Transformer& model, const std::map<std::string, std::string>& metadata) {
  if (fs::exists(folder)) throw CheckpointError(folder + " exists already");
  const std::string temporary = TemporaryName(folder);
  try {
    std::error_code error;
    fs::remove_all(temporary, error);
    if (!fs::create_directories(temporary, error) && error) throw CheckpointError(temporary + " cannot be made: " + error.message());
    std::map<std::string, std::string> with_format = metadata;
    with_format["format"] = "pt";  // transformers asks for it
    WriteSafeTensors(temporary + "/model.safetensors", model.HuggingFaceTensors(), with_format);
    const std::string text = ConfigJson(model.config(), model.dtype()).dump(2) + "\n";
    File file(temporary + "/config.json", O_WRONLY | O_CREAT | O_TRUNC);
    file.Write(text.data(), text.size());
    file.SyncAndClose();
    if (rename(temporary.c_str(), folder.c_str()) != 0) FailErrno(folder, "cannot be put in place");
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  SyncFolder(fs::path(folder).parent_path());
}

}  // namespace replay::model
