#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/buffer.h"
#include "tests/support/make_column.h"
#include "tests/support/make_trajectory.h"

namespace replay::server {
namespace {

using test::MakeColumn;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

BufferOptions With(SelectorKind selector, uint64_t capacity = 10) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.selector = selector;
  options.seed = 3;
  return options;
}
BufferOptions Fifo(uint64_t capacity = 10) { return With(SelectorKind::kFifo, capacity); }

struct Fixture {
  explicit Fixture(const BufferOptions& options = Fifo()) : buffer("b", Checked(options), PolicyVersions::Empty()) {}
  ~Fixture() { buffer.CheckInvariants(); }
  static BufferOptions Checked(BufferOptions options) {
    EXPECT_EQ("", CheckOptions(&options));
    return options;
  }

  // 16 tokens each; the columns of the n-th belong to it. "" or the error.
  std::string Insert(const std::vector<std::string>& ids, const std::vector<std::vector<Frame>>& columns = {},
                     const test::TrajectoryOptions& from = {}) {
    std::vector<Frame> frames;
    std::vector<TrajectoryFacts> facts(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      test::TrajectoryOptions options = from;
      options.id = ids[i];
      frames.push_back(test::MakeTrajectory(options));
      EXPECT_EQ("", ValidateTrajectory(frames[i].bytes(), {}, &facts[i]));
    }
    std::vector<ColumnOf> of;
    for (uint32_t i = 0; i < columns.size(); ++i)
      for (const Frame& column : columns[i]) of.push_back({i, column});
    InsertRequest request;
    request.frames = frames;
    request.facts = facts;
    request.columns = of;
    InsertResult result;
    const Verdict verdict = buffer.Insert(request, &result);
    return verdict.done() ? "" : verdict.message;
  }
  // Members "NAME-0", "NAME-1" …, as many as `columns` has lists; with `only` that one alone, as a member of a reserved group.
  std::string InsertGroup(const std::string& name, const std::vector<std::vector<Frame>>& columns,
                          std::optional<uint32_t> only = {}) {
    std::vector<Frame> frames;
    std::vector<TrajectoryFacts> facts;
    std::vector<ColumnOf> of;
    for (uint32_t i = 0; i < columns.size(); ++i) {
      if (only && i != *only) continue;
      for (const Frame& column : columns[i]) of.push_back({static_cast<uint32_t>(frames.size()), column});
      frames.push_back(test::MakeTrajectory({.id = name + "-" + std::to_string(i),
                                             .group = name,
                                             .group_size = static_cast<uint32_t>(columns.size()),
                                             .index_in_group = i}));
      EXPECT_EQ("", ValidateTrajectory(frames.back().bytes(), {}, &facts.emplace_back()));
    }
    InsertRequest request;
    request.frames = frames;
    request.facts = facts;
    request.columns = of;
    request.partial = only.has_value();
    InsertResult result;
    const Verdict verdict = buffer.Insert(request, &result);
    return verdict.done() ? "" : verdict.message;
  }
  UpdateOutcome Update(const ItemUpdate& update) {
    EXPECT_EQ("", buffer.WhyUpdateRefused({&update, 1}));
    return buffer.Update(update, &revision);
  }
  std::string WhyRefused(const std::vector<ItemUpdate>& updates) const { return buffer.WhyUpdateRefused(updates); }
  // "0:a 0:b 1:a", the columns of a Sample of the oldest `count`.
  std::string Sampled(uint32_t count, std::vector<std::string> columns, const std::string& view = "") {
    const Verdict verdict = buffer.Sample({.count = count, .view = view, .columns = std::move(columns)}, &sampled);
    if (!verdict.done()) return verdict.message;
    uint64_t bytes = 0;
    std::string text;
    for (const Frame& frame : sampled.frames) bytes += frame.size();
    for (const ColumnOf& each : sampled.columns) {
      bytes += each.column.size();
      text += (text.empty() ? "" : " ") + std::to_string(each.frame) + ":" + std::string(ColumnName(each.column.bytes()));
    }
    EXPECT_EQ(bytes, sampled.payload_bytes);
    return text;
  }
  uint64_t InView(const std::string& name) const {
    for (const auto& [view, count] : buffer.Stats().views)
      if (view == name) return count;
    return UINT64_MAX;
  }

