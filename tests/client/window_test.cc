#include "client/window.h"

#include <gtest/gtest.h>

#include "tests/support/fake_server.h"

namespace replay {
namespace {

Bundle BundleOf(std::vector<uint32_t> units) {
  Bundle bundle;
  for (const uint32_t count : units) {
    EncodedGroup group;
    for (uint32_t i = 0; i < count; ++i) {
      group.frames.push_back(testing::SmallFrame("x"));
      group.bytes += group.frames.back().size();
    }
    bundle.Append(std::move(group));
  }
  return bundle;
}

std::string SendAll(Window& window) {
  std::string sequences;
  while (const Window::Request* request = window.Send()) sequences += std::to_string(request->sequence) + " ";
  return sequences;
}

TEST(Bundle, KeepsColumnsWithTheirTrajectoriesWhenItIsSplit) {
  const auto group = [](uint32_t count, std::vector<uint32_t> column_of) {
    EncodedGroup encoded;
    for (uint32_t i = 0; i < count; ++i) encoded.frames.push_back(testing::SmallFrame("x"));
    for (const uint32_t frame : column_of) encoded.columns.push_back({frame, Frame::Allocate(88)});
    encoded.bytes = count * encoded.frames[0].size() + column_of.size() * 88;
    return encoded;
  };
  const std::vector<EncodedGroup> groups = {group(2, {1}), group(1, {}), group(3, {0, 0, 2})};
  Bundle bundle;
  for (const EncodedGroup& each : groups) bundle.Append(each);
  std::vector<uint32_t> frames;
  for (const EncodedColumn& each : bundle.columns) frames.push_back(each.frame);
  EXPECT_EQ((std::vector<uint32_t>{1, 3, 3, 5}), frames);
  const std::vector<Bundle> parts = std::move(bundle).Split();
  ASSERT_EQ(3u, parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(groups[i].bytes, parts[i].bytes);
    ASSERT_EQ(groups[i].columns.size(), parts[i].columns.size());
    for (size_t j = 0; j < parts[i].columns.size(); ++j) {
      EXPECT_EQ(groups[i].columns[j].frame, parts[i].columns[j].frame);
      EXPECT_EQ(groups[i].columns[j].column.data(), parts[i].columns[j].column.data());
    }
  }
}

TEST(Window, AcknowledgesOnlyWithoutGaps) {
  Window window({1, 2});
  for (int i = 0; i < 3; ++i) window.Add(BundleOf({1}));
  EXPECT_EQ(SendAll(window), "1 2 3 ");
  window.SendAgain();  // 1 was held back
  window.End();        // 2
  EXPECT_EQ(window.acknowledged_through(), 0u);
  EXPECT_EQ(window.size(), 3u);
  EXPECT_EQ(SendAll(window), "1 ");
  window.End();  // 3
  window.End();  // 1
  EXPECT_EQ(window.acknowledged_through(), 3u);
  EXPECT_EQ(window.size(), 0u);
}

TEST(Window, SendsWhatBrokeOffFirstAndInOrder) {
  Window window({1, 2});
  for (int i = 0; i < 3; ++i) window.Add(BundleOf({1}));
  window.Send();
  window.Send();
  window.OnBroken();
  EXPECT_EQ(SendAll(window), "1 2 3 ");
  EXPECT_TRUE(window.OldestIsUncertain());
  window.SendAgain();  // An answer, even a refusal, makes it certain.
  EXPECT_EQ(SendAll(window), "1 ");
  window.End();
  EXPECT_FALSE(window.OldestIsUncertain());  // 3 had not been sent before.
}

TEST(Window, NumbersAnewForAnotherWriter) {
  Window window({1, 2});
  for (uint32_t i = 1; i <= 4; ++i) window.Add(BundleOf({i}));
  window.Send();
  window.End();
  window.Send();
  window.OnBroken();
  const std::vector<Bundle> ended = window.Renumber({3, 4}, false);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].frames.size(), 2u);
  EXPECT_EQ(window.acknowledged_through(), 0u);
  EXPECT_EQ(window.Send()->bundle.frames.size(), 3u);
  EXPECT_EQ(window.Send()->sequence, 2u);

  window.OnBroken();
  EXPECT_TRUE(window.Renumber({5, 6}, true).empty());  // An empty server has stored nothing.
  EXPECT_EQ(SendAll(window), "1 2 ");
  EXPECT_FALSE(window.OldestIsUncertain());
}

TEST(Window, EndsWhatIsNotSentApartByCertainty) {
  Window window({1, 2});
  for (int i = 0; i < 3; ++i) window.Add(BundleOf({1}));
  window.Send();
  window.OnBroken();
  const auto [unsent, uncertain] = window.EndUnsent();
  EXPECT_EQ(unsent.size(), 2u);
  EXPECT_EQ(uncertain.size(), 1u);
  EXPECT_EQ(window.size(), 0u);
  EXPECT_EQ(window.acknowledged_through(), 3u);
}

TEST(Bundle, SplitsIntoItsCalls) {
  Bundle bundle = BundleOf({2, 1});
  const uint64_t bytes = bundle.bytes;
  const std::vector<Bundle> parts = std::move(bundle).Split();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].frames.size(), 2u);
  EXPECT_EQ(parts[1].frames.size(), 1u);
  EXPECT_EQ(parts[0].bytes + parts[1].bytes, bytes);
}

}  // namespace
}  // namespace replay
