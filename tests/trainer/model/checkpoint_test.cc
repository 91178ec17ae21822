#include "trainer/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <random>

#include "schema/json_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/model/file_size_limit.h"

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

TEST(Checkpoint, OfAnotherProgramComesBackFromOursUnchanged) {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    const TemporaryFolder folder;
    const std::string golden = std::string(REPLAY_GOLDEN_FOLDER) + "/" + name;
    const Transformer model = LoadModel(golden);
    SaveModel(folder / "m", model);
    ExpectEqual(LoadModel(folder / "m"), model);
    const SafeTensors theirs(golden + "/model.safetensors"), ours(folder / "m/model.safetensors");
    ASSERT_EQ(ours.Names(), theirs.Names());
    for (const std::string& each : ours.Names()) EXPECT_TRUE(torch::equal(ours.Get(each), theirs.Get(each))) << each;
    const json config = json::parse(ReadFile(golden + "/config.json")), saved = json::parse(ReadFile(folder / "m/config.json"));
    for (const auto& [key, value] : saved.items()) {
      if (!config.contains(key)) continue;
      EXPECT_EQ(value, config[key]) << key;
    }
  }
}

TEST(Checkpoint, LoadingTakesNothingFromTheRandomNumbersOfTraining) {
  const std::string golden = std::string(REPLAY_GOLDEN_FOLDER) + "/qwen3";
  torch::manual_seed(1);
  const Tensor expected = torch::rand({4});
  torch::manual_seed(1);
  LoadModel(golden);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
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
  const auto with_index = [&](const json& index) {
    WriteFile(folder / "m/model.safetensors.index.json", index.dump());
    return ErrorOf(folder / "m");
  };
  for (const json& bad : {json("../part-0.safetensors"), json("/etc/x.safetensors"), json(".."), json("."), json(""),
                          json("a/.safetensors"), json("part-0.bin"), json(7), json(nullptr)}) {
    map.begin().value() = bad;
    EXPECT_THAT(with_index({{"weight_map", map}}),
                AllOf(HasSubstr("index.json: weight_map." + map.begin().key() + " is " + bad.dump()),
                      HasSubstr("must be the name of a .safetensors file beside it")));
  }
  map.begin().value() = "part-2.safetensors";
  EXPECT_THAT(with_index({{"weight_map", map}}), HasSubstr("part-2.safetensors: cannot be opened"));
  EXPECT_THAT(with_index({{"weight_map", 3}}), HasSubstr("index.json: weight_map is not an object"));
  EXPECT_THAT(with_index(json::array()), HasSubstr("index.json is not a JSON object"));
  // One tensor in two files: which of them counts would be chance.
  map.begin().value() = "part-0.safetensors";
  parts[1].push_back(parts[0][0]);
  WriteSafeTensors(folder / "m/part-1.safetensors", parts[1]);
  EXPECT_THAT(
      with_index({{"weight_map", map}}),
      AllOf(HasSubstr("part-1.safetensors: tensor \"" + parts[0][0].name + "\" is in"), HasSubstr("part-0.safetensors too")));
  // Where there is a model.safetensors too, it counts, as for transformers.
  WriteSafeTensors(folder / "m/model.safetensors", model.HuggingFaceTensors());
  ExpectEqual(LoadModel(folder / "m"), model);
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
              HasSubstr("num_attention_heads is 0: must be from 1 to 1024"));
  EXPECT_THAT(changed([](json& c) { c["model_type"] = "gpt2"; }),
              HasSubstr("model_type is \"gpt2\": must be llama, qwen2 or qwen3"));
  EXPECT_THAT(changed([](json& c) { c["hidden_act"] = "gelu"; }), HasSubstr("hidden_act is \"gelu\": must be silu"));
  EXPECT_THAT(changed([](json& c) { c["use_sliding_window"] = true; }), HasSubstr("sliding windows are not supported"));
  EXPECT_THAT(changed([](json& c) {
                c["layer_types"] = {"full_attention", "sliding_attention"};
              }),
              HasSubstr("layer_types has \"sliding_attention\": only \"full_attention\" is supported"));
  EXPECT_THAT(changed([](json& c) { c["mlp_bias"] = true; }), HasSubstr("mlp_bias is true: not supported"));
  EXPECT_THAT(changed([](json& c) { c["attention_bias"] = true; }), HasSubstr("attention_bias is true: not supported"));
  EXPECT_THAT(changed([](json& c) { c["tie_word_embeddings"] = 1; }),
              HasSubstr("tie_word_embeddings is 1: must be true or false"));
  EXPECT_THAT(changed([](json& c) { c["rms_norm_eps"] = "x"; }), HasSubstr("rms_norm_eps is \"x\": must be a number"));
  EXPECT_THAT(changed([](json& c) { c["vocab_size"] = 1e9; }), HasSubstr("vocab_size is 1000000000.0: must be a whole number"));
  EXPECT_THAT(changed([](json& c) { c["model_type"] = 3; }), HasSubstr("model_type is 3: must be text"));
  EXPECT_THAT(changed([](json& c) { c["rope_scaling"] = 2; }), HasSubstr("rope_scaling is 2: must be an object"));
  EXPECT_THAT(changed([](json& c) {
                c["rope_scaling"] = {{"rope_type", "yarn"}};
              }),
              HasSubstr("config.json: rope_scaling: rope_type is \"yarn\": must be default, linear or llama3"));
  EXPECT_THAT(changed([](json& c) {
                c["rope_scaling"] = {{"rope_type", "linear"}};
              }),
              HasSubstr("rope_scaling: factor is missing"));
  EXPECT_THAT(changed([](json& c) {
                c["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}};
              }),
              HasSubstr("rope_scaling: low_freq_factor is missing"));
  // Sizes that the file does not bear out are not allocated: 2^24 x 2^20 floats would be 64 TiB.
  EXPECT_THAT(changed([](json& c) { c["vocab_size"] = 1 << 24, c["hidden_size"] = 1 << 20; }),
              HasSubstr("\"model.embed_tokens.weight\" has shape [11, 8], config.json asks for [16777216, 1048576]"));
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

TEST(Checkpoint, ReadsBothSpellingsOfRope) {
  const TemporaryFolder folder;
  SaveModel(folder / "m", Transformer(SmallConfig("llama")));
  json config = json::parse(ReadFile(folder / "m/config.json"));
  const auto read = [&] {
    WriteFile(folder / "m/config.json", config.dump());
    return ReadModelConfig(folder / "m");
  };
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(read().rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(read().rope_scaling.factor, 2);
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(read().rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(read().rope_theta, 5e5);
}

TEST(Checkpoint, SurvivesThousandsOfMutationsOfConfigJson) {
  const TemporaryFolder folder;
  std::filesystem::copy(std::string(REPLAY_GOLDEN_FOLDER) + "/llama", folder / "m");
  const std::string good = ReadFile(folder / "m/config.json");
  const uint32_t seed = 21;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const char* const pieces[] = {"0", "-1", "99999999999999999999", "1e999", "[]", "{}", "null", "\"\"", "true", "1e6", ","};
  int loaded = 0;
  for (int round = 0; round < 2'000; ++round) {
    std::string text = good;
    for (uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
      if (random() % 2 == 0) {
        text[random() % text.size()] = static_cast<char>(random());
      } else {
        // A value becomes another one.
        const size_t colon = text.find(':', random() % text.size()), end = text.find_first_of(",\n", colon);
        if (end != std::string::npos) text.replace(colon + 1, end - colon - 1, pieces[random() % std::size(pieces)]);
      }
    }
    WriteFile(folder / "m/config.json", text);
    loaded += ErrorOf(folder / "m").empty();  // may load, may be an error, must be one of ours
  }
  EXPECT_GT(loaded, 20);
  EXPECT_LT(loaded, 1'900);
}

TEST(Checkpoint, NamesWhatIsWrongWithTheWeights) {
  const TemporaryFolder folder;
  const Transformer model(SmallConfig("llama"));
  SaveModel(folder / "m", model);
  const std::string path = folder / "m/model.safetensors";
  std::vector<NamedTensor> tensors = model.HuggingFaceTensors();
  tensors[0].tensor = torch::ones({11, 8}, torch::kInt64);
  WriteSafeTensors(path, tensors);
  EXPECT_THAT(ErrorOf(folder / "m"),
              AllOf(HasSubstr(path), HasSubstr("\"model.embed_tokens.weight\" is I64: must be F64, F32, F16 or BF16")));
  tensors = model.HuggingFaceTensors();
  tensors.pop_back();
  WriteSafeTensors(path, tensors);
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("tensor \"lm_head.weight\" is missing; config.json asks for shape [11, 8]"));
  tensors = model.HuggingFaceTensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", torch::ones({2})});
  WriteSafeTensors(path, tensors);
  EXPECT_EQ(ErrorOf(folder / "m"), "");
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", torch::ones({8})});
  WriteSafeTensors(path, tensors);
  EXPECT_THAT(ErrorOf(folder / "m"),
              HasSubstr("\"model.layers.0.self_attn.q_proj.bias\" is of no use to a llama of this config"));
  WriteFile(path, ReadFile(path).substr(0, 5'000));
  EXPECT_THAT(ErrorOf(folder / "m"), AllOf(HasSubstr(path), HasSubstr("truncated?")));
  std::filesystem::remove(path);
  EXPECT_THAT(ErrorOf(folder / "m"), HasSubstr("model.safetensors: cannot be opened"));
}

TEST(Checkpoint, LeavesNothingBehindWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const Transformer model(SmallConfig("llama"));
  {
    const test::FileSizeLimit limit(4'000);  // within the weights
    EXPECT_THAT([&] { SaveModel(folder / "m", model); },
                ::testing::ThrowsMessage<CheckpointError>(
                    AllOf(HasSubstr(folder / "m"), HasSubstr("cannot be written: File too large"))));
  }
  EXPECT_EQ(folder.entries(), 0u);
  SaveModel(folder / "m", model);  // the same place is good once there is room
  ExpectEqual(LoadModel(folder / "m"), model);
}

TEST(Checkpoint, OfWhatConfigJsonCannotSayIsNotWritten) {
  const TemporaryFolder folder;
  ModelConfig config = SmallConfig("llama");
  config.qk_norm = true;
  EXPECT_THAT([&] { SaveModel(folder / "m", Transformer(config)); },
              ::testing::ThrowsMessage<CheckpointError>(
                  HasSubstr("m: config.json cannot say that a llama has no qkv_bias and a qk_norm")));
  EXPECT_EQ(folder.entries(), 0u);
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
