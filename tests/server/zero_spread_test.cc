#include "server/zero_spread.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

struct Member {
  std::string group;
  float reward;
};

// "0110": which trajectories are of a group whose rewards are all the same; checks that Find counts them.
std::string Find(const std::vector<Member>& members, ZeroSpreadFinder* finder) {
  std::vector<TrajectoryFacts> facts(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i].group.empty()) facts[i].group = HashId(members[i].group);
    facts[i].reward = members[i].reward;
  }
  const uint64_t count = finder->Find(facts);
  std::string marks;
  uint64_t marked = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    marks += (*finder)[i] ? '1' : '0';
    marked += (*finder)[i];
  }
  EXPECT_EQ(marked, count);
  return marks;
}
std::string Find(const std::vector<Member>& members) {
  ZeroSpreadFinder finder;
  return Find(members, &finder);
}

TEST(ZeroSpread, IsAGroupWhoseMembersAllHaveOneReward) {
  EXPECT_EQ("1111", Find({{"a", 0}, {"a", 0}, {"a", 0}, {"a", 0}}));
  EXPECT_EQ("0000", Find({{"a", 0}, {"a", 0}, {"a", 0}, {"a", 1}}));
  EXPECT_EQ("110011", Find({{"a", 0.5f}, {"a", 0.5f}, {"b", 0}, {"b", 1}, {"c", 1}, {"c", 1}}));
  EXPECT_EQ("1", Find({{"a", 0}})) << "a group of one";
  EXPECT_EQ("11", Find({{"a", 0.0f}, {"a", -0.0f}})) << "equal as numbers";
}

TEST(ZeroSpread, ATrajectoryWithoutAGroupIsNeverInOne) {
  EXPECT_EQ("0", Find({{"", 1}}));
  EXPECT_EQ("0000", Find({{"", 1}, {"", 1}, {"", 1}, {"", 1}}));
  EXPECT_EQ("0110", Find({{"", 1}, {"a", 1}, {"a", 1}, {"", 1}}));
}

TEST(ZeroSpread, MembersNeedNotStandTogether) {
  EXPECT_EQ("1010", Find({{"a", 1}, {"b", 0}, {"a", 1}, {"b", 1}}));
  EXPECT_EQ("00000", Find({{"a", 1}, {"a", 1}, {"", 0}, {"a", 0}, {"a", 0}})) << "each part alone has one reward";
}

TEST(ZeroSpread, AgreesWithComparingAllWithAll) {
  ZeroSpreadFinder finder;  // what an earlier request left behind does not matter
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<Member> members(1 + random() % 24);
    const uint64_t groups = 1 + random() % 8;
    for (Member& member : members) {
      member.group = random() % 4 == 0 ? "" : "g" + std::to_string(random() % groups);
      member.reward = static_cast<float>(random() % 3 == 0);
    }
    std::string expected;
    for (const Member& one : members) {
      bool same = !one.group.empty();
      for (const Member& other : members) same &= other.group != one.group || other.reward == one.reward;
      expected += same ? '1' : '0';
    }
    ASSERT_EQ(expected, Find(members, &finder));
  }
}

// --- In a Buffer -----------------------------------------------------------------------------------------------------------

using fake::Batch;

const Key128 kWriter{1, 2};

struct Fixture {
  explicit Fixture(BufferOptions options) {
    EXPECT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, PolicyVersions::Empty());
  }
  ~Fixture() { buffer->CheckInvariants(); }

  // "2 from 1 refused 2", "again 2 from 1 refused 2", "waits pacing" or the error.
  std::string Insert(Batch batch, uint64_t sequence = 0, uint64_t acknowledged = 0) {
    InsertResult result;
    const Key128 writer = sequence > 0 ? kWriter : Key128{};
    const Verdict verdict = buffer->Insert(batch.Request(writer, sequence, acknowledged), &result);
    if (verdict.waits()) return "waits " + std::string(ToString(verdict.reason));
    if (!verdict.done()) return verdict.message;
    return (result.duplicate ? "again " : "") + std::to_string(result.count) + " from " + std::to_string(result.first_item) +
           " refused " + std::to_string(result.refused);
  }
  std::string Counts() const {
    const BufferStats stats = buffer->Stats();
    return std::to_string(stats.offered) + "=" + std::to_string(stats.accepted) + "+" + std::to_string(stats.duplicate) + "+" +
           std::to_string(stats.rejected) + ", zero spread " + std::to_string(stats.zero_spread) + ", refused " +
           std::to_string(stats.zero_spread_refused);
  }

  std::unique_ptr<Buffer> buffer;
};

