#include "trainer/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/trajectory.h"
#include "tests/trainer/make_rows.h"

namespace replay::trainer {
namespace {

using testing::MakeRow;
using testing::OwnedRow;
using testing::RowsOf;
using testing::TinyModel;
using torch::Tensor;

TEST(RowOf, ReadsWhatTheGeneratorStored) {
  Trajectory trajectory;
  trajectory.token_ids = {5, 6, 7};
  trajectory.prompt_length = 1;
  trajectory.loss_mask = {0, 1, 1};
  trajectory.behaviour_logprobs = {NAN, -1, -2};
  trajectory.version_segments = {{1, 3, 4}};
  trajectory.reward = 0.25f;
  trajectory.temperature = 0.7f;
  IdMaker ids;
  const auto view = [&] { return *ViewFrame(*EncodeTrajectory(trajectory, ids)); };
  const TrajectoryView bare = view();
  EXPECT_TRUE(std::isnan(RowOf(bare).advantage));
  EXPECT_TRUE(std::isnan(RowOf(bare).group_mean));
  trajectory.advantage = std::vector<float>{0, 1, -1};
  trajectory.named_rewards = {{"format", 1.0f}, {"group_mean", 0.5f}};
  const TrajectoryView full = view();
  const Row row = RowOf(full);
  EXPECT_THAT(row.token_ids, ::testing::ElementsAre(5, 6, 7));
  EXPECT_THAT(row.advantages, ::testing::ElementsAre(0, 1, -1));
  EXPECT_EQ(row.group_mean, 0.5f);
  EXPECT_EQ(row.reward, 0.25f);
  EXPECT_EQ(row.temperature, 0.7f);
  EXPECT_EQ(CheckRow(row, 8, 3, {}), "");
}

TEST(CheckRow, NamesTheFieldTheValueAndTheRule) {
  const auto error = [](auto change, const char* loss = "grpo") {
    std::mt19937 random(1);
    OwnedRow owned = MakeRow(random, 2, 2);
    owned.token_ids = {1, 2, 3, 4};
    owned.logprobs = {NAN, NAN, -1, -2};
    Row row = owned.row();
    change(owned, row);
    row.token_ids = owned.token_ids;
    row.loss_mask = owned.loss_mask;
    row.behaviour_logprobs = owned.logprobs;
    return CheckRow(row, 13, 16, {.kind = loss});
  };
  EXPECT_EQ(error([](OwnedRow&, Row&) {}), "");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.token_ids[3] = 13; }), "token id 13 at 3: the vocabulary has 13");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.token_ids[0] = -1; }), "token id -1 at 0: the vocabulary has 13");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.token_ids.resize(1); }), "it has 1 tokens: at least 2 are needed");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.token_ids.resize(17); }), "it has 17 tokens: the model's context is 16");
  EXPECT_EQ(
      error([](OwnedRow& o, Row&) { o.logprobs.clear(); }),
      "it has 4 tokens, a loss mask of 4, 0 log-probabilities and 0 advantages: one each for every token, or no advantages");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.loss_mask[0] = 1; }), "its first token is to be trained on: nothing predicts it");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[2] = 0.5f; }),
            "log-probability 0.500000 at 2: must be at most 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[2] = NAN; }),
            "log-probability nan at 2: must be at most 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.reward = INFINITY; }), "reward is inf: must be finite");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.temperature = -1; }), "temperature is -1.000000: must be at least 0");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.advantage = NAN; }), "it has no advantage, which the loss grpo needs");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.advantage = NAN; }, "asymre"), "");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.group_mean = NAN; }, "asymre"),
            "it has no named reward \"group_mean\", which the loss asymre needs");
}

TEST(MakeMicroBatches, KeepsToTheBudgetAndLosesNothing) {
  std::mt19937 random(2);
  std::vector<OwnedRow> owned;
  for (int i = 0; i < 40; ++i) owned.push_back(MakeRow(random, 1 + random() % 6, 1 + random() % 8));
  owned.push_back(MakeRow(random, 5, 0));  // nothing to train on
  Normalizer normalizer;
  const auto batches = MakeMicroBatches(RowsOf(owned), 30, torch::kCPU, &normalizer);
  EXPECT_EQ(normalizer.sequences, 40);
  double tokens = 0, rows = 0;
  for (const MicroBatch& batch : batches) {
    EXPECT_LE(batch.ids.numel(), 30);
    tokens += batch.loss.mask.sum().item<double>();
    EXPECT_EQ(batch.positions.numel(), batch.loss.mask.sum().item<int64_t>());
    rows += static_cast<double>(batch.ids.size(0));
  }
  EXPECT_EQ(tokens, normalizer.tokens);
  EXPECT_EQ(rows, 40);
  EXPECT_GT(batches.size(), 5u);
  // A row that is longer than the budget gets a part of its own.
  EXPECT_EQ(MakeMicroBatches(RowsOf({owned[0], owned[1]}), 1, torch::kCPU, &normalizer).size(), 2u);
}

