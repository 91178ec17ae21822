// What a daemon with a folder owes to those whose replies wait for the disk.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/daemon.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/raw_client.h"
#include "tests/support/temporary_folder.h"

namespace replay::test {
namespace {

class Kept : public testing::TestWithParam<int> {
 protected:
  static DaemonOptions OptionsIn(const TemporaryFolder& around, int io_threads) {
    return {.buffers = R"([{"name": "rollouts"}, {"name": "other"}])",
            .io_threads = io_threads,
            .rest = R"("storage": {"path": ")" + (around / "data") + R"("})"};
  }
  static Frame Named(const std::string& id) { return MakeTrajectory({.id = id}); }

  const TemporaryFolder around_;
  Daemon daemon_{OptionsIn(around_, GetParam())};
};

// The buffer goes while replies of its inserts wait for the disk: they have been decided, and are answered.
TEST_P(Kept, InsertsAndADropThatAreSentTogetherAreAllAnswered) {
  for (int round = 0; round < 20; ++round) {
    RawClient client(daemon_.unix_address(), /*hello=*/true);
    Bytes all;
    for (uint64_t id = 10; id < 15; ++id) {
      const Bytes insert = InsertBytes({.id = id}, {Named("t" + std::to_string(id))});
      all.insert(all.end(), insert.begin(), insert.end());
    }
    const Bytes drop = DropBytes(20, "rollouts");
    all.insert(all.end(), drop.begin(), drop.end());
    ASSERT_TRUE(client.Send(all));
    for (uint64_t id = 10; id < 15; ++id) EXPECT_EQ(std::to_string(id) + " ok", client.Receive().ToString());
    EXPECT_EQ("20 ok", client.Receive().ToString());
    ASSERT_TRUE(client
                    .Call(RequestBytes(21, 0,
                                       [](schema::Request::Builder request) {
                                         auto create = request.initCreateBuffer();
                                         create.setName("rollouts");
                                         create.initOptions();
                                       }))
                    .ok());
  }
  daemon_.Terminate();
  daemon_.Start();
  RawClient client(daemon_.unix_address(), /*hello=*/true);
  EXPECT_EQ(0u, StatsOf(client).items);
}

// A buffer that is created while versions are published knows them all.
TEST_P(Kept, ABufferThatIsCreatedKnowsWhatWasPublishedMeanwhile) {
  RawClient creator(daemon_.unix_address(), /*hello=*/true), publisher(daemon_.unix_address(), /*hello=*/true);
  for (uint64_t round = 1; round <= 20; ++round) {
    const std::string name = "b" + std::to_string(round);
    creator.Send(RequestBytes(30, 0, [&](schema::Request::Builder request) {
      auto create = request.initCreateBuffer();
      create.setName(name);
      create.initOptions();
    }));
    ASSERT_TRUE(publisher.Call(PublishBytes(31, static_cast<int64_t>(round), 10 * static_cast<int64_t>(round))).ok());
    ASSERT_TRUE(creator.Receive().ok());
    ASSERT_TRUE(creator.Call(InsertBytes({.buffer = name}, {Named("t")})).ok());
    // Without a step it is drawn for the newest that was published.
    const RawReply sample = creator.Call(SampleBytes({.buffer = name}));
    ASSERT_TRUE(sample.ok()) << sample.ToString();
    EXPECT_EQ(10 * static_cast<int64_t>(round), sample.get().getSample().getStep());
    ASSERT_TRUE(creator.Call(DropBytes(32, name)).ok());
  }
}

TEST_P(Kept, TheDaemonIsTheSameServerAfterARestart) {
  uint64_t generation = 0;
  for (int starts = 0; starts < 3; ++starts) {
    RawClient client(daemon_.unix_address(), /*hello=*/true);
    const uint64_t now = ServerStatsOf(client).generation;
    EXPECT_TRUE(generation == 0 || generation == now);
    generation = now;
    client.Close();
    daemon_.KillNow();
    daemon_.Start();
  }
}

INSTANTIATE_TEST_SUITE_P(IoThreads, Kept, testing::Values(1, 3));

}  // namespace
}  // namespace replay::test
