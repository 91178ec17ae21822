#include "trainer/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/daemon.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/make_rows.h"
#include "trainer/model/checkpoint.h"

namespace replay::trainer {
namespace {

using test::Daemon;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using testing::TinyModel;

TEST(Publisher, PutsAFolderAndALineInTheRegistryForEachVersion) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = folder / "weights", .keep = 3});
  ASSERT_TRUE(publisher.JoinRegistry(0));
  std::filesystem::create_directories(folder / "weights/version-notanumber");
  const model::Transformer model = TinyModel(1);
  for (int64_t version = 0; version < 6; ++version) EXPECT_EQ(publisher.Publish(version, model), "");
  const Result<PolicyVersion> newest = client.WaitVersion("run", 0, std::nullopt, milliseconds(0));
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->version, 5);
  EXPECT_EQ(newest->step, 5);
  ASSERT_EQ(newest->uri, "file://" + (folder / "weights/version-5"));
  EXPECT_TRUE(testing::Equal(model::LoadModel(folder / "weights/version-5"), model));
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "weights")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"version-3", "version-4", "version-5", "version-notanumber"}));
}

TEST(Publisher, BeginsANewEpochBehindWhatWasPublished) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  const model::Transformer model = TinyModel(1);
  const PublisherOptions options{.run_id = "run", .folder = folder / "weights"};
  Publisher first(client, options);
  ASSERT_TRUE(first.JoinRegistry(0));
  for (const int64_t version : {0, 5, 10}) EXPECT_EQ(first.Publish(version, model), "");
  Publisher ahead(client, options);
  ASSERT_TRUE(ahead.JoinRegistry(11));
  EXPECT_EQ(ahead.epoch(), 0u);
  Publisher behind(client, options);
  ASSERT_TRUE(behind.JoinRegistry(10));
  EXPECT_EQ(behind.epoch(), 1u);
  EXPECT_EQ(behind.Publish(10, model), "");
  EXPECT_THAT(first.Publish(9, model), ::testing::Not(""));  // within its epoch versions only grow
}

TEST(Publisher, PublishesAgainToADaemonThatCameBack) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = folder / "weights"});
  EXPECT_EQ(publisher.PublishAgain(), "");  // nothing yet
  EXPECT_EQ(publisher.Publish(4, TinyModel(1)), "");
  daemon.KillNow();
  EXPECT_THAT(publisher.PublishAgain(), HasSubstr("unavailable"));
  daemon.Start();
  EXPECT_EQ(publisher.PublishAgain(), "");
  EXPECT_EQ(client.Versions("run")->at(0).version, 4);
}

TEST(Publisher, SaysWhyAndTriesAgain) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = folder / "weights"});
  test::WriteFile(folder / "weights", "");  // a file in its place
  EXPECT_THAT(publisher.Publish(1, TinyModel(1)), HasSubstr("cannot be made"));
  EXPECT_TRUE(client.Versions("run")->empty());
  std::filesystem::remove(folder / "weights");
  EXPECT_EQ(publisher.Publish(1, TinyModel(1)), "");
}

}  // namespace
}  // namespace replay::trainer
