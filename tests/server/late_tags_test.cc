#include "server/late_tags.h"

#include <gtest/gtest.h>

#include <string>

#include "schema/limits.h"
#include "tests/support/make_trajectory.h"

namespace replay::server {
namespace {

std::vector<NamedTag> One(const std::string& name, decltype(NamedTag::value) value) { return {{name, std::move(value)}}; }

TEST(LateTags, StandInPlaceOfThoseInTheFrame) {
  const Frame frame = test::MakeTrajectory({.edit = [](auto trajectory) {
    auto tags = trajectory.initTags(2);
    tags[0].setName("level");
    tags[0].setInteger(3);
    tags[1].setName("topic");
    tags[1].setText("graphs");
  }});
  LateTags tags;
  EXPECT_EQ(3, tags.Read(4, frame, "level").number);
  tags.Put(4, One("level", int64_t{5}));
  EXPECT_EQ(5, tags.Read(4, frame, "level").number);
  EXPECT_EQ("graphs", tags.Read(4, frame, "topic").text);
  EXPECT_EQ(3, tags.Read(5, frame, "level").number) << "another item's";
  tags.Put(4, One("level", std::string("hard")));
  EXPECT_EQ("hard", tags.Read(4, frame, "level").text);
  EXPECT_EQ(1u, tags.Of(4).size());
  tags.CheckInvariants();
}

TEST(LateTags, AreCountedByTheirBytesAndGoWithTheItem) {
  LateTags tags;
  tags.Remove(1);
  tags.Put(1, One("name", std::string("twelve bytes")));
  EXPECT_EQ(16u + 4 + 12, tags.held_bytes());
  tags.Put(1, One("name", true));
  EXPECT_EQ(16u + 4, tags.held_bytes());
  tags.Put(2, One("n", 0.5));
  EXPECT_EQ(16u + 4 + 16 + 1, tags.held_bytes());
  tags.Remove(1);
  EXPECT_EQ(17u, tags.held_bytes());
  EXPECT_TRUE(tags.Of(1).empty());
  tags.CheckInvariants();
}

TEST(LateTags, AreBoundedForEachItem) {
  LateTags tags;
  for (uint32_t i = 0; i < kMaxTags; ++i) tags.Put(0, One("n" + std::to_string(i), true));
  EXPECT_EQ("", tags.WhyRefused(0, One("n3", false)));
  EXPECT_EQ("the item would have 65 tags from updates: at most 64 are allowed", tags.WhyRefused(0, One("x", false)));
  EXPECT_EQ("", tags.WhyRefused(1, One("x", false)));
  std::vector<NamedTag> large;
  for (int i = 0; i < 8; ++i) large.push_back({"n" + std::to_string(i), std::string(1024, 'x')});
  EXPECT_EQ("the item's tags from updates would take 8336 bytes: at most 8192 are allowed", tags.WhyRefused(1, large));
}

}  // namespace
}  // namespace replay::server