  Buffer buffer;
  SampleResult sampled;
  uint32_t revision = 0;
};

TEST(BufferColumns, TravelWithADrawOnlyWhereTheyAreAskedForAndThere) {
  Fixture f(Fifo());
  ASSERT_EQ(
      "", f.Insert({"x", "y", "z"}, {{MakeColumn({.name = "a"}), MakeColumn({.name = "b"})}, {}, {MakeColumn({.name = "b"})}}));
  EXPECT_EQ("", f.Sampled(3, {}));
  EXPECT_EQ("0:b 2:b", f.Sampled(3, {"b"}));
  EXPECT_EQ("0:b 0:a 2:b", f.Sampled(3, {"b", "missing", "a"}));
}

TEST(BufferColumns, OfAnItemDrawnTwiceTravelOnce) {
  Fixture f(With(SelectorKind::kUniform));
  ASSERT_EQ("", f.Insert({"x"}, {{MakeColumn({.name = "a"})}}));
  EXPECT_EQ("0:a", f.Sampled(5, {"a"}));
  EXPECT_EQ(5u, f.sampled.draws.size());
}

TEST(BufferColumns, AreShownAndGoWithTheirItem) {
  Fixture f(Fifo(2));
  const Frame a = MakeColumn({.name = "a"}), b = MakeColumn({.name = "b"});
  ASSERT_EQ("", f.Insert({"x", "y"}, {{a, b}, {a}}));
  EXPECT_THAT(f.buffer.Stats().columns, ElementsAre(Pair("a", 2), Pair("b", 1)));
  EXPECT_EQ(2 * a.size() + b.size(), f.buffer.Stats().column_bytes);
  ASSERT_EQ("", f.Insert({"z"}));  // x leaves
  EXPECT_THAT(f.buffer.Stats().columns, ElementsAre(Pair("a", 1)));
  EXPECT_TRUE(f.buffer.Delete("y"));
  EXPECT_THAT(f.buffer.Stats().columns, IsEmpty());
  EXPECT_EQ(0u, f.buffer.Stats().column_bytes);
}

TEST(BufferColumns, AreWithinCapacityBytes) {
  const Frame large = MakeColumn({.name = "a", .length = 16, .more = {100}});
  const uint64_t core = test::MakeTrajectory({.id = "x"}).size() + Frame::kOverheadBytes,
                 all = core + large.size() + Frame::kOverheadBytes;
  BufferOptions options = Fifo();
  options.capacity_bytes = 2 * all;
  Fixture f(options);
  ASSERT_EQ("", f.Insert({"x"}, {{large}}));
  ASSERT_EQ("", f.Insert({"y"}, {{large}}));
  EXPECT_EQ(2u, f.buffer.live());
  ASSERT_EQ("", f.Insert({"z"}));
  EXPECT_EQ("| 2 3 positive=0 fresh=2 drawn=0", f.buffer.Describe());
  EXPECT_EQ(1u, f.buffer.Stats().removed[static_cast<size_t>(RemoveReason::kBytes)]);
  const Frame larger = MakeColumn({.name = "a", .length = 16, .more = {300}});
  EXPECT_THAT(f.Insert({"w"}, {{larger}}), HasSubstr("capacity_bytes"));
  EXPECT_EQ("", f.Insert({"w"}));
  // A late one makes room as well.
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "w", .columns = {large}}));
  EXPECT_EQ("| 3 4 positive=0 fresh=2 drawn=0", f.buffer.Describe());
}

