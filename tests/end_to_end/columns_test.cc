// Columns and late data through the real daemon: what is inserted, drawn, written back and seen, and every way to get it wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "replay/client.h"
#include "tests/support/daemon.h"
#include "tests/support/make_column.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/raw_client.h"
#include "tests/support/value.h"

namespace replay::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr int64_t kTokens = 6;

Column LogProbs(const std::string& name, float first) {
  std::vector<float> values;
  for (int64_t i = 0; i < kTokens; ++i) values.push_back(first - static_cast<float>(i));
  return Column::Of<float>(name, {kTokens}, values);
}

Trajectory Rollout(const std::string& id, std::vector<Column> columns = {}) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.token_ids.assign(kTokens, 7);
  rollout.loss_mask.assign(kTokens, 1);
  rollout.columns = std::move(columns);
  return rollout;
}

// All types there are.
const std::map<ColumnType, size_t> kWidths = {{ColumnType::kBool, 1}, {ColumnType::kU8, 1},  {ColumnType::kI8, 1},
                                              {ColumnType::kU16, 2},  {ColumnType::kI16, 2}, {ColumnType::kI32, 4},
                                              {ColumnType::kI64, 8},  {ColumnType::kF16, 2}, {ColumnType::kBf16, 2},
                                              {ColumnType::kF32, 4},  {ColumnType::kF64, 8}};

class Columns : public testing::TestWithParam<int> {
 protected:
  void Create(BufferOptions options) {
    if (!options.selector) options.selector = "fifo";
    Value(client_.CreateBuffer("b", options));
  }
  void Insert(const std::vector<Trajectory>& rollouts) { Value(client_.Insert("b", rollouts, 10s)); }
  Result<Batch> Sample(SampleOptions options, milliseconds timeout = 0ms) { return client_.Sample("b", options, timeout); }
  std::vector<UpdateResult> Update(const ItemUpdate& update) {
    return Value(client_.Update("b", std::vector<ItemUpdate>{update}));
  }
  std::vector<StoredTrajectory> Get(const std::vector<std::string>& ids, const std::vector<std::string>& columns = {}) {
    return Value(client_.Get("b", ids, columns));
  }
  BufferStats Stats() { return Value(client_.Stats("b")).buffers.at(0); }

  Daemon daemon_{{.buffers = "[]", .io_threads = GetParam()}};
  Client client_{{.address = daemon_.unix_address()}};
};

// Sessions and buffers on one thread and on several.
INSTANTIATE_TEST_SUITE_P(Threads, Columns, testing::Values(1, 3));

TEST_P(Columns, AreDrawnToTheBitWhereTheyAreAskedForAndThere) {
  Create({});
  const std::vector<uint8_t> pixels(3 * 64 * 64, 200);
  const Column image = Column::Of<uint8_t>("image", {3, 64, 64}, pixels, ColumnAlignment::kRow);
  Insert({Rollout("a", {LogProbs("ref", -1), image}), Rollout("b"), Rollout("c", {LogProbs("ref", -5)})});
  const Batch plain = Value(Sample({.count = 3}));
  for (const TrajectoryView& view : plain.trajectories) EXPECT_TRUE(view.columns().empty());
  const Batch batch = Value(Sample({.count = 3, .columns = {"ref", "image", "other"}}));
  EXPECT_EQ(LogProbs("ref", -1), batch.trajectories[0].column("ref")->ToColumn());
  EXPECT_EQ(image, batch.trajectories[0].column("image")->ToColumn());
  EXPECT_EQ(nullptr, batch.trajectories[0].column("other"));
  EXPECT_TRUE(batch.trajectories[1].columns().empty());
  EXPECT_EQ(-5, batch.trajectories[2].column("ref")->values<float>()[0]);
  EXPECT_EQ(LogProbs("ref", -5), Get({"c"}, {"ref"}).at(0).trajectory.column("ref")->ToColumn());
  const auto scanned = Value(client_.Scan("b", 0, 10, std::vector<std::string>{"image"}));
  EXPECT_EQ(image, scanned.at(0).trajectory.column("image")->ToColumn());
  EXPECT_THAT(Stats().columns, ElementsAre(Pair("image", 1), Pair("ref", 2)));
  EXPECT_GT(Stats().column_bytes, pixels.size());
  EXPECT_EQ(3u, Value(client_.Delete("b", std::vector<std::string>{"a", "b", "c"})));
  EXPECT_EQ(0u, Stats().column_bytes);
}

