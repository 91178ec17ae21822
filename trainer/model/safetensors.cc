#include "trainer/model/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <tuple>
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

constexpr char kMustBeOne[] = ": must be one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL";

const DtypeName* Find(torch::ScalarType dtype) {
  const auto found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& known) { return known.dtype == dtype; });
  return found == std::end(kDtypes) ? nullptr : found;
}

}  // namespace

std::string DtypeText(torch::ScalarType dtype) {
  const DtypeName* known = Find(dtype);
  return known ? known->name : c10::toString(dtype);
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
    if (!S_ISREG(status.st_mode)) throw CheckpointError(path + " is not a file");
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
  if (header_bytes > rest)
    throw CheckpointError(path + ": its header claims " + to_string(header_bytes) + " bytes, the file has " +
                          to_string(mapping_->size) + ": truncated, or not a safetensors file");
  if (header_bytes > kMaxHeaderBytes)
    throw CheckpointError(path + ": its header has " + to_string(header_bytes) + " bytes: must be at most " +
                          to_string(kMaxHeaderBytes));
  data_at_ = sizeof header_bytes + header_bytes;
  ReadHeader({mapping_->data + sizeof header_bytes, header_bytes}, rest - header_bytes);
}

void SafeTensors::ReadHeader(const std::string& text, uint64_t data_bytes) {
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) throw CheckpointError(path_ + ": the header is not a JSON object");
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> pieces;  // begin, end, name
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
    if (dtype == std::end(kDtypes)) fail("has dtype " + value["dtype"].dump() + kMustBeOne);
    entry.dtype = dtype->dtype;
    if (!value["shape"].is_array() || value["shape"].size() > kMaxDimensions)
      fail("has shape " + value["shape"].dump() + ": must be a list of at most " + to_string(kMaxDimensions) + " sizes");
    int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
    bool empty = false;
    for (const json& size : value["shape"]) {
      if (!size.is_number_unsigned()) fail("has a size " + size.dump() + " in its shape: must be a whole number of 0 or more");
      // Sizes of 0 are left out of the product, so that the others are bounded too: torch makes strides of them.
      empty |= size == 0;
      if (size != 0 && __builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes))
        fail("has shape " + value["shape"].dump() + ": must be below 2^63 bytes");
      entry.shape.push_back(size.get<int64_t>());
    }
    if (empty) bytes = 0;
    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail("has data_offsets " + offsets.dump() + ": must be two positions");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.begin > entry.end || entry.end > data_bytes)
      fail("lies at " + to_string(entry.begin) + " to " + to_string(entry.end) + ", the file has " + to_string(data_bytes) +
           " bytes of data: truncated?");
    if (entry.end - entry.begin != static_cast<uint64_t>(bytes))
      fail("of shape " + ShapeText(entry.shape) + " takes " + to_string(bytes) + " bytes, its data_offsets span " +
           to_string(entry.end - entry.begin));
    pieces.emplace_back(entry.begin, entry.end, name);
    entries_.emplace(name, std::move(entry));
  }
  std::sort(pieces.begin(), pieces.end());
  uint64_t covered = 0;
  for (const auto& [begin, end, name] : pieces) {
    if (begin != covered)
      throw CheckpointError(path_ + ": tensor \"" + name + "\" begins at byte " + to_string(begin) + " of the data, " +
                            (begin < covered ? "inside the one before it, which ends at " : "behind a gap, which begins at ") +
                            to_string(covered));
    covered = end;
  }
  if (covered != data_bytes)
    throw CheckpointError(path_ + ": the tensors end at byte " + to_string(covered) + " of the data, which has " +
                          to_string(data_bytes) + ": must be covered whole");
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
  if (entry.begin == entry.end) return torch::empty(entry.shape, options);
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
    if (!Find(tensor.scalar_type()))
      throw CheckpointError(path + ": tensor \"" + name + "\" is " + DtypeText(tensor.scalar_type()) + kMustBeOne);
    header[name] = {{"dtype", DtypeText(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, at + tensor.nbytes()}}};
    at += tensor.nbytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::type_error&) {
    throw CheckpointError(path + ": a name or a piece of metadata is not UTF-8");
  }
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
