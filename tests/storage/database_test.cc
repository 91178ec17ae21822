#include "storage/database.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace replay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Listed = std::vector<std::pair<std::string, std::string>>;

constexpr uint64_t kReserve = 1 << 20;

class DatabaseTest : public testing::Test {
 protected:
  DatabaseTest() { EXPECT_FALSE(folder_.Open(around_ / "data", kReserve).failed()); }
  StorageError Open() {
    database_.reset();
    return Database::Open(folder_, &database_);
  }
  StorageError Put(const std::string& key, const std::string& value) {
    const Database::Change change{Rows::kVersions, key, value};
    return database_->Write({&change, 1});
  }
  Listed All(std::string_view from = "") {
    Listed listed;
    const StorageError error = database_->ForEach(Rows::kVersions, from, [&](std::string_view key, std::string_view value) {
      listed.emplace_back(key, value);
      return true;
    });
    EXPECT_FALSE(error.failed()) << error.message;
    return listed;
  }
  // The newest file of RocksDB's log.
  std::string LogFile() {
    std::string newest;
    for (const auto& entry : std::filesystem::directory_iterator(around_ / "data/db"))
      if (entry.path().extension() == ".log") newest = std::max(newest, entry.path().string());
    return newest;
  }
  // As after kill -9: a child writes so many rows, and ends without a word to RocksDB.
  void WriteAndDie(int rows) {
    database_.reset();
    const pid_t child = fork();
    if (child == 0) {
      bool good = !Open().failed();
      for (int i = 0; i < rows; ++i) good = good && !Put(BigEndian(i), std::string(100, 'x')).failed();
      raise(good ? SIGKILL : SIGTERM);
    }
    int status = 0;
    ASSERT_EQ(child, waitpid(child, &status, 0));
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }

  const test::TemporaryFolder around_;
  DataFolder folder_;
  std::unique_ptr<Database> database_;
};

TEST_F(DatabaseTest, RowsOutliveItInTheOrderOfTheirKeys) {
  ASSERT_FALSE(Open().failed());
  EXPECT_THAT(All(), IsEmpty());
  ASSERT_FALSE(Put("b", "2").failed());
  const std::vector<Database::Change> changes = {
      {Rows::kVersions, "a", "1"}, {Rows::kVersions, "b", std::nullopt}, {Rows::kVersions, "c", std::string("3\0x", 3)}};
  ASSERT_FALSE(database_->Write(changes).failed());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(All(), ElementsAre(Pair("a", "1"), Pair("c", std::string("3\0x", 3))));
    EXPECT_THAT(All("b"), ElementsAre(Pair("c", testing::_)));
    ASSERT_FALSE(Open().failed());
  }
}

TEST_F(DatabaseTest, StopsWhenTheVisitorHasSeenEnough) {
  ASSERT_FALSE(Open().failed());
  for (const char* key : {"a", "b", "c"}) ASSERT_FALSE(Put(key, "").failed());
  int seen = 0;
  EXPECT_FALSE(database_->ForEach(Rows::kVersions, "", [&](auto, auto) { return ++seen < 2; }).failed());
  EXPECT_EQ(2, seen);
}

TEST_F(DatabaseTest, WhatWasWrittenSurvivesAKilledProcess) {
  WriteAndDie(20);
  ASSERT_FALSE(Open().failed());
  EXPECT_EQ(20u, All().size());
}

// What a power cut leaves of a write that was never answered.
TEST_F(DatabaseTest, ATornTailIsCut) {
  WriteAndDie(20);
  const std::string log = LogFile();
  std::filesystem::resize_file(log, std::filesystem::file_size(log) - 10);
  const StorageError error = Open();
  ASSERT_FALSE(error.failed()) << error.message;
  EXPECT_EQ(19u, All().size());
}

// RocksDB's default would open, without a word, with what stands before it.
TEST_F(DatabaseTest, AFlippedBitIsAnErrorAndNotTheEnd) {
  WriteAndDie(20);
  const std::string log = LogFile();
  std::string bytes = test::ReadFile(log);
  bytes[bytes.size() / 2] ^= 1;
  test::WriteFile(log, bytes);
  const StorageError error = Open();
  EXPECT_EQ(StorageProblem::kIo, error.problem);
  EXPECT_THAT(error.message, HasSubstr("cannot open " + (around_ / "data/db")));
  EXPECT_EQ(bytes, test::ReadFile(log)) << "what is damaged is left as it is";
}

TEST_F(DatabaseTest, WritesNothingWhileTheReserveIsNotFreeAndGoesOnAfterwards) {
  ASSERT_FALSE(Open().failed());
  ASSERT_FALSE(Put("before", "1").failed());
  folder_.SetReserve(uint64_t{1} << 60);
  const StorageError error = Put("full", "2");
  EXPECT_EQ(StorageProblem::kFull, error.problem);
  EXPECT_THAT(error.message, HasSubstr("storage.reserve_bytes is 1152921504606846976: nothing is written"));
  EXPECT_THAT(All(), ElementsAre(Pair("before", "1")));
  folder_.SetReserve(kReserve);
  EXPECT_FALSE(Put("after", "3").failed());
  EXPECT_THAT(All(), ElementsAre(Pair("after", "3"), Pair("before", "1")));
}

TEST(BigEndian, OrdersAsTheNumbersDo) {
  std::string last;
  for (const uint64_t number : {0ull, 1ull, 255ull, 256ull, 1ull << 32, ~0ull}) {
    const std::string bytes = BigEndian(number);
    EXPECT_LT(last, bytes);
    EXPECT_EQ(number, FromBigEndian(bytes));
    last = bytes;
  }
  EXPECT_EQ(std::nullopt, FromBigEndian("1234567"));
}

}  // namespace
}  // namespace replay
