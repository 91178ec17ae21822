#include "generator/weights_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/daemon.h"

namespace replay {
namespace {

using namespace std::chrono_literals;
using test::Daemon;

TEST(WeightsWatch, HoldsTheNewestVersionReady) {
  Daemon daemon;
  Client client({.address = daemon.address()});
  WeightsWatch watch(client, "run");
  EXPECT_FALSE(watch.TakeNewer(0ms));
  for (const int64_t version : {1, 2, 3})
    ASSERT_TRUE(client.PublishVersion({.run_id = "run", .version = version, .step = version, .uri = "file:///w"}));
  ASSERT_TRUE(client.PublishVersion({.run_id = "another", .version = 9, .step = 9}));
  std::optional<PolicyVersion> newest;
  while (!newest || newest->version < 3) {
    const std::optional<PolicyVersion> next = watch.TakeNewer(10s);
    ASSERT_TRUE(next);
    EXPECT_TRUE(!newest || next->version > newest->version);
    newest = next;
  }
  EXPECT_FALSE(watch.TakeNewer(0ms));  // taken
  EXPECT_EQ(watch.trouble(), "");
}

TEST(WeightsWatch, SaysWhatIsWrongAndGoesOnWhenItIsNot) {
  Daemon daemon;
  Client client({.address = daemon.address()});
  daemon.KillNow();
  WeightsWatch watch(client, "run");
  while (watch.trouble().empty()) std::this_thread::sleep_for(1ms);
  EXPECT_THAT(watch.trouble(), ::testing::HasSubstr("unavailable"));
  daemon.Start();
  ASSERT_TRUE(client.PublishVersion({.run_id = "run", .version = 4, .step = 4}));
  const std::optional<PolicyVersion> newest = watch.TakeNewer(20s);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->version, 4);
  EXPECT_EQ(watch.trouble(), "");
}

TEST(WeightsWatch, FollowsARunIntoItsNextEpoch) {
  Daemon daemon;
  Client client({.address = daemon.address()});
  WeightsWatch watch(client, "run");
  ASSERT_TRUE(client.PublishVersion({.run_id = "run", .version = 10, .step = 10}));
  ASSERT_EQ(watch.TakeNewer(10s)->version, 10);
  ASSERT_TRUE(client.PublishVersion({.run_id = "run", .epoch = 1, .version = 5, .step = 5}));
  const std::optional<PolicyVersion> next = watch.TakeNewer(10s);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->epoch, 1u);
  EXPECT_EQ(next->version, 5);
}

TEST(FolderOfUri, UnderstandsFilesAlone) {
  EXPECT_EQ(FolderOfUri("file:///data/w"), "/data/w");
  EXPECT_EQ(FolderOfUri("data/w"), "data/w");
  EXPECT_EQ(FolderOfUri("s3://bucket/w"), "");
}

}  // namespace
}  // namespace replay
