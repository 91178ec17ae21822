#include "server/frame_note.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "schema/validate.h"
#include "tests/support/make_column.h"
#include "tests/support/make_trajectory.h"

namespace replay::server {
namespace {

// All frames are on disk only.
class Nowhere : public FrameSource {
 public:
  Frame Fetch(uint64_t number, uint32_t size) override { return Frame::Absent(size, number); }
};

Frame WithTags() {
  Frame frame = test::MakeTrajectory({.edit = [](auto trajectory) {
    trajectory.setSource("gsm8k");
    auto tags = trajectory.initTags(4);
    tags[0].setName("level");
    tags[0].setInteger(3);
    tags[1].setName("share");
    tags[1].setReal(0.5);
    tags[2].setName("hard");
    tags[2].setFlag(true);
    tags[3].setName("topic");
    tags[3].setText("algebra");
  }});
  frame.SetNumber(7);
  return frame;
}

TrajectoryFacts FactsOf(const Frame& frame) {
  TrajectoryFacts facts;
  EXPECT_EQ("", ValidateTrajectory(frame.bytes(), {}, &facts));
  return facts;
}

void ExpectTags(const Frame& frame) {
  EXPECT_EQ(3, TagOf(frame, "level").number);
  EXPECT_EQ(0.5, TagOf(frame, "share").number);
  EXPECT_EQ(FrameTag::Kind::kFlag, TagOf(frame, "hard").kind);
  EXPECT_EQ("algebra", TagOf(frame, "topic").text);
  EXPECT_EQ(FrameTag::Kind::kNone, TagOf(frame, "other").kind);
}

TEST(FrameNote, AnAbsentFrameHasTheTagsItsBytesHave) {
  const Frame frame = WithTags();
  const TrajectoryFacts facts = FactsOf(frame);
  EXPECT_TRUE(facts.has_tags);
  ExpectTags(frame);
  const Frame absent = MakeAbsent(frame, facts.has_tags);
  EXPECT_TRUE(absent.is_absent());
  EXPECT_EQ(frame.size(), absent.size());
  EXPECT_EQ(7u, absent.number());
  ExpectTags(absent);
  ExpectTags(MakeAbsent(absent, true));
}

TEST(FrameNote, WhatHasNoTagsHasNoNote) {
  Frame frame = test::MakeTrajectory({});
  frame.SetNumber(1);
  const TrajectoryFacts facts = FactsOf(frame);
  EXPECT_FALSE(facts.has_tags);
  EXPECT_EQ("", MakeAbsent(frame, facts.has_tags).note());
  EXPECT_EQ(FrameTag::Kind::kNone, TagOf(MakeAbsent(frame, facts.has_tags), "level").kind);
}

TEST(FrameNote, GoesThroughAnArchiveWithOrWithoutTheBytes) {
  const Frame frame = WithTags();
  const TrajectoryFacts facts = FactsOf(frame);
  std::string first, second;
  Archive to_first(&first);
  Frame written = frame;
  PersistCore(to_first, written, facts);
  Nowhere nowhere;
  Archive from_first(first, &nowhere);
  Frame read;
  PersistCore(from_first, read, facts);
  ASSERT_FALSE(from_first.failed());
  EXPECT_TRUE(read.is_absent());
  EXPECT_EQ("gsm8k", SourceOf(read, facts));
  EXPECT_EQ("gsm8k", SourceOf(frame, facts));
  ExpectTags(read);
  Archive to_second(&second);
  PersistCore(to_second, read, facts);
  EXPECT_EQ(first, second) << "the same bytes, wherever those of the frame are";

  std::string tags, tags_of_absent;
  Archive to_tags(&tags), to_tags_of_absent(&tags_of_absent);
  PersistTags(to_tags, written, facts.has_tags);
  PersistTags(to_tags_of_absent, read, facts.has_tags);
  EXPECT_EQ(tags, tags_of_absent);
  EXPECT_LT(tags.size(), first.size()) << "without the source";
}

TEST(FrameNote, AnAbsentColumnHasItsNameUntilItIsKnown) {
  Frame column = test::MakeColumn({.name = "mark"});
  column.SetNumber(3);
  std::string bytes;
  Archive to(&bytes);
  PersistColumn(to, column);
  Nowhere nowhere;
  Archive from(bytes, &nowhere);
  Frame read;
  PersistColumn(from, read);
  EXPECT_TRUE(read.is_absent());
  EXPECT_EQ("mark", NameOf(read));
  EXPECT_EQ("mark", NameOf(column));
  EXPECT_EQ("", MakeAbsent(read).note());
}

TEST(AbsentFrame, HasASizeANumberAndANoteOfAnyLength) {
  for (const size_t length : {0u, 1u, 100u, 100'000u}) {
    const std::string note(length, 'x');
    const Frame absent = Frame::Absent(1 << 20, Frame::kMaxNumber, note);
    EXPECT_TRUE(absent.is_absent());
    EXPECT_EQ(1u << 20, absent.size());
    EXPECT_EQ(Frame::kMaxNumber, absent.number());
    EXPECT_EQ(note, absent.note());
    const Frame other = absent;
    EXPECT_TRUE(other.is_absent());
  }
  MemoryBudget budget(100);
  ASSERT_TRUE(budget.TryReserve(64));
  EXPECT_FALSE(Frame::Allocate(64, &budget).is_absent());
  EXPECT_EQ(0, budget.used_bytes());
}

}  // namespace
}  // namespace replay::server
