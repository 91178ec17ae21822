#include "schema/tags.h"

#include <gtest/gtest.h>

#include "tests/support/make_trajectory.h"

namespace replay {
namespace {

TEST(Tags, AreReadByNameWithTheirKind) {
  const Frame frame = test::MakeTrajectory({.edit = [](auto trajectory) {
    auto tags = trajectory.initTags(5);
    tags[0].setName("level");
    tags[0].setInteger(-3);
    tags[1].setName("share");
    tags[1].setReal(0.25);
    tags[2].setName("hard");
    tags[2].setFlag(true);
    tags[3].setName("topic");
    tags[3].setText("number theory");
    tags[4].setName("level");
    tags[4].setInteger(9);
  }});
  const auto read = [&](std::string_view name) { return ReadTag(frame.bytes(), name); };
  EXPECT_EQ(FrameTag::Kind::kNumber, read("level").kind);
  EXPECT_EQ(-3, read("level").number) << "the first of two";
  EXPECT_EQ(0.25, read("share").number);
  EXPECT_EQ(FrameTag::Kind::kFlag, read("hard").kind);
  EXPECT_EQ(1, read("hard").number);
  EXPECT_EQ(FrameTag::Kind::kText, read("topic").kind);
  EXPECT_EQ("number theory", read("topic").text);
  EXPECT_EQ(FrameTag::Kind::kNone, read("lev").kind);
  EXPECT_EQ(FrameTag::Kind::kNone, ReadTag(test::MakeTrajectory().bytes(), "level").kind);
}

TEST(Tags, OutsideOfAFrameMeanTheSameAsWithin) {
  const auto kind = [](const NamedTag& tag) { return ValueOf(tag).kind; };
  EXPECT_EQ(FrameTag::Kind::kNumber, kind({"level", int64_t{-3}}));
  EXPECT_EQ(-3, ValueOf({"level", int64_t{-3}}).number);
  EXPECT_EQ(FrameTag::Kind::kNumber, kind({"share", 0.25}));
  EXPECT_EQ(0.25, ValueOf({"share", 0.25}).number);
  EXPECT_EQ(FrameTag::Kind::kFlag, kind({"hard", true}));
  EXPECT_EQ(1, ValueOf({"hard", true}).number);
  EXPECT_EQ(FrameTag::Kind::kText, kind({"topic", std::string("graphs")}));
  EXPECT_EQ("graphs", ValueOf({"topic", std::string("graphs")}).text);
}

TEST(Tags, OutsideOfAFrameKeepItsRules) {
  EXPECT_EQ("", CheckTag({std::string(128, 'n'), std::string(1024, 'x')}));
  EXPECT_EQ("tags.name is empty", CheckTag({"", true}));
  EXPECT_EQ("tags.name has 129 bytes: at most 128 are allowed", CheckTag({std::string(129, 'n'), true}));
  EXPECT_EQ("tags.text has 1025 bytes: at most 1024 are allowed", CheckTag({"n", std::string(1025, 'x')}));
}

}  // namespace
}  // namespace replay
