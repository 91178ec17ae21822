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

TrajectoryView RoundTrip(const Trajectory& trajectory) {
  IdMaker ids;
  return *ViewFrame(*EncodeTrajectory(trajectory, ids));
}

Trajectory ThreeTokens() {
  Trajectory trajectory;
  trajectory.token_ids = {5, 6, 7};
  trajectory.prompt_length = 1;
  trajectory.loss_mask = {0, 1, 1};
  trajectory.behaviour_logprobs = {NAN, -1, -2};
  trajectory.version_segments = {{1, 3, 4}};
  trajectory.reward = 0.25f;
  trajectory.temperature = 0.7f;
  return trajectory;
}

TEST(RowOf, ReadsWhatTheGeneratorStored) {
  Trajectory trajectory = ThreeTokens();
  trajectory.advantage = std::vector<float>{0, 1, -1};
  trajectory.named_rewards = {{"format", 1.0f}, {"group_mean", 0.5f}};
  const TrajectoryView view = RoundTrip(trajectory);
  const Row row = RowOf(view);
  EXPECT_THAT(row.token_ids, ::testing::ElementsAre(5, 6, 7));
  EXPECT_THAT(row.loss_mask, ::testing::ElementsAre(0, 1, 1));
  EXPECT_THAT(row.behaviour_logprobs, ::testing::ElementsAre(::testing::IsNan(), -1, -2));
  EXPECT_THAT(row.advantages, ::testing::ElementsAre(0, 1, -1));
  EXPECT_EQ(row.group_mean, 0.5f);
  EXPECT_EQ(row.reward, 0.25f);
  EXPECT_EQ(row.temperature, 0.7f);
  EXPECT_EQ(CheckRow(row, 8, 3, {}), "");
}

TEST(RowOf, SaysWhatWasNotStored) {
  Trajectory trajectory = ThreeTokens();
  const TrajectoryView bare = RoundTrip(trajectory);
  EXPECT_TRUE(std::isnan(RowOf(bare).advantage));
  EXPECT_TRUE(std::isnan(RowOf(bare).group_mean));
  EXPECT_TRUE(RowOf(bare).advantages.empty());
  trajectory.advantage = -0.5f;
  const TrajectoryView scalar = RoundTrip(trajectory);
  EXPECT_EQ(RowOf(scalar).advantage, -0.5f);
  EXPECT_TRUE(RowOf(scalar).advantages.empty());
  trajectory.behaviour_logprobs.clear();
  const TrajectoryView unscored = RoundTrip(trajectory);
  EXPECT_THAT(CheckRow(RowOf(unscored), 8, 3, {}), ::testing::HasSubstr("0 log-probabilities"));
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
  EXPECT_EQ(
      error([](OwnedRow& o, Row&) { o.loss_mask.pop_back(); }),
      "it has 4 tokens, a loss mask of 3, 4 log-probabilities and 0 advantages: one each for every token, or no advantages");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[2] = 0.5f; }),
            "log-probability 0.500000 at 2: must be from -40 to 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[2] = NAN; }),
            "log-probability nan at 2: must be from -40 to 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[3] = -INFINITY; }),
            "log-probability -inf at 3: must be from -40 to 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs[3] = -9999; }),
            "log-probability -9999.000000 at 3: must be from -40 to 0 where the loss mask is 1");
  EXPECT_EQ(error([](OwnedRow& o, Row&) { o.logprobs = {5, -INFINITY, -40, 0}; }), "");  // 5 and -inf: not trained on
  const std::vector<float> advantages = {NAN, NAN, 1, 1}, bad_advantages = {1, 1, 1, INFINITY}, too_few = {1, 1, 1};
  EXPECT_EQ(error([&](OwnedRow&, Row& r) { r.advantages = advantages; }), "");
  EXPECT_EQ(error([&](OwnedRow&, Row& r) { r.advantages = bad_advantages; }), "advantage inf at 3: must be finite");
  EXPECT_THAT(error([&](OwnedRow&, Row& r) { r.advantages = too_few; }), ::testing::HasSubstr("and 3 advantages"));
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.reward = INFINITY; }), "reward is inf: must be finite");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.reward = NAN; }), "reward is nan: must be finite");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.temperature = -1; }), "temperature is -1.000000: must be finite and at least 0");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.temperature = INFINITY; }), "temperature is inf: must be finite and at least 0");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.temperature = 0; }), "");
  EXPECT_EQ(error([](OwnedRow&, Row& r) { r.advantage = NAN; }, "reinforce"),
            "it has no advantage, which the loss reinforce needs");
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
    // As full as it can be: one row more of this length would not fit, except in the last part.
    if (&batch != &batches.back()) {
      EXPECT_GT(batch.ids.numel() + batch.ids.size(1), 30);
    }
    tokens += batch.loss.mask.sum().item<double>();
    EXPECT_EQ(batch.positions.numel(), batch.loss.mask.sum().item<int64_t>());
    rows += static_cast<double>(batch.ids.size(0));
  }
  EXPECT_EQ(tokens, normalizer.tokens);
  EXPECT_EQ(rows, 40);
  EXPECT_GT(batches.size(), 5u);
}