// A column of every alignment, of patterns that differ from byte to byte. Of one type, since a trajectory has 16 at most.
std::vector<Column> OfEveryAlignment(ColumnType type, uint8_t first) {
  struct Layout {
    const char* name;
    ColumnAlignment alignment;
    std::vector<int64_t> shape, offsets;
  };
  const std::vector<Layout> layouts = {{"value", ColumnAlignment::kRow, {}, {}},
                                       {"row", ColumnAlignment::kRow, {3, 1, 5}, {}},
                                       {"token", ColumnAlignment::kToken, {kTokens, 2, 3}, {}},
                                       {"one-a-token", ColumnAlignment::kToken, {kTokens}, {}},
                                       {"ragged", ColumnAlignment::kRagged, {9, 2}, {0, 2, 2, 5, 5, 6, 9}},
                                       {"ragged-empty", ColumnAlignment::kRagged, {0}, {0, 0, 0, 0, 0, 0, 0}}};
  std::vector<Column> columns;
  for (const Layout& layout : layouts) {
    Column& column = columns.emplace_back();
    column.name = layout.name;
    column.type = type;
    column.alignment = layout.alignment;
    column.shape = layout.shape;
    column.offsets = layout.offsets;
    size_t bytes = kWidths.at(type);
    for (const int64_t size : column.shape) bytes *= static_cast<size_t>(size);
    for (size_t i = 0; i < bytes; ++i)
      column.bytes.push_back(type == ColumnType::kBool ? (first + i) % 3 == 0 : static_cast<uint8_t>(first + 37 * i));
  }
  return columns;
}

TEST_P(Columns, OfEveryTypeAndAlignmentComeBackToTheBit) {
  Create({});
  // Inserted with `first`, and written over by Update with another; one has nothing at its insert.
  for (const auto& [type, width] : kWidths) {
    const std::string with(ToString(type)), without = with + "-later";
    std::vector<std::string> names;
    for (const Column& column : OfEveryAlignment(type, 0)) names.push_back(column.name);
    const auto expect = [&](const std::string& id, uint8_t first) {
      const StoredTrajectory stored = Get({id}, names).at(0);
      for (const Column& column : OfEveryAlignment(type, first)) {
        const ColumnView* view = stored.trajectory.column(column.name);
        ASSERT_NE(nullptr, view) << id << " " << column.name;
        // Type, alignment, shape, offsets and bytes.
        EXPECT_EQ(column, view->ToColumn()) << id << " " << column.name;
      }
    };
    Insert({Rollout(with, OfEveryAlignment(type, 11)), Rollout(without)});
    expect(with, 11);
    EXPECT_TRUE(Get({without}, names).at(0).trajectory.columns().empty());
    for (const std::string& id : {with, without}) {
      Update({.trajectory_id = id, .columns = OfEveryAlignment(type, 200)});
      expect(id, 200);
    }
    // Drawn, not looked up: both are all there is.
    const Batch batch = Value(Sample({.count = 2, .columns = names}));
    for (const TrajectoryView& view : batch.trajectories)
      for (const Column& column : OfEveryAlignment(type, 200)) EXPECT_EQ(column, view.column(column.name)->ToColumn());
    Value(client_.Delete("b", std::vector<std::string>{with, without}));
  }
  EXPECT_EQ(0u, Stats().column_bytes);
}