TEST(BufferColumns, OfAKeyedSampleGoToTheRankThatHasTheirItem) {
  Fixture f(Fifo());
  std::vector<std::vector<Frame>> columns;
  for (uint8_t i = 0; i < 4; ++i) columns.push_back({MakeColumn({.name = "a", .type = FrameColumn::Type::kU8, .fill = i})});
  ASSERT_EQ("", f.Insert({"0", "1", "2", "3"}, columns));
  for (const bool again : {false, true}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      SampleResult result;
      const SampleRequest request{.count = 2, .step = 5, .columns = {"a"}, .consumer = "c", .rank = rank, .world_size = 2};
      ASSERT_TRUE(f.buffer.Sample(request, &result).done());
      ASSERT_EQ(again || rank == 1, result.planned);
      ASSERT_EQ(2u, result.columns.size());
      uint64_t bytes = 0;
      for (const Frame& frame : result.frames) bytes += frame.size();
      for (const ColumnOf& each : result.columns) {
        FrameColumn column;
        ASSERT_EQ("", ReadColumn(each.column.bytes(), true, &column));
        TrajectoryFacts facts;
        ASSERT_EQ("", ValidateTrajectory(result.frames[each.frame].bytes(), {}, &facts));
        EXPECT_EQ(HashId(std::to_string(column.data[0])), facts.id);
        EXPECT_EQ(rank, column.data[0] % 2u);
        bytes += each.column.size();
      }
      EXPECT_EQ(bytes, result.payload_bytes);
    }
    EXPECT_TRUE(f.buffer.Delete("0") != again) << "a plan keeps its columns";
  }
  SampleResult result;
  EXPECT_EQ(ErrorCode::kKeyReused,
            f.buffer.Sample({.count = 2, .step = 5, .columns = {}, .consumer = "c", .rank = 0, .world_size = 2}, &result).code);
}

TEST(BufferColumns, ThatComeLaterReplaceThoseOfTheirName) {
  Fixture f(Fifo());
  ASSERT_EQ("", f.Insert({"x"}, {{MakeColumn({.id = "x", .name = "a"})}}));
  const Frame later = MakeColumn({.id = "x", .name = "a", .fill = 9}), other = MakeColumn({.id = "x", .name = "b"});
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "x", .columns = {later, other}}));
  EXPECT_EQ(1u, f.revision);
  EXPECT_EQ("0:a 0:b", f.Sampled(1, {"a", "b"}));
  EXPECT_EQ(later.data(), f.sampled.columns[0].column.data());
  EXPECT_EQ(UpdateOutcome::kNotThere, f.Update({.id = "y", .columns = {later}}));
}

TEST(BufferColumns, OfAnotherLengthThanTheItemAreRefusedAndNothingIsDone) {
  Fixture f;
  ASSERT_EQ("", f.Insert({"x", "y"}));
  const std::vector<ItemUpdate> updates = {{.id = "x", .columns = {MakeColumn({.name = "a"})}},
                                           {.id = "y", .columns = {MakeColumn({.name = "a", .length = 15})}}};
  EXPECT_EQ("updates[1]: column \"a\" has 15 tokens, the item has 16: they must agree", f.WhyRefused(updates));
  EXPECT_EQ("", f.WhyRefused({{.id = "gone", .columns = {MakeColumn({.name = "a", .length = 15})}}}));
  const auto row = FrameColumn::Alignment::kRow;
  EXPECT_EQ("", f.WhyRefused({{.id = "x", .columns = {MakeColumn({.name = "a", .alignment = row, .length = 15})}}}));
}

TEST(BufferColumns, ThatMakeAnItemLargerThanTheBufferAreRefused) {
  BufferOptions options = Fifo();
  options.capacity_bytes = 4096;
  Fixture f(options);
  ASSERT_EQ("", f.Insert({"x"}));
  EXPECT_THAT(f.WhyRefused({{.id = "x", .columns = {MakeColumn({.length = 16, .more = {100}})}}}),
              HasSubstr("bytes with its columns and tags, capacity_bytes is 4096"));
}

