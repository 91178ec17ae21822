#include "trainer/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "tests/support/temporary_folder.h"
#include "tests/trainer/model/file_size_limit.h"

namespace replay::model {
namespace {

using test::ReadFile;
using test::TemporaryFolder;
using test::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

std::string ErrorOf(const std::string& path) {
  try {
    const SafeTensors file(path);
    for (const std::string& name : file.Names()) (void)file.Get(name);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(SafeTensors, ComeBackBitForBitInEveryType) {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  std::vector<NamedTensor> tensors;
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16})
    tensors.push_back({std::string("f") + c10::toString(dtype), torch::randn({3, 5}).to(dtype)});
  for (const auto dtype : {torch::kInt64, torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool})
    tensors.push_back({std::string("i") + c10::toString(dtype), torch::randint(0, 2, {7}).to(dtype)});
  tensors.push_back({"transposed", torch::randn({4, 6}).t()});
  tensors.push_back({"scalar", torch::tensor(2.5f)});
  tensors.push_back({"empty", torch::empty({0, 3})});
  WriteSafeTensors(folder / "x.safetensors", tensors, {.metadata = {{"step", "12"}, {"text", "ä \"quoted\""}}});
  const SafeTensors file(folder / "x.safetensors");
  EXPECT_EQ(file.Names().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("text"), "ä \"quoted\"");
  for (const auto& [name, tensor] : tensors) {
    const Tensor back = file.Get(name);
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(back, tensor)) << name;
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(SafeTensors, OutliveTheFileThatTheyAreViewsOf) {
  const TemporaryFolder folder;
  WriteSafeTensors(folder / "x", {{"a", torch::arange(100)}});
  Tensor kept;
  {
    const SafeTensors file(folder / "x");
    kept = file.Get("a");
  }
  std::filesystem::remove(folder / "x");
  EXPECT_TRUE(torch::equal(kept, torch::arange(100)));
}

TEST(SafeTensors, ReadAHeaderThatLeavesTheDataUnaligned) {
  const TemporaryFolder folder;
  const float value = 1.5f;
  WriteFile(folder / "x", WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )",
                                     std::string(reinterpret_cast<const char*>(&value), 4)));
  EXPECT_EQ(SafeTensors(folder / "x").Get("a").item<float>(), 1.5f);
}

TEST(SafeTensors, NameTheFileTheTensorAndTheRule) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  EXPECT_THAT(ErrorOf(folder / "nowhere"), AllOf(HasSubstr("nowhere: cannot be opened"), HasSubstr("No such file")));
  const struct {
    std::string bytes, message;
  } cases[] = {
      {"", "is empty"},
      {"abc", "has 3 bytes: not a safetensors file"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}",
       "its header claims 9223372036854775807 bytes, the file has 10"},
      {WithHeader("[]", ""), "the header is not a JSON object"},
      {WithHeader("{\"a\":", ""), "the header is not a JSON object"},
      {WithHeader(R"({"a":{"dtype":"F32","shape":[2]}})", ""), "tensor \"a\" has no dtype, shape and data_offsets"},
      {WithHeader(R"({"a":{"dtype":"F8","shape":[2],"data_offsets":[0,2]}})", "xx"),
       "tensor \"a\" has dtype \"F8\": must be one of F64, F32,"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,2]}})", "xx"),
       "has a size -1 in its shape: must be a whole number of 0 or more"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,2]}})", "xx"),
       "tensor \"a\" has shape [4294967296,4294967296,4]: must be below 2^63 bytes"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", ""),
       "tensor \"a\" has shape [0,4294967296,4294967296]: must be below 2^63 bytes"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", "x"),
       "tensor \"a\" has shape [1,1,1,1,1,1,1,1,1]: must be a list of at most 8 sizes"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,3]}})", "xx"),
       "tensor \"a\" has data_offsets [0,2,3]: must be two positions"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "xx"), "lies at 2 to 0"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "xx"),
       "lies at 0 to 4, the file has 2 bytes of data: truncated?"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}})", "xx"),
       "of shape [3] takes 3 bytes, its data_offsets span 2"},
      {WithHeader(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "xxx"),
       "tensor \"b\" begins at byte 1 of the data, inside the one before it, which ends at 2"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"),
       "tensor \"a\" begins at byte 1 of the data, behind a gap, which begins at 0"},
      {WithHeader(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xx"),
       "the tensors end at byte 1 of the data, which has 2: must be covered whole"},
      {WithHeader(R"({"__metadata__":{"a":1}})", ""), "__metadata__.a is not text"},
  };
  for (const auto& [bytes, message] : cases) {
    WriteFile(path, bytes);
    EXPECT_THAT(ErrorOf(path), AllOf(HasSubstr(path), HasSubstr(message)));
  }
  EXPECT_THAT(ErrorOf(folder / ""), HasSubstr("is not a file"));
  std::string large(8 + (100u << 20) + 1, ' ');
  const uint64_t size = large.size() - 8;
  std::memcpy(large.data(), &size, 8);
  WriteFile(path, large);
  EXPECT_THAT(ErrorOf(path), HasSubstr("its header has 104857601 bytes: must be at most 104857600"));
  WriteFile(path, WithHeader("{}", ""));
  EXPECT_THAT([&] { SafeTensors(path).Get("a"); }, ::testing::ThrowsMessage<CheckpointError>(HasSubstr("has no tensor \"a\"")));
}

