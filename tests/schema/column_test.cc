#include "schema/column.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/make_column.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"

namespace replay {
namespace {

using test::MakeColumn;
using Type = FrameColumn::Type;
using Alignment = FrameColumn::Alignment;

std::string Read(const Frame& frame) {
  FrameColumn column;
  return ReadColumn(frame.bytes(), true, &column);
}

// The frame with `bytes` written at `offset`, sealed again.
template <typename T>
Frame With(const Frame& frame, size_t offset, T value) {
  Frame changed = Frame::CopyOf(frame.bytes());
  std::memcpy(changed.mutable_data() + offset, &value, sizeof value);
  SealFrame({changed.mutable_data(), changed.size()});
  return changed;
}

TEST(Column, ComesBackAsItWasBuilt) {
  const std::vector<int64_t> shape = {3, 2}, offsets = {0, 2, 2, 3};
  const std::vector<uint8_t> data = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0};
  Frame frame;
  ASSERT_EQ("", BuildColumn({.id_hash = ColumnIdHash("t7"),
                             .name = "top.k-2_x",
                             .type = Type::kU16,
                             .alignment = Alignment::kRagged,
                             .token_count = 3,
                             .shape = shape,
                             .offsets = offsets,
                             .data = data},
                            &frame));
  EXPECT_EQ(64u + 16 + 16 + 32 + 16 + 8, frame.size());
  FrameColumn column;
  ASSERT_EQ("", ReadColumn(frame.bytes(), true, &column));
  EXPECT_EQ("top.k-2_x", column.name);
  EXPECT_EQ("top.k-2_x", ColumnName(frame.bytes()));
  EXPECT_EQ(ColumnIdHash("t7"), column.id_hash);
  EXPECT_EQ(Type::kU16, column.type);
  EXPECT_EQ(Alignment::kRagged, column.alignment);
  EXPECT_EQ(3u, column.token_count);
  EXPECT_EQ(shape, std::vector<int64_t>(column.shape.begin(), column.shape.end()));
  EXPECT_EQ(offsets, std::vector<int64_t>(column.offsets.begin(), column.offsets.end()));
  EXPECT_EQ(data, std::vector<uint8_t>(column.data.begin(), column.data.end()));
}

// Bytes on disk must mean the same for ever.
TEST(Column, HasTheBytesOfItsGrammar) {
  const Frame frame = MakeColumn({.id = "t", .name = "ab", .type = Type::kI8, .length = 3, .fill = 7});
  const auto at = [&](size_t offset) {
    uint64_t word;
    std::memcpy(&word, frame.data() + offset, sizeof word);
    return word;
  };
  ASSERT_EQ(64u + 8 + 8 + 8 + 8, frame.size());
  EXPECT_EQ(0, std::memcmp(frame.data(), "RCOL\x02\x01\x01\x02", 8));
  EXPECT_EQ(Checksum({reinterpret_cast<const uint8_t*>("t"), 1}), at(8));
  EXPECT_EQ(Checksum({reinterpret_cast<const uint8_t*>("ab"), 2}), at(16));
  EXPECT_EQ(3u, at(24));
  for (size_t offset = 32; offset < 64; offset += 8) EXPECT_EQ(0u, at(offset));
  EXPECT_EQ(0, std::memcmp(frame.data() + 64, "ab\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x07\x07\x07\0\0\0\0\0", 24));
  EXPECT_EQ(Checksum(frame.bytes().first(frame.size() - 8)), at(frame.size() - 8));
}

TEST(Column, OfEveryTypeAndAlignmentIsRead) {
  for (uint8_t type = 0; type < static_cast<uint8_t>(Type::kCount); ++type) {
    for (const Alignment alignment : {Alignment::kRow, Alignment::kToken, Alignment::kRagged}) {
      test::ColumnOptions options{.type = static_cast<Type>(type), .alignment = alignment, .length = 5, .more = {3}};
      if (alignment == Alignment::kRagged) options.offsets = {0, 0, 4, 4, 9, 9};
      EXPECT_EQ("", Read(MakeColumn(options))) << ToString(options.type) << " " << ToString(alignment);
    }
  }
}

TEST(Column, MayBeASingleValueOrHaveNone) {
  Frame frame;
  const std::vector<uint8_t> value = {0, 0, 128, 63};
  ASSERT_EQ("", BuildColumn({.name = "one", .type = Type::kF32, .shape = {}, .offsets = {}, .data = value}, &frame));
  EXPECT_EQ("", Read(frame));
  const Frame none = MakeColumn({.alignment = Alignment::kRow, .length = 0});
  EXPECT_EQ("", Read(none));
  EXPECT_EQ(kMinColumnBytes, none.size());
}

TEST(Column, ThatBreaksARuleIsNotBuilt) {
  const std::vector<uint8_t> data(64, 1);
  const std::vector<int64_t> four = {4}, negative = {-1}, huge = {1 << 30, 1 << 30, 1 << 30}, deep(9, 1),
                             twos = {0, 2, 1, 4, 4};
  const auto build = [&](FrameColumn column) {
    Frame frame;
    const std::string error = BuildColumn(column, &frame);
    EXPECT_EQ(error.empty(), static_cast<bool>(frame));
    return error;
  };
  FrameColumn good{
      .name = "c", .type = Type::kF32, .alignment = Alignment::kToken, .token_count = 4, .shape = four, .offsets = {}};
  good.data = std::span(data).first(16);
  EXPECT_EQ("", build(good));
  const auto with = [&](auto edit) {
    FrameColumn column = good;
    edit(column);
    return build(column);
  };
  EXPECT_EQ("a column's name has 0 bytes: it must have 1 to 64", with([](auto& c) { c.name = ""; }));
  EXPECT_EQ("a column's name is \"a b\": only A-Z a-z 0-9 _ . - are allowed", with([](auto& c) { c.name = "a b"; }));
  EXPECT_EQ("data has 12 bytes, shape [4] of f32 has 16", with([](auto& c) { c.data = c.data.first(12); }));
  EXPECT_EQ("shape is [4]: it must begin with the 5 tokens", with([](auto& c) { c.token_count = 5; }));
  EXPECT_EQ("token_count is 0: it must be from 1 to 4194304", with([](auto& c) { c.token_count = 0; }));
  EXPECT_EQ("token_count is 4: a row has none", with([](auto& c) { c.alignment = Alignment::kRow; }));
  EXPECT_EQ("rank is 0: only a row may be a single value", with([](auto& c) { c.shape = {}; }));
  EXPECT_EQ("rank is 9: at most 8 is allowed", with([&](auto& c) { c.shape = deep; }));
  EXPECT_EQ("shape is [-1]: it must not be negative", with([&](auto& c) { c.shape = negative; }));
  EXPECT_EQ("the column takes more than 67108864 bytes with shape [1073741824, 1073741824, 1073741824]",
            with([&](auto& c) { c = {.name = "c", .shape = huge, .offsets = {}, .data = c.data}; }));
  EXPECT_EQ("offsets has 0 entries: a ragged column of 4 tokens has 5",
            with([](auto& c) { c.alignment = Alignment::kRagged; }));
  EXPECT_EQ("offsets has 5 entries: a token column of 4 tokens has 0", with([&](auto& c) { c.offsets = twos; }));
  EXPECT_EQ("offsets[2] is 1 after 2: they must not fall", with([&](auto& c) {
              c.alignment = Alignment::kRagged;
              c.offsets = twos;
            }));
  const std::vector<int64_t> late = {1, 2, 3, 4, 4}, more = {0, 2, 3, 4, 5};
  EXPECT_EQ("offsets[0] is 1: it must be 0", with([&](auto& c) {
              c.alignment = Alignment::kRagged;
              c.offsets = late;
            }));
  EXPECT_EQ("offsets end with 5, shape is [4]: it must begin with that", with([&](auto& c) {
              c.alignment = Alignment::kRagged;
              c.offsets = more;
            }));
  const std::vector<uint8_t> bits = {0, 1, 2, 0};
  EXPECT_EQ("data[2] is 2: a bool is 0 or 1", with([&](auto& c) {
              c.type = Type::kBool;
              c.data = bits;
            }));
}

TEST(Column, FrameNamesWhatIsWrong) {
  const Frame good = MakeColumn({.name = "abc", .type = Type::kU8, .length = 3});
  ASSERT_EQ("", Read(good));
  const auto error = [&](size_t offset, auto value) { return Read(With(good, offset, value)); };
  EXPECT_EQ("magic is not \"RCOL\": this is not a column frame", error(0, uint8_t{'X'}));
  EXPECT_EQ("type is 11, which is not known", error(4, uint8_t{11}));
  EXPECT_EQ("alignment is 3, which is not known", error(5, uint8_t{3}));
  EXPECT_EQ("rank is 9: at most 8 is allowed", error(6, uint8_t{9}));
  EXPECT_EQ("name has 0 bytes: it must have 1 to 64", error(7, uint8_t{0}));
  EXPECT_EQ("name has 65 bytes: it must have 1 to 64", error(7, uint8_t{65}));
  EXPECT_EQ("the hash of the name is not that of \"abc\"", error(16, uint64_t{1}));
  EXPECT_EQ("shape is [3]: it must begin with the 4 tokens", error(24, uint32_t{4}));
  EXPECT_EQ("the header has 1 where it must have 0", error(60, uint32_t{1}));
  EXPECT_EQ("a column's name is \"a/c\": only A-Z a-z 0-9 _ . - are allowed", error(65, '/'));
  EXPECT_EQ("the name is not padded with zeros", error(68, 'x'));
  EXPECT_EQ("the data is not padded with zeros", error(83, 'x'));
  EXPECT_EQ("the frame has 96 bytes, with shape [3] of i64 it has 112", error(4, static_cast<uint8_t>(Type::kI64)));
  EXPECT_EQ("the frame has 96 bytes: name, shape and offsets alone take 120",
            error(5, static_cast<uint8_t>(Alignment::kRagged)));
  EXPECT_EQ("the size of the frame is 80: it must be a multiple of 8 from 88 to 67108864",
            Read(Frame::CopyOf(good.bytes().first(80))));

  Frame damaged = Frame::CopyOf(good.bytes());
  damaged.mutable_data()[80] ^= 1;
  bool checksum_error = false;
  FrameColumn column;
  EXPECT_EQ("the checksum does not match the bytes of the column", ReadColumn(damaged.bytes(), true, &column, &checksum_error));
  EXPECT_TRUE(checksum_error);
  EXPECT_EQ("", ReadColumn(damaged.bytes(), false, &column));
}

// Any bytes: an error, or a column whose parts lie inside the frame and which is built to the same bytes again.
TEST(Column, OfMutatedBytesIsRefusedOrTheSameWhenBuiltAgain) {
  std::mt19937_64 random(11);
  uint64_t accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    const bool ragged = random() % 2;
    const Frame from = MakeColumn({.name = "name",
                                   .type = static_cast<Type>(random() % static_cast<uint64_t>(Type::kCount)),
                                   .alignment = ragged ? Alignment::kRagged : Alignment::kToken,
                                   .length = 3,
                                   .more = {2},
                                   .offsets = ragged ? std::vector<int64_t>{0, 1, 1, 4} : std::vector<int64_t>{}});
    std::vector<uint64_t> words(from.size() / 8);
    std::memcpy(words.data(), from.data(), from.size());
    test::MutateWords(&words, random);
    // A block of exactly that size, so that a sanitizer sees a read beyond it.
    Frame frame = Frame::CopyOf({reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8});
    if (frame.size() >= 8 && random() % 2) SealFrame({frame.mutable_data(), frame.size()});
    FrameColumn column;
    if (!ReadColumn(frame.bytes(), random() % 2, &column).empty()) continue;
    ++accepted;
    Frame again;
    ASSERT_EQ("", BuildColumn(column, &again)) << "round " << round;
    SealFrame({frame.mutable_data(), frame.size()});
    ASSERT_EQ(frame.size(), again.size()) << "round " << round;
    ASSERT_EQ(0, std::memcmp(frame.data(), again.data(), frame.size())) << "round " << round;
  }
  EXPECT_GE(accepted, 5'000u);
}

// --- With the core frame ---------------------------------------------------------------------------------------------------

Frame Core(const std::vector<std::string>& names) {
  return test::MakeTrajectory({.id = "t", .length = 16, .edit = [&](auto trajectory) {
                                 auto list = trajectory.initColumnNames(static_cast<unsigned>(names.size()));
                                 for (unsigned i = 0; i < names.size(); ++i) list.set(i, names[i].c_str());
                               }});
}

std::string Check(const std::vector<std::string>& names, const std::vector<Frame>& frames) {
  std::vector<FrameColumn> columns(frames.size());
  for (size_t i = 0; i < frames.size(); ++i) EXPECT_EQ("", ReadColumn(frames[i].bytes(), true, &columns[i]));
  return CheckColumnsOf(Core(names).bytes(), 16, columns);
}

TEST(ColumnsOf, AreThoseThatTheCoreLists) {
  EXPECT_EQ("", Check({}, {}));
  EXPECT_EQ("", Check({"a", "b"}, {MakeColumn({.name = "b"}), MakeColumn({.name = "a", .alignment = Alignment::kRow})}));
  EXPECT_EQ("column \"b\" is not listed in column_names", Check({"a"}, {MakeColumn({.name = "a"}), MakeColumn({.name = "b"})}));
  EXPECT_EQ("column_names lists \"b\", which was not sent: those of columns that come later are not listed",
            Check({"a", "b"}, {MakeColumn({.name = "a"})}));
  EXPECT_EQ("column \"a\" stands twice", Check({"a"}, {MakeColumn({.name = "a"}), MakeColumn({.name = "a"})}));
  EXPECT_EQ("column \"a\" stands twice", Check({"a", "a"}, {MakeColumn({.name = "a"})}));
}

TEST(ColumnsOf, BelongToTheTrajectoryAndHaveItsLength) {
  EXPECT_EQ("column \"a\" is of another trajectory: it has the hash of another id",
            Check({"a"}, {MakeColumn({.id = "other", .name = "a"})}));
  EXPECT_EQ("column \"a\" has 15 tokens, token_ids has 16: they must agree",
            Check({"a"}, {MakeColumn({.name = "a", .length = 15})}));
  EXPECT_EQ("", Check({"a"}, {MakeColumn({.name = "a", .alignment = Alignment::kRow, .length = 15})}));
}

}  // namespace
}  // namespace replay
