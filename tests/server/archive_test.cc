#include "server/archive.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace replay::server {
namespace {

enum class Colour : uint16_t { kRed, kBlue };

struct Inner {
  int32_t number = 0;
  std::string text;
  bool operator==(const Inner&) const = default;
};
void Persist(Archive& archive, Inner& inner) { archive(inner.number, inner.text); }

struct Everything {
  uint8_t byte = 0;
  int64_t number = 0;
  double real = 0;
  float bits = 0;
  bool flag = false;
  Colour colour = Colour::kRed;
  Key128 key;
  std::string text;
  std::optional<int64_t> maybe, never;
  std::vector<Inner> list;
  std::deque<std::string> queue;
  std::array<uint32_t, 3> fixed{};
  std::vector<std::vector<uint32_t>> nested;
  std::pair<std::string, uint64_t> pair;

  void Persist(Archive& archive) {
    archive(byte, number, real, bits, flag, colour, key, text, maybe, never, list, queue, fixed, nested, pair);
  }
  bool operator==(const Everything&) const = default;
};

Everything MakeOne() {
  return {.byte = 200,
          .number = INT64_MIN,
          .real = -0.1,
          .bits = std::numeric_limits<float>::denorm_min(),
          .flag = true,
          .colour = Colour::kBlue,
          .key = {1, UINT64_MAX},
          .text = std::string("a\0b", 3),
          .maybe = -7,
          .never = std::nullopt,
          .list = {{1, "one"}, {2, ""}},
          .queue = {"x", "", "yz"},
          .fixed = {7, 8, 9},
          .nested = {{}, {1, 2, 3}, {4}},
          .pair = {"p", 3}};
}

class Frames : public FrameSource {
 public:
  Frame Fetch(uint64_t number, uint32_t size) override {
    const auto found = frames.find(number);
    return found == frames.end() || found->second.size() != size ? Frame() : found->second;
  }
  std::map<uint64_t, Frame> frames;
};

TEST(Archive, ReadsWhatItWrote) {
  Everything one = MakeOne(), other;
  std::string bytes;
  Archive writing(&bytes);
  writing(one);
  Archive reading(bytes, nullptr);
  reading(other);
  EXPECT_FALSE(reading.failed());
  EXPECT_TRUE(reading.at_end());
  EXPECT_TRUE(one == other);
}

TEST(Archive, WritesNumbersLittleEndianAndNothingBetweenThem) {
  std::string bytes;
  Archive archive(&bytes);
  uint16_t small = 0x0102;
  std::optional<uint8_t> maybe = 3;
  std::string text = "ab";
  archive(small, maybe, text);
  EXPECT_EQ(std::string("\x02\x01\x01\x03\x02\0\0\0\0\0\0\0ab", 14), bytes);
}

TEST(Archive, FailsOnBytesThatEndAnywhere) {
  Everything one = MakeOne();
  std::string bytes;
  Archive writing(&bytes);
  writing(one);
  for (size_t size = 0; size < bytes.size(); ++size) {
    Archive reading(std::string_view(bytes).substr(0, size), nullptr);
    Everything other;
    reading(other);
    EXPECT_TRUE(reading.failed()) << size;
  }
}

TEST(Archive, AllocatesNothingForACountThatTheBytesCannotHold) {
  for (uint64_t count : {uint64_t{9}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string bytes;
    Archive writing(&bytes);
    uint64_t rest = 0;
    writing(count, rest);
    std::vector<uint64_t> list;
    std::string text;
    Archive for_list(bytes, nullptr), for_text(bytes, nullptr);
    for_list(list);
    for_text(text);
    EXPECT_TRUE(for_list.failed() && list.empty()) << count;
    EXPECT_TRUE(for_text.failed() && text.empty()) << count;
    SegmentedArray<uint64_t, 16> entries;
    Archive for_entries(bytes, nullptr);
    for_entries.Entries(entries, count | 16);
    EXPECT_TRUE(for_entries.failed()) << count;
    EXPECT_EQ(0u, entries.memory_bytes());
  }
}

TEST(Archive, NamesFramesByTheirNumbers) {
  Frame frame = Frame::CopyOf(std::vector<uint8_t>(40, 7)), none, read, read_none;
  frame.SetNumber(Frame::kMaxNumber);
  EXPECT_EQ(Frame::kMaxNumber, frame.number());
  std::string bytes;
  Archive writing(&bytes);
  writing(frame, none);
  EXPECT_EQ(24u, bytes.size());  // and none of its own bytes

  Frames frames;
  Archive without(bytes, &frames);
  without(read);
  EXPECT_TRUE(without.failed()) << "it is not there";
  frames.frames.emplace(frame.number(), frame);
  Archive with(bytes, &frames);
  with(read, read_none);
  EXPECT_FALSE(with.failed());
  EXPECT_EQ(frame.data(), read.data());
  EXPECT_FALSE(read_none);
}

}  // namespace
}  // namespace replay::server