TEST(SafeTensors, SurviveEveryTruncationAndThousandsOfMutations) {
  const TemporaryFolder folder;
  WriteSafeTensors(folder / "good", {{"a", torch::arange(3)}, {"b.c", torch::ones({2, 2})}}, {.metadata = {{"k", "v"}}});
  const std::string good = ReadFile(folder / "good");
  const std::string path = folder / "bad";
  for (size_t size = 0; size < good.size(); ++size) {
    WriteFile(path, good.substr(0, size));
    EXPECT_NE(ErrorOf(path), "") << size << " of " << good.size() << " bytes";
  }
  const uint32_t seed = 12;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, good.data(), 8);
  const std::string data = good.substr(8 + header_bytes);
  const char* const pieces[] = {"0",  "-1",   "4",   "18446744073709551615", "9223372036854775807", "1e999", "[]",
                                "{}", "null", "\"\""};
  int read = 0;
  for (int round = 0; round < 4'000; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {  // bytes of the header and its length
      for (uint32_t flips = 1 + random() % 3; flips > 0; --flips)
        bytes[random() % (8 + header_bytes)] = static_cast<char>(random());
    } else {  // one value of the header, its length put right
      std::string header = good.substr(8, header_bytes);
      const size_t at = header.find_first_of(":[,", random() % header.size()), end = header.find_first_of(",]}", at + 1);
      if (end != std::string::npos) header.replace(at + 1, end - at - 1, pieces[random() % std::size(pieces)]);
      bytes = WithHeader(header, data);
    }
    WriteFile(path, bytes);
    read += ErrorOf(path).empty();  // may be read, may be an error, must be one of ours
  }
  EXPECT_GT(read, 10);
  EXPECT_LT(read, 3'990);
}

TEST(WriteSafeTensors, LeavesNothingBehindWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  WriteSafeTensors(folder / "x", {{"a", torch::ones({4})}});
  const std::string before = ReadFile(folder / "x");
  for (const rlim_t bytes : {0, 4, 30, 20'000}) {  // full in the header's length, in the header, in the data
    const test::FileSizeLimit limit(bytes);
    EXPECT_THAT(
        [&] {
          WriteSafeTensors(folder / "x", {{"a", torch::ones({100'000})}});
        },
        ::testing::ThrowsMessage<CheckpointError>(
            AllOf(HasSubstr(folder / "x"), HasSubstr("cannot be written: File too large"))));
  }
  EXPECT_EQ(ReadFile(folder / "x"), before);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(WriteSafeTensors, RefusesANameTwice) {
  const TemporaryFolder folder;
  EXPECT_THROW(WriteSafeTensors(folder / "x", {{"a", torch::ones({1})}, {"a", torch::ones({1})}}), CheckpointError);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(WriteSafeTensors, NamesWhatItCannotWrite) {
  const TemporaryFolder folder;
  const auto refuses = [&](const std::string& path, const NamedTensor& tensor, const SaveOptions& options,
                           const std::string& message) {
    EXPECT_THAT([&] { WriteSafeTensors(path, {tensor}, options); },
                ::testing::ThrowsMessage<CheckpointError>(AllOf(HasSubstr(path), HasSubstr(message))));
  };
  refuses(folder / "no/x", {"a", torch::ones({1})}, {}, "cannot be opened: No such file or directory");
  refuses(folder / "x", {"a\xff", torch::ones({1})}, {}, "a name or a piece of metadata is not UTF-8");
  refuses(folder / "x", {"a", torch::ones({1})}, {.metadata = {{"k", "\xff"}}}, "a name or a piece of metadata is not UTF-8");
  refuses(folder / "x", {"a", torch::ones({1}, torch::kComplexFloat)}, {}, "tensor \"a\" is ComplexFloat");
  std::filesystem::create_directories(folder / "taken/by");
  refuses(folder / "taken", {"a", torch::ones({1})}, {}, "cannot be put in place: Is a directory");
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace replay::model
