#include "server/reservations.h"

#include <gtest/gtest.h>

#include "tests/support/buffer_fixture.h"

namespace replay::server {
namespace {

using test::BufferFixture;

BufferOptions Options(Unit unit = Unit::kTrajectory) {
  BufferOptions options;
  options.unit = unit;
  options.capacity_items = 8;
  options.selector = SelectorKind::kFifo;
  return options;
}

ReserveRequest Of(const std::string& group, uint32_t size, MissingMembers missing = MissingMembers::kDrop) {
  return {.group_id = group, .size = size, .lease_ms = 1'000, .deadline_ms = 5'000, .missing = missing};
}
ReserveRequest Act(const std::string& group, ReserveRequest::Action action) { return {.group_id = group, .action = action}; }

std::vector<fake::Trajectory> Members(const std::string& group, uint32_t size, std::vector<uint32_t> which) {
  const std::vector<fake::Trajectory> all = BufferFixture::Group(group, std::vector<float>(size, 1.f));
  std::vector<fake::Trajectory> some;
  for (const uint32_t index : which) some.push_back(all[index]);
  return some;
}

TEST(ReserveGroup, MembersBecomeVisibleTogetherAndInTheirOrder) {
  for (const Unit unit : {Unit::kTrajectory, Unit::kGroup}) {
    BufferFixture b(Options(unit));
    EXPECT_EQ("done", b.Reserve(Of("g", 3)));
    EXPECT_EQ("done", b.Insert(Members("g", 3, {2, 0}), true));
    EXPECT_TRUE(b.inserted.pending);
    EXPECT_EQ(0u, b.inserted.first_item);
    EXPECT_EQ("waits group_incomplete", b.Sample(1));
    EXPECT_EQ(2u, b.buffer->Stats().pending);
    EXPECT_EQ("done", b.Insert(Members("g", 3, {1}), true));
    EXPECT_FALSE(b.inserted.pending);
    EXPECT_EQ(1u, b.inserted.first_item);
    EXPECT_EQ(3u, b.buffer->live());
    EXPECT_EQ(0u, b.buffer->Stats().reserved_groups);
    StoredItem item;
    ASSERT_TRUE(b.buffer->Get("g.2", &item));
    EXPECT_EQ(3u, item.item);
  }
}

TEST(ReserveGroup, AGroupWhoseLastMemberNeverComesIsDropped) {
  BufferFixture b(Options());
  b.buffer->OnTime(1'000);
  EXPECT_EQ("done", b.Reserve(Of("g", 2)));
  EXPECT_EQ("done", b.Insert(Members("g", 2, {0}), true));
  EXPECT_FALSE(b.buffer->OnTime(1'999));
  EXPECT_TRUE(b.buffer->OnTime(2'000));
  EXPECT_EQ(0u, b.buffer->live());
  const BufferStats stats = b.buffer->Stats();
  EXPECT_EQ(1u, stats.dropped_members);
  EXPECT_EQ(1u, stats.rejected);
  EXPECT_EQ("failed_precondition", b.Insert(Members("g", 2, {1}), true).substr(0, 19));
}

TEST(ReserveGroup, AGroupWhoseLastMemberNeverComesIsReleasedWithItsTrueSize) {
  BufferFixture b(Options(Unit::kGroup));
  EXPECT_EQ("done", b.Reserve(Of("g", 3, MissingMembers::kRelease)));
  EXPECT_EQ("done", b.Insert(Members("g", 3, {2, 1}), true));
  EXPECT_TRUE(b.buffer->OnTime(1'000));
  EXPECT_EQ("1 2", b.Sample(1));
  EXPECT_EQ((std::vector<uint32_t>{2}), b.sampled.unit_sizes);
}

TEST(ReserveGroup, AGroupWhoseLastMemberNeverComesWaitsUntilItIsCommittedOrDropped) {
  BufferFixture b(Options());
  EXPECT_EQ("done", b.Reserve(Of("g", 3, MissingMembers::kWait)));
  EXPECT_EQ("done", b.Reserve(Of("h", 3, MissingMembers::kWait)));
  EXPECT_EQ("done", b.Insert(Members("g", 3, {0}), true));
  EXPECT_EQ("done", b.Insert(Members("h", 3, {0}), true));
  EXPECT_FALSE(b.buffer->OnTime(1'000'000));
  EXPECT_EQ("done", b.Reserve(Act("g", ReserveRequest::Action::kCommit)));
  EXPECT_EQ(1u, b.reserved.present);
  EXPECT_EQ(3u, b.reserved.size);
  EXPECT_EQ(1u, b.reserved.first_item);
  EXPECT_EQ("done", b.Reserve(Act("h", ReserveRequest::Action::kDrop)));
  EXPECT_EQ("| 1 positive=0 fresh=1 drawn=0", b.Describe());
  EXPECT_EQ("not_found: group \"h\" is not reserved: it is complete, was dropped, or has never been reserved",
            b.Reserve(Act("h", ReserveRequest::Action::kCommit)));
}

TEST(ReserveGroup, GroupsThatTimeEndsAreCountedAndNoOthers) {
  BufferFixture b(Options());
  for (const auto& [group, missing] :
       {std::pair("dropped", MissingMembers::kDrop), std::pair("released", MissingMembers::kRelease),
        std::pair("empty", MissingMembers::kRelease), std::pair("waits", MissingMembers::kWait)})
    EXPECT_EQ("done", b.Reserve(Of(group, 2, missing)));
  EXPECT_EQ("done", b.Reserve(Of("gone", 2)));
  EXPECT_EQ("done", b.Reserve(Act("gone", ReserveRequest::Action::kDrop)));
  EXPECT_EQ("done", b.Reserve(Of("whole", 1)));
  EXPECT_EQ("done", b.Insert(Members("whole", 1, {0}), true));
  for (const char* group : {"dropped", "released", "waits"}) EXPECT_EQ("done", b.Insert(Members(group, 2, {0}), true));
  EXPECT_EQ(0u, b.buffer->Stats().expired_groups);
  b.buffer->OnTime(5'000);
  b.buffer->OnTime(10'000);
  const BufferStats stats = b.buffer->Stats();
  EXPECT_EQ(3u, stats.expired_groups);  // dropped, released, empty
  EXPECT_EQ(1u, stats.reserved_groups);
  EXPECT_EQ(1u, stats.pending);
}

TEST(ReserveGroup, TheLeaseIsRenewedByMembersAndByAskingAgainTheDeadlineNever) {
  BufferFixture b(Options());
  EXPECT_EQ("done", b.Reserve(Of("g", 4)));
  b.buffer->OnTime(900);
  EXPECT_EQ("done", b.Insert(Members("g", 4, {0}), true));
  b.buffer->OnTime(1'800);
  EXPECT_EQ("done", b.Reserve(Of("g", 4)));
  EXPECT_EQ(1u, b.reserved.present);
  for (uint64_t now = 2'700; now < 5'000; now += 900) {
    EXPECT_FALSE(b.buffer->OnTime(now));
    EXPECT_EQ("done", b.Reserve(Of("g", 4)));
  }
  EXPECT_TRUE(b.buffer->OnTime(5'000));
  EXPECT_EQ(0u, b.buffer->Stats().reserved_groups);
}

TEST(ReserveGroup, CompletenessIsNeverInferredFromPosition) {
  BufferFixture b(Options());
  EXPECT_EQ("done", b.Reserve(Of("g", 2)));
  EXPECT_EQ("done", b.Reserve(Of("h", 2)));
  // Two members of different groups, side by side.
  std::vector<fake::Trajectory> both = Members("g", 2, {1});
  both.push_back(Members("h", 2, {0})[0]);
  EXPECT_EQ("done", b.Insert(both, true));
  EXPECT_EQ(0u, b.buffer->live());
  both = Members("h", 2, {1});
  both.push_back(Members("g", 2, {0})[0]);
  EXPECT_EQ("done", b.Insert(both, true));
  EXPECT_EQ(4u, b.buffer->live());
}

TEST(ReserveGroup, WhatDoesNotBelongIsRefused) {
  BufferFixture b(Options());
  EXPECT_EQ("done", b.Reserve(Of("g", 3)));
  EXPECT_EQ("done", b.Insert(Members("g", 3, {0}), true));
  EXPECT_EQ("failed_precondition: trajectories[0]: its group is not reserved",
            b.Insert(Members("h", 2, {0}), true).substr(0, 63));
  EXPECT_EQ("failed_precondition: trajectories[0]: group_size is 4: group \"g\" was reserved with 3",
            b.Insert(Members("g", 4, {3}), true));
  fake::Trajectory again = Members("g", 3, {0})[0];
  again.id = "another id";
  EXPECT_EQ("failed_precondition: trajectories[0]: index_in_group is 0: group \"g\" has that member", b.Insert({again}, true));
  fake::Trajectory twin = Members("g", 3, {1})[0];
  twin.id = "g.0";
  EXPECT_EQ("already_exists: trajectories[0]: its trajectory_id is that of a live item or of another member",
            b.Insert({twin}, true));
  EXPECT_EQ("failed_precondition: trajectory 0 of the request is a member of a reserved group: it is inserted with partial",
            b.Insert(Members("g", 3, {0, 1, 2})));
  EXPECT_EQ("already_exists: group \"g\" is reserved with size 3", b.Reserve(Of("g", 4)).substr(0, 49));
  EXPECT_EQ("invalid_argument: size is 0: it must be 1 to 8, the least of max_insert and what the buffer keeps",
            b.Reserve(Of("x", 0)));
  ReserveRequest hasty = Of("x", 2);
  hasty.lease_ms = 1;
  EXPECT_EQ("invalid_argument: lease is 1 ms: it must be 100 to 86400000", b.Reserve(hasty));
  EXPECT_EQ("invalid_argument", b.Insert(Members("z", 9, {0, 1, 2, 3, 4, 5, 6, 7, 8})).substr(0, 16));
}

TEST(ReserveGroup, MembersThatWaitCountAsBytesAndMayHaveHalf) {
  BufferOptions options = Options();
  options.capacity_bytes = 1'000;
  BufferFixture b(options);
  EXPECT_EQ("done", b.Reserve(Of("g", 8)));
  const uint64_t each = 64 + Frame::kOverheadBytes;
  const auto fitting = static_cast<uint32_t>(500 / each);
  for (uint32_t i = 0; i < fitting; ++i) EXPECT_EQ("done", b.Insert(Members("g", 8, {i}), true));
  EXPECT_EQ("resource_exhausted: members of incomplete groups would have " + std::to_string((fitting + 1) * each) +
                " bytes: at most half of capacity_bytes, 500, may wait for their groups",
            b.Insert(Members("g", 8, {fitting}), true));
  for (int i = 0; i < 20; ++i) EXPECT_EQ("done", b.Insert({{.id = "t" + std::to_string(i)}}));
  EXPECT_LE((b.buffer->live() + fitting) * each, 1'000u);
}

TEST(ReserveGroup, TheInsertThatCompletesWaitsForPacing) {
  BufferOptions options = Options();
  options.replay_ratio = 1;
  options.max_draws_per_sample = 2;
  options.max_insert = 2;
  options.min_size = 2;
  BufferFixture b(options);                                 // tolerance 2
  EXPECT_EQ("done", b.Insert({{.id = "a"}, {.id = "b"}}));  // the baseline
  EXPECT_EQ("done", b.Insert({{.id = "c"}, {.id = "d"}}));
  EXPECT_EQ("done", b.Reserve(Of("g", 2)));
  EXPECT_EQ("done", b.Insert(Members("g", 2, {0}), true));
  EXPECT_EQ("waits pacing", b.Insert(Members("g", 2, {1}), true));
  EXPECT_EQ(1u, b.buffer->Stats().pending);
  b.Sample(2);
  EXPECT_EQ("done", b.Insert(Members("g", 2, {1}), true));
  EXPECT_EQ(6u, b.buffer->live());
}

TEST(Admission, CreditsAreWhatWillNotBeTooStaleWhenItsTurnComes) {
  BufferOptions options = Options();
  options.max_staleness = 1;
  BufferFixture b(options);
  AdmitResult admission;
  EXPECT_EQ("done", test::TextOf(b.buffer->Admit({.batch = 3}, &admission)));
  EXPECT_EQ(6, admission.credits);  // (1 + 1) * 3
  for (int i = 0; i < 3; ++i) EXPECT_EQ("done", b.Insert({{.id = "t" + std::to_string(i)}}));
  EXPECT_EQ("done", b.Reserve(Of("g", 2)));
  EXPECT_EQ("done", test::TextOf(b.buffer->Admit({.count = 1, .batch = 3}, &admission)));
  EXPECT_EQ(1, admission.credits);
  EXPECT_EQ(3u, admission.live);
  EXPECT_EQ(2u, admission.reserved);
  EXPECT_EQ("waits staleness", test::TextOf(b.buffer->Admit({.count = 2, .batch = 3}, &admission)));
  ReserveRequest admitted = Of("h", 2);
  admitted.batch = 3;
  EXPECT_EQ("waits staleness", b.Reserve(admitted));
  EXPECT_EQ(1u, b.buffer->Delete("t0"));
  EXPECT_EQ("done", b.Reserve(admitted));
  EXPECT_EQ("done", test::TextOf(b.buffer->Admit({.batch = 3}, &admission)));
  EXPECT_EQ(0, admission.credits);
  // A member that arrives was reserved before: nothing changes.
  EXPECT_EQ("done", b.Insert(Members("h", 2, {0}), true));
  EXPECT_EQ("done", test::TextOf(b.buffer->Admit({.batch = 3, .max_staleness = 0}, &admission)));
  EXPECT_EQ(-3, admission.credits);
}

TEST(Admission, NonsenseIsRefused) {
  BufferFixture b(Options());
  AdmitResult admission;
  EXPECT_EQ("invalid_argument: max_staleness is missing: neither the request nor the buffer has one, so everything is admitted",
            test::TextOf(b.buffer->Admit({.batch = 3}, &admission)));
  EXPECT_EQ("invalid_argument: batch is 0: it must be at least 1",
            test::TextOf(b.buffer->Admit({.max_staleness = 1}, &admission)));
  EXPECT_EQ("invalid_argument: count is 7: at most 6 = (max_staleness + 1) * batch are ever admitted",
            test::TextOf(b.buffer->Admit({.count = 7, .batch = 3, .max_staleness = 1}, &admission)));
  EXPECT_EQ("invalid_argument: max_staleness is -1: it must be 0 to 1000000",
            test::TextOf(b.buffer->Admit({.batch = 3, .max_staleness = -1}, &admission)));
}

}  // namespace
}  // namespace replay::server
