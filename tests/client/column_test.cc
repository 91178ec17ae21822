#include "client/column.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/trajectory.h"

namespace replay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Trajectory Rollout(const std::string& id, std::vector<Column> columns) {
  Trajectory rollout;
  rollout.trajectory_id = id;
  rollout.token_ids = {1, 2, 3};
  rollout.loss_mask = {0, 1, 1};
  rollout.columns = std::move(columns);
  return rollout;
}

Column LogProbs(const std::string& name = "ref", std::vector<float> values = {-0.5f, -1, -2}) {
  return Column::Of<float>(name, {static_cast<int64_t>(values.size())}, values);
}

TEST(Column, IsEncodedAndViewedWithoutLosingABit) {
  const std::vector<int16_t> values = {7, -8, 9, 10};
  const Column column = Column::Of<int16_t>("top", {2, 2}, values, ColumnAlignment::kRagged, {0, 0, 2, 2});
  Result<Frame> frame = EncodeColumn(column, "t");
  ASSERT_TRUE(frame) << frame.error().ToString();
  const Result<ColumnView> view = ViewColumn(*frame);
  ASSERT_TRUE(view) << view.error().ToString();
  EXPECT_EQ("top", view->name());
  EXPECT_EQ(ColumnType::kI16, view->type());
  EXPECT_EQ(ColumnAlignment::kRagged, view->alignment());
  EXPECT_THAT(view->shape(), ElementsAre(2, 2));
  EXPECT_THAT(view->offsets(), ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(view->values<int16_t>(), ElementsAre(7, -8, 9, 10));
  EXPECT_TRUE(view->values<uint16_t>().empty()) << "of another type";
  EXPECT_EQ(column, view->ToColumn());
}

TEST(Column, HasTheTypeOfItsValues) {
  EXPECT_EQ(ColumnType::kF64, ColumnTypeOf<double>());
  EXPECT_EQ(ColumnType::kI64, ColumnTypeOf<int64_t>());
  EXPECT_EQ(ColumnType::kU8, ColumnTypeOf<uint8_t>());
  EXPECT_EQ("bf16", ToString(ColumnType::kBf16));
  EXPECT_EQ("ragged", ToString(ColumnAlignment::kRagged));
}

TEST(Column, ThatBreaksARuleIsRefusedByName) {
  Column column = LogProbs();
  column.bytes.pop_back();
  EXPECT_EQ("invalid_argument: column \"ref\": data has 11 bytes, shape [3] of f32 has 12",
            EncodeColumn(column, "t").error().ToString());
  column = LogProbs();
  column.shape = {-1};
  EXPECT_THAT(EncodeColumn(column, "t").error().message, HasSubstr("column \"ref\": "));
  column.alignment = ColumnAlignment::kRagged;
  EXPECT_THAT(EncodeColumn(column, "t").error().message, HasSubstr("column \"ref\": "));
}

TEST(Column, OfAGroupIsCheckedAsTheServerWill) {
  IdMaker ids;
  const auto encode = [&](const std::vector<Trajectory>& group) {
    const Result<EncodedGroup> encoded = EncodeGroup(group, ids);
    return encoded ? "" : encoded.error().message;
  };
  EXPECT_EQ("", encode({Rollout("a", {LogProbs("x"), LogProbs("y")}), Rollout("b", {}), Rollout("", {LogProbs("x")})}));
  EXPECT_EQ("trajectory 1: column \"x\" has 2 tokens, token_ids has 3: they must agree",
            encode({Rollout("a", {}), Rollout("b", {LogProbs("x", {1, 2})})}));
  EXPECT_EQ("column \"x\" stands twice", encode({Rollout("a", {LogProbs("x"), LogProbs("x")})}));
  EXPECT_THAT(encode({Rollout("a", {LogProbs("a b")})}), HasSubstr("only A-Z a-z 0-9 _ . - are allowed"));
}

TEST(Column, IsListedInItsTrajectoryAndCountedInTheBytes) {
  IdMaker ids;
  const std::vector<Trajectory> group = {Rollout("", {}), Rollout("b", {LogProbs("x"), LogProbs("longer_name")})};
  Result<EncodedGroup> encoded = EncodeGroup(group, ids);
  ASSERT_TRUE(encoded) << encoded.error().ToString();
  ASSERT_EQ(2u, encoded->columns.size());
  EXPECT_EQ(1u, encoded->columns[1].frame);
  uint64_t bytes = 0;
  for (const Frame& frame : encoded->frames) bytes += frame.size();
  for (const EncodedColumn& each : encoded->columns) bytes += each.column.size();
  EXPECT_EQ(bytes, encoded->bytes);
  TrajectoryFacts facts;
  ASSERT_EQ("", ValidateTrajectory(encoded->frames[1].bytes(), {}, &facts));
  EXPECT_EQ(2u, facts.column_count);
}

TEST(Column, OfAReplyBelongsToTheFrameThatItNames) {
  const std::vector<Frame> columns = {*EncodeColumn(LogProbs("x"), "t"), *EncodeColumn(LogProbs("y"), "t")};
  const auto dealt = DealColumns(columns, std::vector<uint32_t>{2, 0}, 3);
  ASSERT_TRUE(dealt) << dealt.error().ToString();
  EXPECT_EQ("y", (*dealt)[0].at(0).name());
  EXPECT_TRUE((*dealt)[1].empty());
  EXPECT_EQ("x", (*dealt)[2].at(0).name());
  EXPECT_EQ("protocol_violation: column 1 refers to frame 3 of 3",
            DealColumns(columns, std::vector<uint32_t>{2, 3}, 3).error().ToString());
  EXPECT_EQ("protocol_violation: the reply lists 1 columns and has 2",
            DealColumns(columns, std::vector<uint32_t>{2}, 3).error().ToString());
  Frame damaged = Frame::CopyOf(columns[0].bytes());
  damaged.mutable_data()[0] ^= 1;
  EXPECT_EQ(ErrorCode::kCorrupted, ViewColumn(damaged).error().code);
}

TEST(Column, ThatWasFetchedGoesWithTheCopiedTrajectory) {
  IdMaker ids;
  const std::vector<Trajectory> group = {Rollout("a", {LogProbs("x"), LogProbs("y")})};
  Result<EncodedGroup> encoded = EncodeGroup(group, ids);
  ASSERT_TRUE(encoded);
  const Result<TrajectoryView> view = ViewFrame(encoded->frames[0], {*ViewColumn(encoded->columns[1].column)});
  ASSERT_TRUE(view) << view.error().ToString();
  EXPECT_EQ(nullptr, view->column("x"));
  ASSERT_NE(nullptr, view->column("y"));
  EXPECT_EQ(std::vector<Column>{LogProbs("y")}, view->ToTrajectory().columns);
  // What comes of it can be inserted: only the columns that are there are listed.
  EXPECT_TRUE(EncodeGroup(std::vector{view->ToTrajectory()}, ids));
}

}  // namespace
}  // namespace replay