TEST(BufferColumns, DecideAboutTheMembersOfAView) {
  BufferOptions options = Fifo();
  options.views = {{.name = "scored", .filter = "column.ref = yes", .selector = SelectorKind::kFifo},
                   {.name = "open", .filter = "column.ref = no", .selector = SelectorKind::kFifo}};
  Fixture f(options);
  ASSERT_EQ("", f.Insert({"x", "y"}, {{MakeColumn({.name = "ref"})}, {MakeColumn({.name = "other"})}}));
  EXPECT_EQ(1u, f.InView("scored"));
  EXPECT_EQ(1u, f.InView("open"));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "y", .columns = {MakeColumn({.name = "ref"})}}));
  EXPECT_EQ(2u, f.InView("scored"));
  EXPECT_EQ(0u, f.InView("open"));
  EXPECT_EQ("0:ref 1:ref", f.Sampled(2, {"ref"}, "scored"));
  options = f.buffer.options();
  options.views[1].name = "renamed";
  EXPECT_EQ("", f.buffer.Alter(options)) << "filled anew";
  EXPECT_EQ(2u, f.InView("scored"));
  EXPECT_EQ(0u, f.InView("renamed"));
}

TEST(BufferColumns, OfAGroupDecideAboutItsViewOnceAllMembersHaveThem) {
  BufferOptions options = Fifo();
  options.unit = Unit::kGroup;
  options.views = {{.name = "ready", .filter = "column.ref = yes", .selector = SelectorKind::kFifo}};
  Fixture f(options);
  ASSERT_EQ("", f.InsertGroup("g", {{MakeColumn({.name = "ref"})}, {}}));
  EXPECT_EQ(0u, f.InView("ready"));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "g-1", .columns = {MakeColumn({.name = "ref"})}}));
  EXPECT_EQ(1u, f.InView("ready"));
  EXPECT_EQ("0:ref 1:ref", f.Sampled(1, {"ref"}, "ready"));
  EXPECT_EQ(2u, f.buffer.Delete("g-0"));
  EXPECT_EQ(0u, f.buffer.Stats().column_bytes);
}

TEST(BufferColumns, OfAReservedGroupWaitWithTheirMembers) {
  BufferOptions options = Fifo();
  options.capacity_bytes = 1 << 20;
  Fixture f(options);
  ReserveResult reserved;
  ASSERT_TRUE(f.buffer.Reserve({.group_id = "g", .size = 2, .lease_ms = 1'000, .deadline_ms = 1'000}, &reserved).done());
  ASSERT_EQ("", f.InsertGroup("g", {{MakeColumn({.name = "a"})}, {MakeColumn({.name = "b"})}}, /*only=*/1));
  EXPECT_EQ(0u, f.buffer.Stats().column_bytes);
  ASSERT_EQ("", f.InsertGroup("g", {{MakeColumn({.name = "a"})}, {MakeColumn({.name = "b"})}}, /*only=*/0));
  EXPECT_EQ("0:a 1:b", f.Sampled(2, {"a", "b"}));
  f.buffer.CheckInvariants();
}

TEST(LateData, AnAdvantageIsToldWithEachDraw) {
  Fixture f(Fifo());
  ASSERT_EQ("", f.Insert({"x", "y"}));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "y", .advantage = -0.25f}));
  f.Sampled(2, {});
  EXPECT_EQ(std::nullopt, f.sampled.draws[0].advantage);
  EXPECT_EQ(-0.25f, f.sampled.draws[1].advantage);
  EXPECT_EQ(1u, f.sampled.draws[1].revision);
  // The slot's next item has none.
  EXPECT_TRUE(f.buffer.Delete("y"));
  ASSERT_EQ("", f.Insert({"z"}));
  f.Sampled(2, {});
  EXPECT_EQ(std::nullopt, f.sampled.draws[1].advantage);
}

TEST(LateData, TagsMoveItemsBetweenViews) {
  BufferOptions options = Fifo();
  options.views = {{.name = "hard", .filter = "tag.level >= 3, draws < 9", .selector = SelectorKind::kFifo}};
  Fixture f(options);
  test::TrajectoryOptions level_2{.edit = [](auto trajectory) {
    auto tags = trajectory.initTags(1);
    tags[0].setName("level");
    tags[0].setInteger(2);
  }};
  ASSERT_EQ("", f.Insert({"x", "y"}, {}, level_2));
  EXPECT_EQ(0u, f.InView("hard"));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "x", .tags = {{"level", int64_t{4}}}}));
  EXPECT_EQ(1u, f.InView("hard"));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "x", .tags = {{"other", true}}}));
  EXPECT_EQ(1u, f.InView("hard"));
  options = f.buffer.options();
  options.views.push_back({.name = "easy", .filter = "tag.level < 3", .selector = SelectorKind::kFifo});
  EXPECT_EQ("", f.buffer.Alter(options));
  EXPECT_EQ(1u, f.InView("hard"));
  EXPECT_EQ(1u, f.InView("easy"));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "x", .tags = {{"level", 1.5}}}));
  EXPECT_EQ(0u, f.InView("hard"));
  EXPECT_EQ(2u, f.InView("easy"));
}

