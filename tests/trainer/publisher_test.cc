#include "trainer/publisher.h"

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <set>

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

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(Publisher, PutsAFolderAndALineInTheRegistryForEachVersion) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = folder / "weights", .keep = 3});
  ASSERT_TRUE(publisher.JoinRegistry(0));
  const std::set<std::string> others = {"version-", "version-007", "version-1.tmp", "version--1", "checkpoint-2"};
  for (const std::string& name : others) std::filesystem::create_directories(folder / ("weights/" + name));
  const model::Transformer model = TinyModel(1);
  for (int64_t version = 0; version < 6; ++version) EXPECT_EQ(publisher.Publish(version, model), "");
  const Result<PolicyVersion> newest = client.WaitVersion("run", 0, std::nullopt, milliseconds(0));
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->version, 5);
  EXPECT_EQ(newest->step, 5);
  ASSERT_EQ(newest->uri, "file://" + (folder / "weights/version-5"));
  EXPECT_TRUE(testing::Equal(model::LoadModel(folder / "weights/version-5"), model));
  std::set<std::string> expected = others;  // folders that are no version of anybody's are not touched
  expected.insert({"version-3", "version-4", "version-5"});
  EXPECT_EQ(NamesIn(folder / "weights"), expected);
}

// A run that came further left its folders; one that goes on from an earlier checkpoint must not lose its own for them.
TEST(Publisher, KeepsItsNewestBesideThoseOfARunThatHadComeFurther) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  const PublisherOptions options{.run_id = "run", .folder = folder / "weights", .keep = 2};
  const model::Transformer model = TinyModel(1), other = TinyModel(2);
  Publisher further(client, options);
  ASSERT_TRUE(further.JoinRegistry(0));
  for (const int64_t version : {13, 14}) EXPECT_EQ(further.Publish(version, other), "");
  Publisher behind(client, options);
  ASSERT_TRUE(behind.JoinRegistry(10));
  for (const int64_t version : {10, 11, 12}) EXPECT_EQ(behind.Publish(version, model), "");
  EXPECT_EQ(NamesIn(folder / "weights"), (std::set<std::string>{"version-11", "version-12", "version-13", "version-14"}));
  EXPECT_EQ(behind.Publish(13, model), "");  // over what is there
  EXPECT_TRUE(testing::Equal(model::LoadModel(folder / "weights/version-13"), model));
  EXPECT_EQ(NamesIn(folder / "weights"), (std::set<std::string>{"version-12", "version-13", "version-14"}));
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
  EXPECT_THAT(first.Publish(9, model), HasSubstr("the epoch must not be lower"));
  // Where the newest epoch has not come as far, it goes on.
  Publisher third(client, options);
  ASSERT_TRUE(third.JoinRegistry(11));
  EXPECT_EQ(third.epoch(), 1u);
  EXPECT_EQ(third.Publish(11, model), "");
  EXPECT_THAT(third.Publish(11, model), HasSubstr("within an epoch the version must be higher"));
}

TEST(Publisher, SaysThatThereIsNoRegistryToJoin) {
  Daemon daemon;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = "unused"});
  daemon.KillNow();
  const Result<Done> joined = publisher.JoinRegistry(0);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(publisher.published(), -1);
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
  EXPECT_EQ(publisher.published(), 1);
}

TEST(Publisher, LeavesNothingBehindWhenTheDiskIsFull) {
  Daemon daemon;
  const TemporaryFolder folder;
  Client client({.address = daemon.address()});
  Publisher publisher(client, {.run_id = "run", .folder = folder / "weights"});
  const model::Transformer model = TinyModel(1);
  EXPECT_EQ(publisher.Publish(1, model), "");
  // A bound on the size of files does what a full disk does; its signal ignored, write fails with EFBIG.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1'000;
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string failure = publisher.Publish(2, model);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(failure, HasSubstr("cannot be written: File too large"));
  EXPECT_EQ(NamesIn(folder / "weights"), (std::set<std::string>{"version-1"}));
  EXPECT_EQ(client.Versions("run")->size(), 1u);
  EXPECT_EQ(publisher.Publish(2, model), "");
  EXPECT_EQ(client.Versions("run")->size(), 2u);
}

}  // namespace
}  // namespace replay::trainer