TEST_P(Columns, LargerThanTheInputBufferTravelWithAWriterAndASampler) {
  Create({});
  const auto large = [](uint8_t fill) {
    const std::vector<uint8_t> bytes(kTokens * 200'000, fill);
    return Column::Of<uint8_t>("experts", {kTokens, 200'000}, bytes);
  };
  const auto writer = client_.NewWriter("b", {.batch_trajectories = 3});
  for (uint8_t i = 0; i < 9; ++i) Value(writer->Insert(Rollout(std::to_string(i), {large(i), LogProbs("ref", i)})));
  Value(writer->Flush(30s));
  EXPECT_EQ(9u, writer->progress().accepted);
  const auto sampler = client_.NewSampler("b", {.count = 9, .columns = {"experts"}});
  const Batch batch = Value(sampler->Next(1, 30s));
  for (uint8_t i = 0; i < 9; ++i) {
    const TrajectoryView& view = batch.trajectories[i];
    EXPECT_EQ(std::to_string(i), view.trajectory_id());
    EXPECT_EQ(large(i), view.column("experts")->ToColumn());
  }
}

TEST_P(Columns, WrittenBackLaterLetTheWaitingSampleGoOn) {
  Create({.views = std::vector<ViewOptions>{{.name = "ready", .filter = "column.ref = yes", .selector = "fifo"}}});
  Insert({Rollout("a"), Rollout("b")});
  EXPECT_EQ(WaitReason::kFilter, Sample({.count = 2, .view = "ready"}).error().reason);
  Client other({.address = daemon_.unix_address()});
  std::thread referee([&] {
    std::this_thread::sleep_for(50ms);
    Value(other.Update("b", std::vector<ItemUpdate>{{.trajectory_id = "a", .columns = {LogProbs("ref", -1)}},
                                                    {.trajectory_id = "b", .columns = {LogProbs("ref", -2)}}}));
  });
  const Result<Batch> batch = Sample({.count = 2, .view = "ready", .columns = {"ref"}}, 20s);
  referee.join();
  ASSERT_TRUE(batch) << batch.error().ToString();
  EXPECT_EQ(LogProbs("ref", -1), batch->trajectories[0].column("ref")->ToColumn());
  EXPECT_EQ(LogProbs("ref", -2), batch->trajectories[1].column("ref")->ToColumn());
  EXPECT_EQ(1u, batch->draws[0].revision);
}

TEST_P(Columns, OfAKeyedSampleAreTheSameWhenAskedForAgainEvenIfReplacedSince) {
  Create({});
  Insert({Rollout("a", {LogProbs("ref", -1)}), Rollout("b", {LogProbs("ref", -2)})});
  for (const bool again : {false, true}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const Batch batch =
          Value(Sample({.count = 1, .step = 4, .columns = {"ref"}, .consumer = "c", .rank = rank, .world_size = 2}));
      EXPECT_EQ(LogProbs("ref", rank == 0 ? -1 : -2), batch.trajectories.at(0).column("ref")->ToColumn()) << again;
    }
    Update({.trajectory_id = "a", .columns = {LogProbs("ref", -9)}});
  }
  EXPECT_EQ(LogProbs("ref", -9), Get({"a"}, {"ref"}).at(0).trajectory.column("ref")->ToColumn());
}

TEST_P(Columns, AdvantageAndTagsWrittenLaterAreToldAndTheFrameStaysAsItWas) {
  Create({.views = std::vector<ViewOptions>{{.name = "hard", .filter = "tag.level >= 3", .selector = "fifo"}}});
  Trajectory rollout = Rollout("a");
  rollout.tags = {{"level", int64_t{1}}};
  rollout.reward = 0.25f;
  Insert({rollout});
  const TrajectoryView inserted = Get({"a"}).at(0).trajectory;
  EXPECT_EQ(std::nullopt, Value(Sample({.count = 1})).draws[0].advantage);
  const int64_t large = (int64_t{1} << 60) + 1;
  const ItemUpdate update{.trajectory_id = "a",
                          .reward = 0.75f,
                          .revision = 0,
                          .advantage = -0.5f,
                          .tags = {{"level", large}, {"topic", std::string("graphs")}, {"hard", true}, {"share", 0.5}}};
  EXPECT_EQ(UpdateResult::Outcome::kDone, Update(update).at(0).outcome);
  EXPECT_EQ(UpdateResult::Outcome::kOtherRevision, Update(update).at(0).outcome);
  const Batch batch = Value(Sample({.count = 1, .view = "hard"}));
  EXPECT_EQ(-0.5f, batch.draws[0].advantage);
  const StoredTrajectory stored = Get({"a"}).at(0);
  EXPECT_EQ(0.75f, stored.reward);
  EXPECT_EQ(1u, stored.revision);
  EXPECT_EQ(update.tags, stored.late_tags);
  EXPECT_TRUE(std::ranges::equal(inserted.frame_bytes(), stored.trajectory.frame_bytes()));
}

TEST_P(Columns, OfAnotherLengthAreRefusedWithBothLengths) {
  Create({});
  Insert({Rollout("a")});
  const Column shorter = Column::Of<float>("ref", {2}, std::vector<float>{1, 2});
  const std::vector<Trajectory> rollouts = {Rollout("b", {shorter})};
  EXPECT_THAT(client_.Insert("b", rollouts, 1s).error().message, HasSubstr("has 2 tokens, token_ids has 6: they must agree"));
  const std::vector<ItemUpdate> updates = {{.trajectory_id = "a", .priority = 2, .columns = {LogProbs("other", 1)}},
                                           {.trajectory_id = "a", .columns = {shorter}}};
  EXPECT_EQ("invalid_argument: updates[1]: column \"ref\" has 2 tokens, the item has 6: they must agree",
            client_.Update("b", updates).error().ToString());
  EXPECT_EQ(0u, Get({"a"}).at(0).revision) << "nothing was done";
  const std::vector<ItemUpdate> lost = {{.trajectory_id = "a", .columns = {LogProbs("ref", 1)}}};
  EXPECT_EQ(ErrorCode::kNotFound, client_.Update("none", lost).error().code);
  EXPECT_TRUE(client_.Ping()) << "the connection goes on";
}

TEST_P(Columns, OfTooManyNamesAreRefused) {
  Create({});
  Insert({Rollout("a")});
  std::vector<std::string> names;
  for (int i = 0; i < 17; ++i) names.push_back("c" + std::to_string(i));
  EXPECT_EQ("columns has 17 names: at most 16 are allowed", Sample({.count = 1, .columns = names}).error().message);
  EXPECT_EQ("columns has \"x\" twice", Sample({.count = 1, .columns = {"x", "x"}}).error().message);
  EXPECT_THAT(Sample({.count = 1, .columns = {"a b"}}).error().message, HasSubstr("only A-Z a-z 0-9 _ . - are allowed"));
}

// --- By hand: what no client of ours sends -------------------------------------------------------------------------------------

struct ByHand : Columns {
  struct Size {
    uint32_t frame, bytes;
  };
  std::string Say(const Bytes& request) {
    raw_->Send(request);
    const RawReply reply = raw_->Receive();
    return reply.ok() ? "" : reply.message();
  }
  std::string InsertBy(const std::vector<Frame>& frames, const std::vector<Size>& sizes, const std::vector<Frame>& columns) {
    std::vector<Frame> payload = frames;
    payload.insert(payload.end(), columns.begin(), columns.end());
    return Say(RequestBytes(
        5, 0,
        [&](schema::Request::Builder request) {
          auto insert = request.initInsert();
          insert.setBuffer("b");
          auto list = insert.initFrameBytes(static_cast<unsigned>(frames.size()));
          for (unsigned i = 0; i < frames.size(); ++i) list.set(i, static_cast<uint32_t>(frames[i].size()));
          Fill(sizes, insert.initColumns(static_cast<unsigned>(sizes.size())));
        },
        payload));
  }
  std::string UpdateBy(const std::string& id, const std::vector<Size>& sizes, const std::vector<Frame>& columns) {
    return Say(RequestBytes(
        6, 0,
        [&](schema::Request::Builder request) {
          auto update = request.initUpdate();
          update.setBuffer("b");
          update.initUpdates(1)[0].setId(id.c_str());
          Fill(sizes, update.initColumns(static_cast<unsigned>(sizes.size())));
        },
        columns));
  }
  static void Fill(const std::vector<Size>& sizes, capnp::List<schema::ColumnSize>::Builder to) {
    for (unsigned i = 0; i < sizes.size(); ++i) {
      to[i].setFrame(sizes[i].frame);
      to[i].setBytes(sizes[i].bytes);
    }
  }
  static Frame Core(const std::string& id, std::vector<std::string> names) {
    return MakeTrajectory({.id = id, .edit = [&](auto trajectory) {
                             auto list = trajectory.initColumnNames(static_cast<unsigned>(names.size()));
                             for (unsigned i = 0; i < names.size(); ++i) list.set(i, names[i].c_str());
                           }});
  }
  void SetUp() override {
    Create({});
    raw_ = std::make_unique<RawClient>(daemon_.address(), /*hello=*/true);
  }
  std::unique_ptr<RawClient> raw_;
};
INSTANTIATE_TEST_SUITE_P(Threads, ByHand, testing::Values(1, 3));

TEST_P(ByHand, AColumnThatIsNotThatOfItsTrajectoryIsRefusedAndNothingIsStored) {
  const Frame a = MakeColumn({.id = "t", .name = "a"});
  const auto size = [](const Frame& frame) { return static_cast<uint32_t>(frame.size()); };
  EXPECT_EQ("trajectories[0]: column_names lists \"a\", which was not sent: those of columns that come later are not listed",
            InsertBy({Core("t", {"a"})}, {}, {}));
  EXPECT_EQ("trajectories[1]: column \"a\" is not listed in column_names",
            InsertBy({Core("u", {}), Core("t", {})}, {{1, size(a)}}, {a}));
  EXPECT_EQ("trajectories[0]: column \"a\" is of another trajectory: it has the hash of another id",
            InsertBy({Core("other", {"a"})}, {{0, size(a)}}, {a}));
  Frame damaged = Frame::CopyOf(a.bytes());
  damaged.mutable_data()[90] ^= 1;
  EXPECT_EQ("columns[0]: the checksum does not match the bytes of the column",
            InsertBy({Core("t", {"a"})}, {{0, size(a)}}, {damaged}));
  EXPECT_EQ(0u, Stats().items);
  EXPECT_EQ(5u, Stats().rejected);
  EXPECT_EQ("", InsertBy({Core("t", {"a"})}, {{0, size(a)}}, {a}));
}

TEST_P(ByHand, SizesThatLieAreRefusedAndTheConnectionGoesOn) {
  const Frame a = MakeColumn({.id = "t", .name = "a"}), core = Core("t", {"a"});
  const auto bytes = static_cast<uint32_t>(a.size());
  EXPECT_EQ("columns[0].frame is 1: it must be below 1 and, after 0, not fall", InsertBy({core}, {{1, bytes}}, {a}));
  EXPECT_THAT(InsertBy({core}, {{0, bytes - 4}}, {a}), HasSubstr("columns[0].bytes is "));
  EXPECT_THAT(InsertBy({core}, {{0, bytes - 8}}, {a}), HasSubstr("frame_bytes and columns add up to "));
  EXPECT_THAT(UpdateBy("t", {{0, bytes - 8}}, {a}), HasSubstr("columns add up to "));
  EXPECT_THAT(UpdateBy("t", {}, {a}), HasSubstr("nothing to update"));
  EXPECT_THAT(UpdateBy("t", {{0, 1u << 30}}, {a}), HasSubstr("columns[0].bytes is 1073741824"));
  EXPECT_EQ("", InsertBy({core}, {{0, bytes}}, {a}));
  EXPECT_EQ("columns[0]: column \"a\" is of another trajectory: it has the hash of another id",
            UpdateBy("u", {{0, bytes}}, {a}));
  EXPECT_EQ("columns[1]: the update has a second column \"a\"", UpdateBy("t", {{0, bytes}, {0, bytes}}, {a, a}));
  EXPECT_EQ("", UpdateBy("t", {{0, bytes}}, {a}));
  EXPECT_EQ(1u, Get({"t"}).at(0).revision);
}

}  // namespace
}  // namespace replay::test