TEST(LateData, IsWrittenOnlyToTheRevisionThatItIsMeantFor) {
  Fixture f(Fifo());
  ASSERT_EQ("", f.Insert({"x"}));
  const ItemUpdate update{
      .id = "x", .revision = 1, .advantage = 1.0f, .tags = {{"level", int64_t{4}}}, .columns = {MakeColumn({.name = "a"})}};
  EXPECT_EQ(UpdateOutcome::kOtherRevision, f.Update(update));
  EXPECT_EQ("", f.Sampled(1, {"a"}));
  EXPECT_EQ(std::nullopt, f.sampled.draws[0].advantage);
  StoredItem item;
  ASSERT_TRUE(f.buffer.Get("x", &item));
  EXPECT_TRUE(item.late_tags.empty());
  EXPECT_EQ(UpdateOutcome::kDone, f.Update({.id = "x", .reward = 2.0f}));
  EXPECT_EQ(UpdateOutcome::kDone, f.Update(update));
  EXPECT_EQ("0:a", f.Sampled(1, {"a"}));
  EXPECT_EQ(1.0f, f.sampled.draws[0].advantage);
}

TEST(LateData, IsShownByGetAndScanBesideTheFrameAsItWasInserted) {
  Fixture f;
  ASSERT_EQ("", f.Insert({"x"}, {{MakeColumn({.id = "x", .name = "a"})}}));
  const Frame core = [&] {
    StoredItem item;
    EXPECT_TRUE(f.buffer.Get("x", &item));
    return item.frame;
  }();
  const Frame b = MakeColumn({.id = "x", .name = "b"});
  EXPECT_EQ(UpdateOutcome::kDone,
            f.Update({.id = "x", .reward = 0.5f, .tags = {{"n", int64_t{1} << 60}, {"t", std::string("u")}}, .columns = {b}}));
  const std::vector<std::string> names = {"b", "a", "c"};
  std::vector<StoredItem> items(1);
  ASSERT_TRUE(f.buffer.Get("x", &items[0], names));
  std::vector<StoredItem> scanned;
  EXPECT_FALSE(f.buffer.Scan(0, 10, UINT64_MAX, &scanned, names));
  items.push_back(scanned.at(0));
  for (const StoredItem& item : items) {
    EXPECT_EQ(core.data(), item.frame.data());
    EXPECT_EQ(0.5f, item.reward);
    EXPECT_EQ(1u, item.revision);
    EXPECT_THAT(item.late_tags, ElementsAre(NamedTag{"n", int64_t{1} << 60}, NamedTag{"t", std::string("u")}));
    ASSERT_EQ(2u, item.columns.size());
    EXPECT_EQ(b.data(), item.columns[0].data());
    EXPECT_EQ(item.frame.size() + item.columns[0].size() + item.columns[1].size(), item.payload_bytes());
  }
}

TEST(LateData, TagsOfOneRequestAreBoundedTogether) {
  Fixture f;
  ASSERT_EQ("", f.Insert({"x"}));
  ItemUpdate first{.id = "x"}, second{.id = "x"};
  for (int i = 0; i < 40; ++i) first.tags.push_back({"a" + std::to_string(i), true});
  for (int i = 0; i < 25; ++i) second.tags.push_back({"b" + std::to_string(i), true});
  EXPECT_EQ("", f.WhyRefused({first}));
  EXPECT_EQ("updates[1]: the item would have 65 tags from updates: at most 64 are allowed", f.WhyRefused({first, second}));
  second.tags.pop_back();
  EXPECT_EQ("", f.WhyRefused({first, second}));
}

}  // namespace
}  // namespace replay::server
