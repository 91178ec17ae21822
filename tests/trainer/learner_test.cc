#include "trainer/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/trainer/make_rows.h"
#include "trainer/model/checkpoint.h"

namespace replay::trainer {
namespace {

using test::TemporaryFolder;
using testing::Equal;
using ::testing::HasSubstr;
using testing::MakeRow;
using testing::OwnedRow;
using testing::RowsOf;
using testing::TinyConfig;
using testing::TinyModel;
using torch::Tensor;

std::vector<OwnedRow> Rows(uint32_t seed, size_t count = 12) {
  std::mt19937 random(seed);
  std::vector<OwnedRow> rows;
  for (size_t i = 0; i < count; ++i) rows.push_back(MakeRow(random, 1 + random() % 4, 1 + random() % 6));
  return rows;
}

model::Transformer CopyOf(const model::Transformer& source) {
  model::Transformer copy(source.config());
  copy.CopyFrom(source);
  return copy;
}

TEST(Learner, LearnsWhatItIsShown) {
  Learner learner(TinyModel(1), {.loss = {.kind = "supervised"}, .optimizer = {.learning_rate = 0.02}});
  const std::vector<OwnedRow> rows = Rows(1, 4);
  const double first = learner.Step(RowsOf(rows)).loss;
  for (int step = 0; step < 150; ++step) learner.Step(RowsOf(rows));
  EXPECT_LT(learner.Step(RowsOf(rows)).loss, first / 3);
}

TEST(Learner, MovesProbabilityTowardsWhatHadAnAdvantage) {
  Learner learner(TinyModel(2), {.loss = {}, .optimizer = {.learning_rate = 0.01}});
  std::vector<OwnedRow> rows = Rows(2, 2);
  rows[0].advantage = 1;
  rows[1].advantage = -1;
  const auto logprob = [&](const OwnedRow& owned) {
    const torch::NoGradGuard no_grad;
    Normalizer normalizer;
    const MicroBatch batch = MakeMicroBatches(RowsOf({owned}), 100, torch::kCPU, &normalizer).at(0);
    return TargetLogprobs(learner.model(), learner.model().Forward(batch.ids), batch, nullptr).sum().item<double>();
  };
  // On-policy: the stored log-probabilities are the model's own.
  for (OwnedRow& owned : rows) std::fill(owned.logprobs.begin(), owned.logprobs.end(), -2.5f);
  const double better = logprob(rows[0]), worse = logprob(rows[1]);
  const StepReport report = learner.Step(RowsOf(rows));
  EXPECT_TRUE(report.taken);
  EXPECT_GT(logprob(rows[0]), better);
  EXPECT_LT(logprob(rows[1]), worse);
}

TEST(Learner, TakesNoStepWhereTheLossIsNotFinite) {
  const model::Transformer before = TinyModel(3);
  Learner learner(CopyOf(before), {.loss = {.kind = "asymre"}, .optimizer = {.learning_rate = 0.1}});
  std::vector<OwnedRow> owned = Rows(3);
  std::vector<Row> rows = RowsOf(owned);
  for (Row& row : rows) row.reward = 3e38f;  // finite, and its sum is not
  const StepReport report = learner.Step(rows);
  EXPECT_FALSE(report.taken);
  EXPECT_THAT(report.why_not, ::testing::StartsWith("the loss is "));
  EXPECT_TRUE(Equal(learner.model(), before));
  EXPECT_EQ(learner.steps_taken(), 0);
  // The next good batch is trained on as if nothing had been.
  Learner other(CopyOf(before), {.loss = {.kind = "asymre"}, .optimizer = {.learning_rate = 0.1}});
  EXPECT_TRUE(learner.Step(RowsOf(owned)).taken);
  EXPECT_TRUE(other.Step(RowsOf(owned)).taken);
  EXPECT_TRUE(Equal(learner.model(), other.model()));
}

TEST(Learner, LeavesOutWhatCannotBeTrainedOnAndSaysWhy) {
  const model::Transformer before = TinyModel(4);
  Learner learner(CopyOf(before), {.loss = {}, .optimizer = {.learning_rate = 0.1}}),
      other(CopyOf(before), {.loss = {}, .optimizer = {.learning_rate = 0.1}});
  std::vector<OwnedRow> owned = Rows(4);
  EXPECT_TRUE(other.Step(RowsOf(owned)).taken);
  std::mt19937 random(9);
  OwnedRow bad = MakeRow(random, 2, 2);
  bad.token_ids[1] = 99;
  owned.insert(owned.begin() + 3, bad);
  const StepReport report = learner.Step(RowsOf(owned));
  EXPECT_EQ(report.unusable, 1u);
  EXPECT_EQ(report.rows, 12u);
  EXPECT_EQ(report.first_unusable, "token id 99 at 1: the vocabulary has 13");
  EXPECT_TRUE(Equal(learner.model(), other.model()));
  const StepReport nothing = learner.Step(RowsOf({bad}));
  EXPECT_FALSE(nothing.taken);
  EXPECT_EQ(nothing.why_not, "the batch has no token to train on");
}

TEST(Learner, GoesOnFromACheckpointToTheBit) {
  const TemporaryFolder folder;
  const LearnerOptions options{
      .loss = {}, .optimizer = {.learning_rate = 0.01, .warmup_steps = 5, .weight_decay = 0.01}, .micro_batch_tokens = 30};
  Learner learner(TinyModel(5), options);
  for (uint32_t step = 0; step < 3; ++step) learner.Step(RowsOf(Rows(step)));
  torch::randn({5});
  learner.Save(folder / "c", {{"step", "3"}, {"draws", "36"}});
  const Tensor drawn = torch::randn({8});  // of the random state as it was saved
  for (uint32_t step = 3; step < 6; ++step) learner.Step(RowsOf(Rows(step)));

  Learner resumed(TinyModel(77), options);
  const auto facts = resumed.Load(folder / "c");
  EXPECT_EQ(facts.at("step"), "3");
  EXPECT_EQ(resumed.steps_taken(), 3);
  EXPECT_TRUE(torch::equal(torch::randn({8}), drawn));
  for (uint32_t step = 3; step < 6; ++step) resumed.Step(RowsOf(Rows(step)));
  EXPECT_TRUE(Equal(resumed.model(), learner.model()));
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Learner, NeverWritesOverACheckpointAndClearsAwayAHalfOne) {
  const TemporaryFolder folder;
  const Learner learner(TinyModel(6), {});
  std::filesystem::create_directories(folder / "c.incomplete/model");
  learner.Save(folder / "c", {});
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_THAT([&] { learner.Save(folder / "c", {}); },
              ::testing::ThrowsMessage<model::CheckpointError>(HasSubstr("exists already")));
}

TEST(Learner, RefusesTheCheckpointOfAnotherModel) {
  const TemporaryFolder folder;
  Learner(TinyModel(7), {}).Save(folder / "c", {});
  model::ModelConfig wider = TinyConfig();
  wider.intermediate_size = 20;
  Learner other(model::Transformer(wider), {});
  EXPECT_THAT([&] { other.Load(folder / "c"); },
              ::testing::ThrowsMessage<model::CheckpointError>(HasSubstr("does not fit this model")));
}

TEST(Learner, HoldsOnToTheFirstModelByItsKlTerm) {
  const std::vector<OwnedRow> rows = Rows(8);
  const auto distance = [&](double kl_weight) {
    const model::Transformer before = TinyModel(8);
    Learner learner(CopyOf(before), {.loss = {.kl_weight = kl_weight}, .optimizer = {.learning_rate = 0.01}});
    for (int step = 0; step < 30; ++step) learner.Step(RowsOf(rows));
    const torch::NoGradGuard no_grad;
    double sum = 0;
    const auto now = learner.model().Parameters(), then = before.Parameters();
    for (size_t i = 0; i < now.size(); ++i) sum += (now[i] - then[i]).square().sum().item<double>();
    return sum;
  };
  EXPECT_LT(distance(10), 0.7 * distance(0));
}

}  // namespace
}  // namespace replay::trainer
