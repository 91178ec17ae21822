#include "server/version_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schema/limits.h"
#include "server/version_codec.h"
#include "tests/support/temporary_folder.h"

namespace replay::server {
namespace {

using testing::HasSubstr;

class VersionRegistryTest : public testing::Test {
 protected:
  VersionRegistryTest() {
    EXPECT_FALSE(folder_.Open(around_ / "data", 1).failed());
    Restart();
  }
  // As a daemon that starts again.
  StorageError Restart() {
    registry_.reset();
    database_.reset();
    EXPECT_FALSE(Database::Open(folder_, &database_).failed());
    registry_.emplace(database_.get());
    return registry_->Load();
  }
  Verdict Publish(const std::string& run, uint64_t epoch, int64_t version, int64_t step) {
    return registry_->Publish({.run_id = run, .epoch = epoch, .version = version, .step = step});
  }
  size_t RowCount() {
    size_t rows = 0;
    EXPECT_FALSE(database_
                     ->ForEach(replay::Rows::kVersions, "",
                               [&](auto, auto) {
                                 ++rows;
                                 return true;
                               })
                     .failed());
    return rows;
  }

  const test::TemporaryFolder around_;
  DataFolder folder_;
  std::unique_ptr<Database> database_;
  std::optional<VersionRegistry> registry_;
};

TEST_F(VersionRegistryTest, IsTheSameAfterARestart) {
  const PolicyVersion whole = {.run_id = "math",
                               .epoch = 2,
                               .version = 7,
                               .step = 70,
                               .label = "best so far",
                               .uri = "file:///weights/7",
                               .published_at_unix_ns = 1'700'000'000'000'000'001};
  ASSERT_TRUE(registry_->Publish(whole).done());
  ASSERT_TRUE(Publish("code", 0, -3, -30).done());
  ASSERT_TRUE(Publish("math", 3, 1, 60).done());
  ASSERT_FALSE(Restart().failed());
  const PolicyVersions& versions = *registry_->newest();
  EXPECT_EQ(3u, versions.count());
  EXPECT_EQ(3u, versions.Newest("math")->epoch);
  EXPECT_EQ(-30, versions.Newest("code")->step);
  const PolicyVersion first = versions.List("math", 10).at(0);
  EXPECT_EQ(whole.label, first.label);
  EXPECT_EQ(whole.uri, first.uri);
  EXPECT_EQ(whole.published_at_unix_ns, first.published_at_unix_ns);
  EXPECT_EQ(70, versions.StepOf(HashId("math"), 2, 7));
}

TEST_F(VersionRegistryTest, GoesOnlyForwardAlsoAcrossARestart) {
  ASSERT_TRUE(Publish("r", 0, 10, 100).done());
  ASSERT_FALSE(Restart().failed());
  const Verdict verdict = Publish("r", 0, 9, 101);
  EXPECT_EQ(ErrorCode::kFailedPrecondition, verdict.code);
  EXPECT_THAT(verdict.message, HasSubstr("version 9 at step 101 of epoch 0 after version 10 at step 100 of epoch 0"));
  EXPECT_TRUE(Publish("r", 0, 11, 101).done());
  ASSERT_FALSE(Restart().failed());
  EXPECT_EQ(2u, registry_->newest()->count());
}

TEST_F(VersionRegistryTest, PublishesNothingThatIsNotStored) {
  ASSERT_TRUE(Publish("r", 0, 1, 1).done());
  folder_.SetReserve(uint64_t{1} << 60);
  const Verdict verdict = Publish("r", 0, 2, 2);
  EXPECT_EQ(ErrorCode::kStorageFull, verdict.code);
  EXPECT_THAT(verdict.message, HasSubstr("nothing is written"));
  EXPECT_EQ(1, registry_->newest()->Newest("r")->version);
  folder_.SetReserve(1);
  EXPECT_TRUE(Publish("r", 0, 2, 2).done()) << "the same again, once there is room";
  ASSERT_FALSE(Restart().failed());
  EXPECT_EQ(2, registry_->newest()->Newest("r")->version);
}

TEST_F(VersionRegistryTest, RowsOfForgottenVersionsAreDeleted) {
  std::vector<Database::Change> rows;
  constexpr int64_t kPublished = kMaxVersionsKept + 1000;
  for (int64_t i = 0; i < kPublished; ++i)
    rows.push_back(
        {Rows::kVersions, BigEndian(static_cast<uint64_t>(i)), EncodeVersion({.run_id = "r", .version = i, .step = i})});
  ASSERT_FALSE(database_->Write(rows).failed());
  ASSERT_FALSE(Restart().failed());
  const uint64_t kept = registry_->newest()->count();
  EXPECT_LE(kept, kMaxVersionsKept);
  EXPECT_GT(kept, kMaxVersionsKept - 1000);
  EXPECT_EQ(kept, RowCount());
  ASSERT_TRUE(registry_->Publish({.run_id = "r", .version = kPublished, .step = kPublished}).done());
  ASSERT_FALSE(Restart().failed());
  EXPECT_EQ(kPublished, registry_->newest()->Newest("r")->version);
}

TEST_F(VersionRegistryTest, RefusesRowsItCannotUnderstand) {
  ASSERT_TRUE(Publish("r", 0, 5, 5).done());
  for (const std::string& damaged : {std::string(), std::string("1234567"), std::string(16, '\xff'),
                                     EncodeVersion({.run_id = "r", .version = 5, .step = 5})}) {
    const Database::Change row{Rows::kVersions, BigEndian(1), damaged};
    ASSERT_FALSE(database_->Write({&row, 1}).failed());
    const StorageError error = Restart();
    EXPECT_EQ(StorageProblem::kIo, error.problem);
    EXPECT_THAT(error.message, HasSubstr("the policy version of row 1 of \"versions\"")) << damaged.size();
  }
}

TEST(VersionRegistry, WithoutADatabaseNothingIsKept) {
  for (int i = 0; i < 2; ++i) {
    VersionRegistry registry(nullptr);
    EXPECT_FALSE(registry.Load().failed());
    EXPECT_EQ(0u, registry.newest()->count());
    EXPECT_TRUE(registry.Publish({.run_id = "r", .version = 3}).done());
    EXPECT_FALSE(registry.Publish({.run_id = "r", .version = 3}).done());
    EXPECT_EQ(1u, registry.newest()->count());
  }
}

}  // namespace
}  // namespace replay::server