TEST(MakeMicroBatches, PutsEachTokenBehindThoseThatPredictIt) {
  const OwnedRow owned{.token_ids = {3, 4, 5, 6}, .loss_mask = {0, 0, 1, 1}, .logprobs = {NAN, NAN, -1, -2}};
  Normalizer normalizer;
  const MicroBatch batch = MakeMicroBatches(RowsOf({owned}), 100, torch::kCPU, &normalizer).at(0);
  EXPECT_TRUE(torch::equal(batch.ids, torch::tensor({{3, 4, 5}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({5, 6}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.positions, torch::tensor({1, 2}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.loss.mask, torch::tensor({{0.0f, 1.0f, 1.0f}})));
  EXPECT_TRUE(torch::equal(batch.loss.behaviour_logprobs, torch::tensor({{0.0f, -1.0f, -2.0f}})));
}

TEST(TargetLogprobs, AreThoseOfTheWholeForwardAtTheTemperature) {
  const torch::NoGradGuard no_grad;
  const model::Transformer model = TinyModel(3);
  std::mt19937 random(4);
  const OwnedRow owned = MakeRow(random, 2, 5);
  Row row = owned.row();
  row.temperature = 0.5;
  Normalizer normalizer;
  const MicroBatch batch = MakeMicroBatches(std::vector<Row>{row}, 100, torch::kCPU, &normalizer).at(0);
  double entropy = 0;
  const Tensor logprobs = TargetLogprobs(model, model.Forward(batch.ids), batch, &entropy);
  const std::vector<int64_t> ids(owned.token_ids.begin(), owned.token_ids.end());
  const Tensor all = torch::log_softmax(model.Logits(model.Forward(torch::tensor(ids).unsqueeze(0)))[0] / 0.5, -1);
  double expected_entropy = 0;
  for (int64_t i = 2; i < 7; ++i) {
    EXPECT_NEAR(logprobs[0][i - 1].item<float>(), all[i - 1][ids[static_cast<size_t>(i)]].item<float>(), 1e-5);
    expected_entropy -= (all[i - 1].exp() * all[i - 1]).sum().item<double>();
  }
  EXPECT_EQ(logprobs[0][0].item<float>(), 0);
  EXPECT_NEAR(entropy, expected_entropy, 1e-4);
}

// Gradient accumulation: the parts of a batch, whatever their size, give the gradient of the whole.
TEST(MakeMicroBatches, GradientsOfThePartsAddUpToThatOfOneBigBatch) {
  std::mt19937 random(5);
  std::vector<OwnedRow> owned;
  for (int i = 0; i < 24; ++i) owned.push_back(MakeRow(random, 1 + random() % 5, 1 + random() % 9));
  owned.push_back(owned[3]);  // drawn twice: counts twice
  for (const Averaging averaging : {Averaging::kToken, Averaging::kSequence}) {
    std::vector<Tensor> whole;
    for (const int64_t budget : {100'000, 64, 16, 1}) {
      const model::Transformer model = TinyModel(6, torch::kFloat64);
      Normalizer normalizer;
      const auto batches = MakeMicroBatches(RowsOf(owned), budget, torch::kCPU, &normalizer);
      for (const MicroBatch& batch : batches) {
        LossInput input = batch.loss;
        input.logprobs = TargetLogprobs(model, model.Forward(batch.ids), batch, nullptr);
        Grpo(input, {.averaging = averaging}, normalizer).value.backward();
      }
      const std::vector<Tensor> parameters = model.Parameters();
      if (whole.empty()) {
        EXPECT_EQ(batches.size(), 1u);
        for (const Tensor& parameter : parameters) whole.push_back(parameter.grad().clone());
        continue;
      }
      EXPECT_GT(batches.size(), 3u);
      for (size_t i = 0; i < whole.size(); ++i) {
        const double scale = whole[i].abs().max().item<double>();
        EXPECT_LE((parameters[i].grad() - whole[i]).abs().max().item<double>(), 1e-5 * scale)
            << "budget " << budget << ", parameter " << i;
      }
    }
  }
}

}  // namespace
}  // namespace replay::trainer
