#include "server/policy_versions.h"

#include <gtest/gtest.h>

#include <string>

namespace replay::server {
namespace {

PolicyVersions::Snapshot Publish(const PolicyVersions::Snapshot& before, const std::string& run, uint64_t epoch,
                                 int64_t version, int64_t step) {
  std::string error;
  PolicyVersion published;
  published.run_id = run;
  published.epoch = epoch;
  published.version = version;
  published.step = step;
  auto after = before->Publish(published, &error);
  EXPECT_EQ("", error);
  return after;
}

std::string ErrorOf(const PolicyVersions::Snapshot& before, uint64_t epoch, int64_t version, int64_t step) {
  std::string error;
  PolicyVersion published;
  published.run_id = "r";
  published.epoch = epoch;
  published.version = version;
  published.step = step;
  EXPECT_EQ(nullptr, before->Publish(published, &error));
  return error;
}

TEST(PolicyVersions, RefuseWhatIsNotLaterAndNameBoth) {
  const auto versions = Publish(PolicyVersions::Empty(), "r", 2, 10, 100);
  const std::string higher = "within an epoch the version must be higher; a trainer that restarts opens a higher epoch";
  EXPECT_EQ("run \"r\": version 10 at step 100 of epoch 2 after version 10 at step 100 of epoch 2: " + higher,
            ErrorOf(versions, 2, 10, 100));
  EXPECT_EQ("run \"r\": version 9 at step 101 of epoch 2 after version 10 at step 100 of epoch 2: " + higher,
            ErrorOf(versions, 2, 9, 101));
  EXPECT_EQ(
      "run \"r\": version 11 at step 99 of epoch 2 after version 10 at step 100 of epoch 2: within an epoch the step must not "
      "be "
      "lower; a trainer that restarts opens a higher epoch",
      ErrorOf(versions, 2, 11, 99));
  EXPECT_EQ("run \"r\": version 11 at step 101 of epoch 1 after version 10 at step 100 of epoch 2: the epoch must not be lower",
            ErrorOf(versions, 1, 11, 101));
  EXPECT_NE(nullptr, Publish(versions, "r", 3, 1, 1));
}

TEST(PolicyVersions, KnowTheStepOfEachVersionAndTakeAnUnpublishedForItsOwn) {
  auto versions = Publish(PolicyVersions::Empty(), "r", 0, 10, 1000);
  versions = Publish(versions, "r", 0, 20, 2000);
  versions = Publish(versions, "r", 1, 10, 1500);
  const Key128 run = HashId("r");
  EXPECT_EQ(1000, versions->StepOf(run, 0, 10));
  EXPECT_EQ(2000, versions->StepOf(run, 0, 20));
  EXPECT_EQ(1500, versions->StepOf(run, 1, 10));
  EXPECT_EQ(15, versions->StepOf(run, 0, 15));
  EXPECT_EQ(9, versions->StepOf(run, 0, 9));
  EXPECT_EQ(20, versions->StepOf(run, 1, 20));
  EXPECT_EQ(10, versions->StepOf(HashId("other"), 0, 10));
  EXPECT_EQ(1u, versions->CurrentEpoch(run));
  EXPECT_EQ(0u, versions->CurrentEpoch(HashId("other")));
  EXPECT_EQ(2000, versions->NewestStep(run, 0, -7));
  EXPECT_EQ(1500, versions->NewestStep(run, 1, -7));
  EXPECT_EQ(-7, versions->NewestStep(run, 2, -7));
  EXPECT_EQ(-7, versions->NewestStep(HashId("other"), 0, -7));
}

TEST(PolicyVersions, ASnapshotNeverChanges) {
  const auto before = Publish(PolicyVersions::Empty(), "r", 0, 1, 1);
  const auto after = Publish(before, "r", 0, 2, 2);
  EXPECT_EQ(1, before->Newest("r")->version);
  EXPECT_EQ(2, after->Newest("r")->version);
  EXPECT_EQ(nullptr, PolicyVersions::Empty()->Newest("r"));
}

TEST(PolicyVersions, LaterIsByEpochThenVersion) {
  const auto versions = Publish(PolicyVersions::Empty(), "r", 1, 5, 5);
  int64_t version = 4;
  EXPECT_NE(nullptr, versions->Later("r", 1, &version));
  version = 5;
  EXPECT_EQ(nullptr, versions->Later("r", 1, &version));
  EXPECT_NE(nullptr, versions->Later("r", 0, &version));
  EXPECT_EQ(nullptr, versions->Later("r", 2, &version));
  EXPECT_NE(nullptr, versions->Later("r", 9, nullptr));
  EXPECT_EQ(nullptr, versions->Later("other", 0, nullptr));
}

TEST(PolicyVersions, ListGivesOneRunOrAllNewestLast) {
  auto versions = PolicyVersions::Empty();
  for (int64_t version = 1; version <= 600; ++version) versions = Publish(versions, "r", 0, version, version);
  versions = Publish(versions, "s", 0, 7, 7);
  EXPECT_EQ(601u, versions->List("", 10'000).size());
  const auto list = versions->List("r", 10'000);
  ASSERT_EQ(600u, list.size());
  for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(static_cast<int64_t>(i) + 1, list[i].version);
  EXPECT_TRUE(versions->List("other", 10).empty());
}

TEST(PolicyVersions, ListGivesEachRunItsShareOfTheNewest) {
  auto versions = PolicyVersions::Empty();
  for (int64_t version = 1; version <= 600; ++version) {
    versions = Publish(versions, "r", 0, version, version);
    versions = Publish(versions, "s", 0, version, version);
  }
  const auto list = versions->List("", 300);
  ASSERT_EQ(300u, list.size());
  for (size_t i = 0; i < 150; ++i) {
    EXPECT_EQ(static_cast<int64_t>(451 + i), list[i].version);
    EXPECT_EQ(static_cast<int64_t>(451 + i), list[150 + i].version);
  }
  EXPECT_NE(list[0].run_id, list[299].run_id);
  EXPECT_EQ(600, versions->List("r", 1)[0].version);
}

// A uri may have kilobytes: what all runs hold is bounded in bytes, and a run that hits the bound forgets its own oldest.
TEST(PolicyVersions, HoldNoMoreBytesThanAllowed) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "copies 20 GB, which takes minutes here and says nothing about threads";
#else
  PolicyVersion published;
  published.uri.assign(100'000, 'u');
  published.run_id = "r";
  auto versions = PolicyVersions::Empty();
  std::string error;
  ErrorCode code{};
  const int64_t fit = kMaxVersionBytes / 100'000;
  for (published.version = published.step = 0; published.version < fit + 300; published.step = ++published.version) {
    versions = versions->Publish(published, &error, &code);
    ASSERT_TRUE(versions) << error;
  }
  EXPECT_LE(versions->List("r", 1'000'000).size(), static_cast<size_t>(fit));
  EXPECT_EQ(fit + 299, versions->Newest("r")->version);
  // Another run's: it has nothing of its own to forget.
  published.run_id = "s";
  PolicyVersions::Snapshot next = versions;
  for (published.version = 0; next; ++published.version) {
    ASSERT_LT(published.version, fit);
    versions = next;
    next = versions->Publish(published, &error, &code);
  }
  EXPECT_EQ(ErrorCode::kResourceExhausted, code);
  EXPECT_TRUE(error.starts_with("run \"s\": all versions together have ")) << error;
#endif
}

TEST(PolicyVersions, ForgetTheOldestBeyondTheLimit) {
  auto versions = PolicyVersions::Empty();
  const auto count = static_cast<int64_t>(kMaxVersionsKept) + 10;
  for (int64_t version = 0; version < count; ++version) versions = Publish(versions, "r", 0, version, 10 * version);
  EXPECT_LE(versions->List("r", 2 * kMaxVersionsKept).size(), kMaxVersionsKept);
  EXPECT_GT(versions->List("r", 2 * kMaxVersionsKept).size(), kMaxVersionsKept - 256);
  EXPECT_EQ(3, versions->StepOf(HashId("r"), 0, 3));  // forgotten: its own step
  EXPECT_EQ(10 * (count - 1), versions->StepOf(HashId("r"), 0, count - 1));
  EXPECT_EQ(5000, versions->StepOf(HashId("r"), 0, 500));
}

TEST(PolicyVersions, RefuseMoreRunsThanTheLimit) {
  auto versions = PolicyVersions::Empty();
  for (uint32_t run = 0; run < kMaxRuns; ++run) versions = Publish(versions, "run" + std::to_string(run), 0, 1, 1);
  EXPECT_EQ("run \"r\" would be one more than 1024 runs: none is forgotten", ErrorOf(versions, 0, 1, 1));
  EXPECT_NE(nullptr, Publish(versions, "run0", 0, 2, 2));
}

TEST(PolicyVersions, AreTheSameWhenRestoredFromTheirList) {
  auto versions = PolicyVersions::Empty();
  EXPECT_EQ(nullptr, versions->last());
  for (int64_t version = 0; version < 1'000; ++version)
    versions = Publish(versions, "run " + std::to_string(version % 3), version / 400, version, 10 * version);
  ASSERT_EQ(999, versions->last()->version);
  auto restored = PolicyVersions::Restore(versions->List("", SIZE_MAX), versions->published());
  EXPECT_EQ(nullptr, restored->last());
  for (int more = 0; more < 600; ++more) {
    EXPECT_EQ(versions->count(), restored->count());
    EXPECT_EQ(versions->published(), restored->published());
    for (int run = 0; run < 3; ++run) {
      const std::string id = "run " + std::to_string(run);
      EXPECT_EQ(versions->CurrentEpoch(HashId(id)), restored->CurrentEpoch(HashId(id)));
      EXPECT_EQ(versions->NewestStep(HashId(id), 1, -1), restored->NewestStep(HashId(id), 1, -1));
      EXPECT_EQ(versions->Newest(id)->version, restored->Newest(id)->version);
      for (int64_t version = 0; version < 1'000; version += 97)
        EXPECT_EQ(versions->StepOf(HashId(id), version / 400, version), restored->StepOf(HashId(id), version / 400, version));
    }
    versions = Publish(versions, "run 1", 3, 1'000 + more, 10'000 + more);
    restored = Publish(restored, "run 1", 3, 1'000 + more, 10'000 + more);
  }
  EXPECT_EQ(0u, PolicyVersions::Restore({}, 0)->count());
}

}  // namespace
}  // namespace replay::server