// Members "a0", "a1" … of group "a" with these rewards.
void AddGroup(Batch* batch, const std::string& group, const std::vector<float>& rewards) {
  for (size_t i = 0; i < rewards.size(); ++i) {
    fake::Trajectory member;
    member.id = group + std::to_string(i);
    member.group = group;
    member.group_size = static_cast<uint32_t>(rewards.size());
    member.reward = rewards[i];
    batch->Add(member);
  }
}
Batch Groups(const std::vector<std::pair<std::string, std::vector<float>>>& groups) {
  Batch batch;
  for (const auto& [group, rewards] : groups) AddGroup(&batch, group, rewards);
  return batch;
}
Batch Single(const std::string& id) { return Batch().Add({.id = id}); }

BufferOptions Refusing(uint64_t capacity = 100) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.zero_spread = ZeroSpread::kRefuse;
  return options;
}

TEST(ZeroSpreadRefused, AGroupWithOneRewardIsNotStoredAndTheInsertSucceeds) {
  Fixture f(Refusing());
  EXPECT_EQ("2 from 1 refused 4", f.Insert(Groups({{"a", {1, 1}}, {"b", {0, 1}}, {"c", {0, 0}}})));
  EXPECT_EQ("0 from 0 refused 2", f.Insert(Groups({{"d", {0.5f, 0.5f}}})));
  EXPECT_EQ("0 from 0 refused 1", f.Insert(Groups({{"e", {1}}})));
  EXPECT_EQ("1 from 3 refused 0", f.Insert(Single("without a group")));
  EXPECT_EQ("10=3+0+7, zero spread 0, refused 7", f.Counts());
  StoredItem item;
  EXPECT_FALSE(f.buffer->Get("a0", &item));
  ASSERT_TRUE(f.buffer->Get("b1", &item));
  EXPECT_EQ(2u, item.item);
}

TEST(ZeroSpreadKept, IsCountedAmongTheLiveItems) {
  BufferOptions options;
  options.capacity_items = 4;
  Fixture f(options);
  EXPECT_EQ("4 from 1 refused 0", f.Insert(Groups({{"a", {1, 1}}, {"b", {0, 1}}})));
  EXPECT_EQ("4=4+0+0, zero spread 2, refused 0", f.Counts());
  EXPECT_EQ("2 from 5 refused 0", f.Insert(Groups({{"c", {1, 1}}})));  // in place of group a
  EXPECT_EQ("6=6+0+0, zero spread 2, refused 0", f.Counts());
  EXPECT_TRUE(f.buffer->Delete("c0"));
  EXPECT_EQ("6=6+0+0, zero spread 1, refused 0", f.Counts());
}

TEST(ZeroSpreadRefused, ARepeatIsToldTheSame) {
  Fixture f(Refusing());
  const auto mixed = [] { return Groups({{"a", {1, 1}}, {"b", {0, 1}}}); };
  const auto none = [] { return Groups({{"c", {1, 1}}}); };
  EXPECT_EQ("2 from 1 refused 2", f.Insert(mixed(), 1));
  EXPECT_EQ("0 from 0 refused 2", f.Insert(none(), 2));
  EXPECT_EQ("again 2 from 1 refused 2", f.Insert(mixed(), 1));
  EXPECT_EQ("again 0 from 0 refused 2", f.Insert(none(), 2));
  EXPECT_EQ("12=2+6+4, zero spread 0, refused 4", f.Counts());
}

TEST(ZeroSpreadRefused, ARepeatIsToldTheSameAfterTheOptionWasAltered) {
  Fixture f(Refusing());
  const auto group = [] { return Groups({{"a", {1, 1}}}); };
  EXPECT_EQ("0 from 0 refused 2", f.Insert(group(), 1));
  BufferOptions keeping = f.buffer->options();
  keeping.zero_spread = ZeroSpread::kKeep;
  ASSERT_EQ("", f.buffer->Alter(keeping));
  EXPECT_EQ("again 0 from 0 refused 2", f.Insert(group(), 1));
  EXPECT_EQ("2 from 1 refused 0", f.Insert(group(), 2));
}

TEST(ZeroSpreadRefused, ARequestOfOtherTrajectoriesIsNoRepeat) {
  Fixture f(Refusing());
  EXPECT_EQ("2 from 1 refused 2", f.Insert(Groups({{"a", {1, 1}}, {"b", {0, 1}}}), 1));
  const std::string error =
      "sequence 1 of this writer has inserted other trajectories, from number 1 on: two writers use one id";
  EXPECT_EQ(error, f.Insert(Groups({{"b", {0, 1}}}), 1)) << "what was stored, without what was refused";
  EXPECT_EQ(error, f.Insert(Groups({{"c", {1, 1}}, {"b", {0, 1}}}), 1));
}

