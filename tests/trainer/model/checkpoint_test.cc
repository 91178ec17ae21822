#include "trainer/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "schema/json_config.h"
#include "tests/support/temporary_folder.h"

namespace replay::model {
namespace {

using nlohmann::json;
using test::ReadFile;
using test::TemporaryFolder;
using test::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

ModelConfig SmallConfig(const std::string& type) {
  ModelConfig config;
  config.model_type = type;
  config.qkv_bias = type == "qwen2";
  config.qk_norm = type == "qwen3";
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  return config;
}

void ExpectEqual(const Transformer& a, const Transformer& b) {
  const std::vector<NamedTensor> ours = a.HuggingFaceTensors(), theirs = b.HuggingFaceTensors();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].name, theirs[i].name);
    EXPECT_TRUE(torch::equal(ours[i].tensor, theirs[i].tensor)) << ours[i].name;
  }
}

std::string ErrorOf(const std::string& folder) {
  try {
    LoadModel(folder);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(Checkpoint, ComesBackBitForBitWithItsConfiguration) {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    for (const bool tied : {false, true}) {
      const TemporaryFolder folder;
      ModelConfig config = SmallConfig(type);
      config.tie_word_embeddings = tied;
      config.rope_theta = 5e5;
      if (std::string(type) == "llama") config.rope_scaling = {.kind = RopeScaling::Kind::kLlama3, .factor = 8};
      const Transformer model(config);
      SaveModel(folder / "m", model);
      ExpectEqual(LoadModel(folder / "m"), model);
      const ModelConfig back = ReadModelConfig(folder / "m");
      EXPECT_EQ(back.model_type, type);
      EXPECT_EQ(back.tie_word_embeddings, tied);
      EXPECT_EQ(back.rope_theta, 5e5);
      EXPECT_EQ(back.rope_scaling.factor, config.rope_scaling.factor);
      EXPECT_EQ(folder.entries(), 1u);
    }
  }
}

TEST(Checkpoint, ReadsHalfPrecisionIntoSingle) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    const TemporaryFolder folder;
    const Transformer half(SmallConfig("qwen3"), torch::kCPU, dtype);
    SaveModel(folder / "m", half);
    Transformer single(SmallConfig("qwen3"));
    single.CopyFrom(half);
    ExpectEqual(LoadModel(folder / "m"), single);
    ExpectEqual(LoadModel(folder / "m", torch::kCPU, dtype), half);
  }
}

TEST(Checkpoint, ReadsWeightsThatLieInSeveralFiles) {
  const TemporaryFolder folder;
  const Transformer model(SmallConfig("llama"));
  SaveModel(folder / "m", model);
  std::vector<NamedTensor> parts[2];
  json map;
  for (const NamedTensor& each : model.HuggingFaceTensors()) {
    const size_t part = map.size() % 2;
    parts[part].push_back(each);
    map[each.name] = "part-" + std::to_string(part) + ".safetensors";
  }
  std::filesystem::remove(folder / "m/model.safetensors");
  for (size_t i = 0; i < 2; ++i) WriteSafeTensors(folder / ("m/part-" + std::to_string(i) + ".safetensors"), parts[i]);
  WriteFile(folder / "m/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  ExpectEqual(LoadModel(folder / "m"), model);
  map.begin().value() = "../part-0.safetensors";
  WriteFile(folder / "m/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("must be the name of a file beside it"));
}

TEST(Checkpoint, NamesWhatIsWrongWithConfigJson) {
  const TemporaryFolder folder;
  SaveModel(folder / "m", Transformer(SmallConfig("qwen3")));
  const json good = json::parse(ReadFile(folder / "m/config.json"));
  const auto changed = [&](const std::function<void(json&)>& change) {
    json config = good;
    change(config);
    WriteFile(folder / "m/config.json", config.dump());
    return ErrorOf(folder / "m");
  };
  EXPECT_EQ(changed([](json&) {}), "");
  EXPECT_THAT(changed([](json& c) { c.erase("hidden_size"); }), HasSubstr("config.json: hidden_size is missing"));
  EXPECT_THAT(changed([](json& c) { c["hidden_size"] = "8"; }), HasSubstr("hidden_size is \"8\": must be a whole number"));
  EXPECT_THAT(changed([](json& c) { c["num_attention_heads"] = 0; }),
              HasSubstr("num_attention_heads is 0: must be at least 1"));
  EXPECT_THAT(changed([](json& c) { c["model_type"] = "gpt2"; }),
              HasSubstr("model_type is \"gpt2\": must be llama, qwen2 or qwen3"));
  EXPECT_THAT(changed([](json& c) { c["hidden_act"] = "gelu"; }), HasSubstr("hidden_act is \"gelu\": must be silu"));
  EXPECT_THAT(changed([](json& c) { c["use_sliding_window"] = true; }), HasSubstr("sliding windows are not supported"));
  EXPECT_THAT(changed([](json& c) { c["rope_scaling"] = {{"rope_type", "yarn"}}; }), HasSubstr("has rope_type \"yarn\""));
  EXPECT_THAT(changed([](json& c) { c["intermediate_size"] = 13; }),
              AllOf(HasSubstr("\"model.layers.0.mlp.gate_proj.weight\" has shape [12, 8], config.json asks for [13, 8]")));
  EXPECT_THAT(changed([](json& c) { c["num_hidden_layers"] = 3; }),
              HasSubstr("tensor \"model.layers.2.input_layernorm.weight\" is missing"));
  EXPECT_THAT(changed([](json& c) { c["num_hidden_layers"] = 1; }), HasSubstr("is of no use to a qwen3 of this config.json"));
  WriteFile(folder / "m/config.json", "{");
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("config.json is not a JSON object"));
  std::filesystem::remove(folder / "m/config.json");
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("config.json: cannot be opened"));
}

TEST(Checkpoint, NamesWhatIsWrongWithTheWeights) {
  const TemporaryFolder folder;
  const Transformer model(SmallConfig("llama"));
  SaveModel(folder / "m", model);
  const std::string path = folder / "m/model.safetensors";
  std::vector<NamedTensor> tensors = model.HuggingFaceTensors();
  tensors[0].tensor = torch::ones({11, 8}, torch::kInt64);
  WriteSafeTensors(path, tensors);
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("\"model.embed_tokens.weight\" is I64: must be F32, F16 or BF16"));
  std::filesystem::remove(path);
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("model.safetensors: cannot be opened"));
}

TEST(Checkpoint, IsNeverWrittenOverAnother) {
  const TemporaryFolder folder;
  const Transformer model(SmallConfig("llama"));
  SaveModel(folder / "m", model);
  EXPECT_THROW(SaveModel(folder / "m", model), CheckpointError);
  WriteFile(folder / "file", "");
  EXPECT_THAT([&] { SaveModel(folder / "file/m", model); },
              ::testing::ThrowsMessage<CheckpointError>(HasSubstr("cannot be made")));
  EXPECT_EQ(folder.entries(), 2u);
}

}  // namespace
}  // namespace replay::model