TEST(MakeMicroBatches, GivesARowThatIsTooLongAPartOfItsOwn) {
  std::mt19937 random(3);
  const std::vector<OwnedRow> owned = {MakeRow(random, 2, 3), MakeRow(random, 4, 8), MakeRow(random, 2, 3)};
  Normalizer normalizer;
  const auto batches = MakeMicroBatches(RowsOf(owned), 8, torch::kCPU, &normalizer);
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].ids.sizes(), (std::vector<int64_t>{1, 11}));  // over the budget, and alone
  EXPECT_EQ(batches[1].ids.sizes(), (std::vector<int64_t>{2, 4}));
}

TEST(MakeMicroBatches, LeavesRowsWithoutATrainedTokenOutOfTheMeans) {
  std::mt19937 random(4);
  const OwnedRow prompt_only = MakeRow(random, 5, 0), row = MakeRow(random, 2, 3);
  Normalizer normalizer;
  EXPECT_EQ(MakeMicroBatches(RowsOf({prompt_only, row, prompt_only}), 100, torch::kCPU, &normalizer).size(), 1u);
  EXPECT_EQ(normalizer.sequences, 1);
  EXPECT_EQ(normalizer.tokens, 3);
  EXPECT_TRUE(MakeMicroBatches(RowsOf({prompt_only}), 100, torch::kCPU, &normalizer).empty());
  EXPECT_EQ(normalizer.sequences, 0);
  EXPECT_TRUE(MakeMicroBatches({}, 100, torch::kCPU, &normalizer).empty());
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

TEST(MakeMicroBatches, PutsRowsSideBySidePaddedOnTheRightLongestFirst) {
  const std::vector<OwnedRow> owned = {
      {.token_ids = {7, 8, 9}, .loss_mask = {0, 1, 0}, .logprobs = {NAN, -3, NAN}, .advantage = -2},
      {.token_ids = {3, 4, 5, 6}, .loss_mask = {0, 0, 1, 1}, .logprobs = {NAN, NAN, -1, -2}}};
  const std::vector<float> advantages = {9, 9, 0.25f, 0.5f};
  std::vector<Row> rows = RowsOf(owned);
  rows[0].temperature = 0.5f;
  rows[0].reward = 3;
  rows[0].group_mean = 2;
  rows[1].temperature = 0;  // greedy: its log-probabilities are those at 1
  rows[1].advantages = advantages;
  Normalizer normalizer;
  const auto batches = MakeMicroBatches(rows, 6, torch::kCPU, &normalizer);
  ASSERT_EQ(batches.size(), 1u);
  const MicroBatch& batch = batches[0];
  EXPECT_TRUE(torch::equal(batch.ids, torch::tensor({{3, 4, 5}, {7, 8, 0}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.positions, torch::tensor({1, 2, 3}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({5, 6, 8}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.temperature, torch::tensor({1.0f, 1.0f, 0.5f})));
  EXPECT_TRUE(torch::equal(batch.loss.mask, torch::tensor({{0.0f, 1.0f, 1.0f}, {1.0f, 0.0f, 0.0f}})));
  EXPECT_TRUE(torch::equal(batch.loss.behaviour_logprobs, torch::tensor({{0.0f, -1.0f, -2.0f}, {-3.0f, 0.0f, 0.0f}})));
  EXPECT_TRUE(torch::equal(batch.loss.advantage, torch::tensor({{0.0f, 0.25f, 0.5f}, {-2.0f, 0.0f, 0.0f}})));
  EXPECT_TRUE(torch::equal(batch.loss.reward, torch::tensor({1.0f, 3.0f})));
  EXPECT_TRUE(torch::equal(batch.loss.group_mean, torch::tensor({0.5f, 2.0f})));
  EXPECT_EQ(normalizer.tokens, 3);
  EXPECT_EQ(normalizer.sequences, 2);
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

// The loss of rows in parts of `budget` tokens, and all its gradients in one vector. The model computes in double precision,
// the log-probabilities are single: sums in another order differ in the seventh digit.
struct Gradient {
  size_t parts = 0;
  double loss = 0;
  Tensor all;
};

Gradient GradientOf(const std::vector<OwnedRow>& owned, int64_t budget, const LossOptions& options) {
  const model::Transformer model = TinyModel(6, torch::kFloat64);
  Normalizer normalizer;
  const auto batches = MakeMicroBatches(RowsOf(owned), budget, torch::kCPU, &normalizer);
  Gradient gradient;
  gradient.parts = batches.size();
  for (const MicroBatch& batch : batches) {
    LossInput input = batch.loss;
    input.logprobs = TargetLogprobs(model, model.Forward(batch.ids), batch, nullptr);
    const Loss loss = ComputeLoss(input, options, normalizer);
    loss.value.backward();
    gradient.loss += loss.value.item<double>();
  }
  std::vector<Tensor> flat;
  for (const Tensor& parameter : model.Parameters()) flat.push_back(parameter.grad().flatten());
  gradient.all = torch::cat(flat);
  return gradient;
}

TEST(MakeMicroBatches, GradientAccumulationEqualsOneBigBatch) {
  std::mt19937 random(5);
  std::vector<OwnedRow> owned;
  for (int i = 0; i < 24; ++i) owned.push_back(MakeRow(random, 1 + random() % 5, 1 + random() % 9));
  owned.push_back(owned[3]);
  for (const char* kind : {"grpo", "asymre", "reinforce", "supervised"}) {
    for (const Averaging averaging : {Averaging::kToken, Averaging::kSequence}) {
      const LossOptions options{.kind = kind, .averaging = averaging};
      const Gradient whole = GradientOf(owned, 100'000, options);
      EXPECT_EQ(whole.parts, 1u);
      for (const int64_t budget : {64, 16, 1}) {
        const Gradient parts = GradientOf(owned, budget, options);
        EXPECT_GT(parts.parts, 3u);
        EXPECT_NEAR(parts.loss, whole.loss, 1e-6 * std::abs(whole.loss)) << kind << ", budget " << budget;
        const double distance = (parts.all - whole.all).norm().item<double>();
        EXPECT_LE(distance, 1e-6 * whole.all.norm().item<double>()) << kind << ", budget " << budget;
      }
    }
  }
}

TEST(MakeMicroBatches, CountATrajectoryTwiceThatWasDrawnTwice) {
  std::mt19937 random(6);
  const OwnedRow once = MakeRow(random, 2, 3), twice = MakeRow(random, 3, 5);
  const LossOptions options{.kind = "supervised"};
  const Gradient one = GradientOf({once}, 100, options), other = GradientOf({twice}, 100, options);
  const Gradient both = GradientOf({twice, once, twice}, 100, options);
  EXPECT_NEAR(both.loss, (3 * one.loss + 2 * 5 * other.loss) / 13, 1e-6);
  EXPECT_LE((both.all - (3 * one.all + 2 * 5 * other.all) / 13).norm().item<double>(), 1e-6 * both.all.norm().item<double>());
}

}  // namespace
}  // namespace replay::trainer
