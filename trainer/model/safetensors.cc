#include "trainer/model/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>

namespace replay::model {

namespace fs = std::filesystem;
using nlohmann::json;
using std::to_string;
using torch::Tensor;

namespace {

constexpr uint64_t kMaxHeaderBytes = 100u << 20;  // as the reference implementation
constexpr size_t kMaxDimensions = 8;

struct DtypeName {
  const char* name;
  torch::ScalarType dtype;
};
constexpr DtypeName kDtypes[] = {{"F64", torch::kFloat64},   {"F32", torch::kFloat32}, {"F16", torch::kFloat16},
                                 {"BF16", torch::kBFloat16}, {"I64", torch::kInt64},   {"I32", torch::kInt32},
                                 {"I16", torch::kInt16},     {"I8", torch::kInt8},     {"U8", torch::kUInt8},
                                 {"BOOL", torch::kBool}};

}  // namespace

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

struct SafeTensors::Mapping {
  explicit Mapping(const std::string& path) {
    const File file(path, O_RDONLY);
    struct stat status {};
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
  if (mapping_->size < sizeof header_bytes)
    throw CheckpointError(path + " has " + to_string(mapping_->size) + " bytes: not a safetensors file");
  std::memcpy(&header_bytes, mapping_->data, sizeof header_bytes);
  const uint64_t rest = mapping_->size - sizeof header_bytes;
  if (header_bytes > std::min(rest, kMaxHeaderBytes))
    throw CheckpointError(path + ": its header claims " + to_string(header_bytes) + " bytes, the file has " +
                          to_string(mapping_->size) + ": truncated, or not a safetensors file");
  data_at_ = sizeof header_bytes + header_bytes;
  ReadHeader({mapping_->data + sizeof header_bytes, header_bytes}, rest - header_bytes);
}

void SafeTensors::ReadHeader(const std::string& text, uint64_t data_bytes) {
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) throw CheckpointError(path_ + ": the header is not a JSON object");
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (const auto& [name, value] : header.items()) {
    const auto fail = [&, &name = name](const std::string& what) {
      throw CheckpointError(path_ + ": tensor \"" + name + "\" " + what);
    };
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
    const DtypeName* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                          [&](const DtypeName& known) { return value["dtype"] == known.name; });
    if (dtype == std::end(kDtypes)) fail("has dtype " + value["dtype"].dump() + ", which is not supported");
    entry.dtype = dtype->dtype;
    if (!value["shape"].is_array() || value["shape"].size() > kMaxDimensions)
      fail("has a shape that is not a list of at most 8 sizes");
    uint64_t bytes = c10::elementSize(entry.dtype);
    for (const json& size : value["shape"]) {
      if (!size.is_number_unsigned()) fail("has a size " + size.dump() + " in its shape");
      if (__builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes) || size.get<uint64_t>() > INT64_MAX)
        fail("has a shape beyond all bounds");
      entry.shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
    }
    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail("has data_offsets that are not two positions");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.begin > entry.end || entry.end > data_bytes)
      fail("lies at " + to_string(entry.begin) + " to " + to_string(entry.end) + ", the file has " + to_string(data_bytes) +
           " bytes of data: truncated?");
    if (entry.end - entry.begin != bytes)
      fail("of shape " + ShapeText(entry.shape) + " takes " + to_string(bytes) + " bytes, its data_offsets span " +
           to_string(entry.end - entry.begin));
    pieces.emplace_back(entry.begin, entry.end);
    entries_.emplace(name, std::move(entry));
  }
  std::sort(pieces.begin(), pieces.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : pieces) {
    if (begin != covered)
      throw CheckpointError(path_ + ": the tensors " + (begin < covered ? "overlap" : "leave a gap") + " at byte " +
                            to_string(begin));
    covered = end;
  }
  if (covered != data_bytes)
    throw CheckpointError(path_ + ": " + to_string(data_bytes - covered) + " bytes behind the last tensor");
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
  return torch::from_blob(
      data, entry.shape, [mapping = mapping_](void*) {}, options);
}

void WriteSafeTensors(const std::string& path, const std::vector<NamedTensor>& tensors, const SaveOptions& options) {
  json header = json::object();
  if (!options.metadata.empty()) header["__metadata__"] = options.metadata;
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (header.contains(name)) throw CheckpointError(path + ": tensor \"" + name + "\" stands twice");
    header[name] = {{"dtype", DtypeText(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
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
    file.Close(options.sync);
    if (rename(temporary.c_str(), path.c_str()) != 0) FailErrno(path, "cannot be put in place");
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  if (options.sync) SyncFolder(fs::path(path).parent_path());
}

}  // namespace replay::model
