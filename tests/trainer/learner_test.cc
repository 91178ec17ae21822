#include "trainer/learner.h"

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
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

// A bad batch between two good ones leaves no trace: neither in the weights nor in the optimizer.
void ExpectNoStep(const LossOptions& loss, float reward, float advantage, const std::string& why) {
  const LearnerOptions options{
      .loss = loss, .optimizer = {.learning_rate = 0.1, .weight_decay = 0.1}, .micro_batch_tokens = 30};
  Learner learner(TinyModel(3), options), other(TinyModel(3), options);
  const std::vector<OwnedRow> first = Rows(3), bad = Rows(4), second = Rows(5);
  EXPECT_TRUE(learner.Step(RowsOf(first)).taken);
  EXPECT_TRUE(other.Step(RowsOf(first)).taken);
  std::vector<Row> rows = RowsOf(bad);
  rows[0].reward = reward;
  rows[0].advantage = advantage;
  const StepReport report = learner.Step(rows);
  EXPECT_EQ(report.unusable, 0u) << report.first_unusable;
  EXPECT_FALSE(report.taken);
  EXPECT_THAT(report.why_not, ::testing::StartsWith(why));
  EXPECT_TRUE(Equal(learner.model(), other.model()));
  EXPECT_EQ(learner.steps_taken(), 1);
  EXPECT_TRUE(learner.Step(RowsOf(second)).taken);
  EXPECT_TRUE(other.Step(RowsOf(second)).taken);
  EXPECT_TRUE(Equal(learner.model(), other.model()));
  EXPECT_EQ(learner.steps_taken(), 2);
}

TEST(Learner, TakesNoStepWhereTheLossIsNotFinite) {
  ExpectNoStep({.kind = "asymre"}, /*reward=*/3e38f, /*advantage=*/0, "the loss is ");  // finite, and its sum is not
}

TEST(Learner, TakesNoStepWhereTheGradientIsNotFinite) {
  ExpectNoStep({.kind = "reinforce"}, /*reward=*/1, /*advantage=*/1e30f, "the gradient's norm is inf");
}

// Engines write -inf, or -9999, for a token that they were made to say. One such row must not cost the batch.
TEST(Learner, LosesOneRowNotTheBatchToALogprobThatNothingSampledHas) {
  for (const float bad : {-INFINITY, -9999.0f}) {
    Learner learner(TinyModel(4), {.loss = {}, .optimizer = {.learning_rate = 0.1}});
    std::vector<OwnedRow> owned = Rows(4);
    owned[5].logprobs.back() = bad;
    const StepReport report = learner.Step(RowsOf(owned));
    EXPECT_TRUE(report.taken) << report.why_not;
    EXPECT_EQ(report.unusable, 1u);
    EXPECT_EQ(report.rows, 11u);
  }
  // And the least that is trained on is harmless.
  Learner learner(TinyModel(4), {.loss = {}, .optimizer = {.learning_rate = 0.1}});
  std::vector<OwnedRow> owned = Rows(4);
  owned[5].logprobs.back() = -40;
  owned[5].advantage = -1;
  const StepReport report = learner.Step(RowsOf(owned));
  EXPECT_TRUE(report.taken) << report.why_not;
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
  EXPECT_EQ(resumed.steps_taken(), 6);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Learner, LeavesNothingBehindWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const Learner learner(TinyModel(6), {});
  // A bound on the size of files does what a full disk does; its signal ignored, write fails with EFBIG. The model takes 8 kB.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  for (const rlim_t bytes : {rlim_t{1'000}, rlim_t{9'000}}) {  // in the model, and in the optimizer's state behind it
    rlimit small = old;
    small.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &small);
    std::string message;
    try {
      learner.Save(folder / "c", {});
    } catch (const model::CheckpointError& error) {
      message = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_THAT(message, HasSubstr(bytes == 1'000 ? "c.incomplete/model" : "c.incomplete/trainer.safetensors"));
    EXPECT_THAT(message, HasSubstr("cannot be written: File too large"));
    EXPECT_EQ(folder.entries(), 0u);
  }
  learner.Save(folder / "c", {});
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

TEST(Learner, RefusesACheckpointThatIsNotWholeAndNamesTheFile) {
  const TemporaryFolder folder;
  Learner learner(TinyModel(7), {});
  EXPECT_THAT([&] { learner.Load(folder / "c"); },
              ::testing::ThrowsMessage<model::CheckpointError>(HasSubstr("c/model/config.json")));
  learner.Save(folder / "c", {});
  const std::string path = folder / "c/trainer.safetensors";
  const std::string whole = test::ReadFile(path);
  test::WriteFile(path, whole.substr(0, whole.size() - 100));
  EXPECT_THAT([&] { learner.Load(folder / "c"); },
              ::testing::ThrowsMessage<model::CheckpointError>(::testing::AllOf(HasSubstr(path), HasSubstr("truncated"))));
  std::filesystem::remove(path);
  EXPECT_THAT([&] { learner.Load(folder / "c"); }, ::testing::ThrowsMessage<model::CheckpointError>(HasSubstr(path)));
  // What an older version of the program wrote, for one.
  const model::SafeTensors intact = [&] {
    test::WriteFile(path, whole);
    return model::SafeTensors(path);
  }();
  std::vector<model::NamedTensor> without_random;
  for (const std::string& name : intact.Names())
    if (name != "random_state") without_random.push_back({name, intact.Get(name)});
  model::WriteSafeTensors(path, without_random);
  EXPECT_THAT([&] { learner.Load(folder / "c"); },
              ::testing::ThrowsMessage<model::CheckpointError>(HasSubstr("has no tensor \"random_state\"")));
}

// The mean over trained tokens of p_first / p - 1 - log(p_first / p).
double KlToFirst(const model::Transformer& now, const model::Transformer& first, const std::vector<OwnedRow>& owned) {
  const torch::NoGradGuard no_grad;
  Normalizer normalizer;
  const MicroBatch batch = MakeMicroBatches(RowsOf(owned), 100'000, torch::kCPU, &normalizer).at(0);
  const Tensor log_ratio = TargetLogprobs(first, first.Forward(batch.ids), batch, nullptr) -
                           TargetLogprobs(now, now.Forward(batch.ids), batch, nullptr);
  return (log_ratio.exp() - 1 - log_ratio).sum().item<double>() / normalizer.tokens;
}

TEST(Learner, MeasuresItsKlTermFromTheFirstModelAlsoAfterAResume) {
  const TemporaryFolder folder;
  const model::Transformer first = TinyModel(8);
  const LearnerOptions options{.loss = {.kl_weight = 0.01}, .optimizer = {.learning_rate = 0.02}};
  Learner learner(CopyOf(first), options);
  for (uint32_t step = 0; step < 10; ++step) learner.Step(RowsOf(Rows(step)));
  learner.Save(folder / "c", {});
  Learner resumed(CopyOf(first), options);
  resumed.Load(folder / "c");
  std::vector<OwnedRow> idle = Rows(20);  // without an advantage nothing is left but the KL term
  for (OwnedRow& owned : idle) owned.advantage = 0;
  const double kl = KlToFirst(learner.model(), first, idle);
  EXPECT_GT(kl, 0.01);
  EXPECT_NEAR(learner.Step(RowsOf(idle)).loss, 0.01 * kl, 1e-5 * kl);
  EXPECT_NEAR(resumed.Step(RowsOf(idle)).loss, 0.01 * kl, 1e-5 * kl);
  EXPECT_TRUE(Equal(resumed.model(), learner.model()));
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