TEST(ZeroSpreadRefused, WhatIsRefusedNeedsNoRoomAndHasNoId) {
  Fixture f(Refusing(3));
  EXPECT_EQ("2 from 1 refused 4", f.Insert(Groups({{"a", {1, 1, 1, 1}}, {"b", {0, 1}}})));
  EXPECT_EQ("1 from 3 refused 0", f.Insert(Single("c0")));
  // Its ids are live, but it is not to be stored.
  EXPECT_EQ("0 from 0 refused 2", f.Insert(Groups({{"b", {1, 1}}})));
  EXPECT_EQ("trajectory 2 of the request has the trajectory_id of a live item, inserted as number 1",
            f.Insert(Groups({{"c", {1, 1}}, {"b", {0, 1}}})));
  EXPECT_EQ(
      "4 trajectories in one request, but the buffer keeps 3 fresh ones (capacity_items 3, 0 of them for older ones that "
      "stay on)",
      f.Insert(Groups({{"d", {1, 1}}, {"e", {0, 1, 0, 1}}})));
}

TEST(ZeroSpreadRefused, PacingDoesNotCountIt) {
  BufferOptions options = Refusing();
  options.replay_ratio = 1;
  options.tolerance = 4;
  options.max_draws_per_sample = 4;
  options.max_insert = 4;
  Fixture f(options);
  EXPECT_EQ("2 from 1 refused 0", f.Insert(Groups({{"a", {0, 1}}})));  // the baseline
  EXPECT_EQ("2 from 3 refused 2", f.Insert(Groups({{"b", {0, 1}}, {"c", {1, 1}}})));
  EXPECT_EQ(2.0, f.buffer->Stats().pacing_balance);
  EXPECT_EQ("2 from 5 refused 2", f.Insert(Groups({{"d", {0, 1}}, {"e", {1, 1}}}))) << "4 would be too many";
  Batch waiting = Groups({{"f", {0, 1}}, {"g", {1, 1}}});
  EXPECT_EQ(2u, f.buffer->CountStored(waiting.Request()));
  EXPECT_EQ("waits pacing", f.Insert(std::move(waiting)));
  EXPECT_EQ("0 from 0 refused 2", f.Insert(Groups({{"h", {1, 1}}}))) << "nothing to wait for";
  EXPECT_EQ(4.0, f.buffer->Stats().pacing_balance);
}

// Members of a reserved group arrive one by one; what they are together is known with the last.
TEST(ZeroSpreadRefused, AReservedGroupIsRefusedWhenItIsComplete) {
  BufferOptions options = Refusing();
  options.capacity_bytes = 1 << 20;
  Fixture f(options);
  const auto reserve = [&](const std::string& group) {
    ReserveRequest request;
    request.group_id = group;
    request.size = 2;
    request.lease_ms = request.deadline_ms = 10'000;
    ReserveResult result;
    ASSERT_TRUE(f.buffer->Reserve(request, &result).done());
  };
  // "1 from 0 refused 0 pending"
  const auto insert = [&](const std::string& group, uint32_t index, float reward) {
    fake::Trajectory member;
    member.id = group + std::to_string(index);
    member.group = group;
    member.group_size = 2;
    member.reward = reward;
    Batch batch;
    batch.Add(member);
    batch.facts[0].index_in_group = index;
    InsertRequest request = batch.Request();
    request.partial = true;
    InsertResult result;
    const Verdict verdict = f.buffer->Insert(request, &result);
    EXPECT_TRUE(verdict.done()) << verdict.message;
    return std::to_string(result.count) + " from " + std::to_string(result.first_item) + " refused " +
           std::to_string(result.refused) + (result.pending ? " pending" : "");
  };
  reserve("flat");
  reserve("steep");
  EXPECT_EQ("1 from 0 refused 0 pending", insert("flat", 0, 1));
  EXPECT_EQ("1 from 0 refused 0 pending", insert("steep", 0, 1));
  EXPECT_EQ("0 from 0 refused 1", insert("flat", 1, 1));
  EXPECT_EQ("1 from 1 refused 0", insert("steep", 1, 0));
  EXPECT_EQ("4=2+0+2, zero spread 0, refused 2", f.Counts());
}

TEST(ZeroSpreadRefused, WhereGroupsAreTheUnitTheOthersAreStored) {
  BufferOptions options = Refusing(2);
  options.unit = Unit::kGroup;
  Fixture f(options);
  EXPECT_EQ("4 from 1 refused 4", f.Insert(Groups({{"a", {0, 1}}, {"b", {1, 1}}, {"c", {1, 0}}, {"d", {0, 0}}})));
  EXPECT_EQ(2u, f.buffer->Stats().groups);
  EXPECT_EQ("8=4+0+4, zero spread 0, refused 4", f.Counts());
  EXPECT_EQ("0 from 0 refused 2", f.Insert(Groups({{"e", {1, 1}}})));
}

}  // namespace
}  // namespace replay::server
