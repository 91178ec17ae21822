#include "trainer/journal.h"

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "client/trajectory.h"
#include "schema/json_config.h"
#include "tests/support/temporary_folder.h"

namespace replay::trainer {
namespace {

using nlohmann::json;

std::vector<json> LinesOf(const std::string& path) {
  std::istringstream text(test::ReadFile(path));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

Batch MakeBatch() {
  Batch batch;
  IdMaker ids;
  for (const bool correct : {true, false}) {
    Trajectory trajectory;
    trajectory.token_ids = {1, 2};
    trajectory.loss_mask = {0, 1};
    trajectory.behaviour_logprobs = {NAN, -1};
    trajectory.reward = correct ? 1 : 0;
    trajectory.correct = correct ? Correctness::kYes : Correctness::kNo;
    batch.trajectories.push_back(*ViewFrame(*EncodeTrajectory(trajectory, ids)));
  }
  // Three draws of the right one, one of the wrong one.
  batch.draws = {{.frame = 0, .staleness = 1, .steps_since_last_use = -1},
                 {.frame = 0, .staleness = 2, .steps_since_last_use = 0},
                 {.frame = 0, .staleness = 3, .steps_since_last_use = 5},
                 {.frame = 1, .staleness = 9, .steps_since_last_use = -1}};
  return batch;
}

TEST(Journal, WritesALineForEachStep) {
  const test::TemporaryFolder folder;
  const Batch batch = MakeBatch();
  StepReport report;
  report.sums = {.tokens = 8, .clipped = 2, .ratio = 9, .kl = 4, .sequences = 4, .weight = 4, .weight_squared = 8};
  report.taken = true;
  report.gradient_norm = 0.5;
  {
    Journal journal(folder / "log.jsonl");
    journal.Step({.step = 3, .steps = 10, .report = &report, .batch = &batch, .units = 2.5, .replay_ratio = 1.75});
    report.taken = false;
    report.why_not = "the loss is nan";
    report.loss = NAN;
    journal.Step({.step = 4, .steps = 10, .report = &report, .batch = &batch});
  }
  const auto lines = LinesOf(folder / "log.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  std::vector<std::string> keys;
  for (const auto& [key, value] : lines[0].items()) keys.push_back(key);
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("event", "step", "reward", "accuracy", "loss", "entropy", "staleness_p50",
                                                    "staleness_p90", "new_share", "replay_ratio", "clip_fraction",
                                                    "importance_ratio", "kl_to_behaviour", "effective_sample_size",
                                                    "gradient_norm", "learning_rate", "units", "seconds", "waited_seconds",
                                                    "generated_tokens_per_second", "trained_tokens_per_second", "taken"));
  EXPECT_EQ(lines[0]["event"], "step");
  EXPECT_EQ(lines[0]["step"], 3);
  EXPECT_EQ(lines[0]["importance_ratio"], 1.125);
  EXPECT_EQ(lines[0]["kl_to_behaviour"], 0.5);
  EXPECT_EQ(lines[0]["gradient_norm"], 0.5);
  EXPECT_EQ(lines[0]["units"], 2.5);
  EXPECT_EQ(lines[0]["taken"], true);
  EXPECT_EQ(lines[0]["reward"], 0.75);
  EXPECT_EQ(lines[0]["accuracy"], 0.75);
  EXPECT_EQ(lines[0]["staleness_p50"], 3);
  EXPECT_EQ(lines[0]["staleness_p90"], 9);
  EXPECT_EQ(lines[0]["new_share"], 0.5);
  EXPECT_EQ(lines[0]["clip_fraction"], 0.25);
  EXPECT_EQ(lines[0]["effective_sample_size"], 0.5);
  EXPECT_EQ(lines[0]["replay_ratio"], 1.75);
  EXPECT_FALSE(lines[0].contains("why_not"));
  EXPECT_TRUE(lines[1]["loss"].is_null());
  EXPECT_EQ(lines[1]["taken"], false);
  EXPECT_EQ(lines[1]["why_not"], "the loss is nan");
}

TEST(Journal, ShowsDeclaredAndMeasuredCostsSideBySide) {
  const test::TemporaryFolder folder;
  const Evaluation evaluation{.accuracy = 0.5, .pass_at = {{1, 0.4}, {2, 0.6}}, .entropy = 0.3, .answer_tokens = 5};
  {
    Journal journal(folder / "log.jsonl");
    EvaluationRecord record{.step = 7,
                            .evaluation = &evaluation,
                            .rollouts = 3'640,
                            .draws = 6'400,
                            .mu_declared = 5.28,
                            .mu_measured = 0,
                            .workers_per_trainer_declared = 3,
                            .batch = 64};
    journal.Evaluated(record);
    record.mu_measured = 1;
    journal.Evaluated(record);
    journal.Note("waiting", 8, "timed_out \"min_size\"\n");
    journal.Note("not_published", 9, "no \xff text");  // a path, for one, need not be UTF-8
  }
  const auto lines = LinesOf(folder / "log.jsonl");
  EXPECT_EQ(lines[0]["pass@2"], 0.6);
  EXPECT_NEAR(lines[0]["units"].get<double>(), (5.28 * 3'640 + 6'400) / (64 * 6.28), 1e-6);
  EXPECT_TRUE(lines[0]["units_measured"].is_null() && lines[0]["mu_measured"].is_null());
  EXPECT_NEAR(lines[1]["units_measured"].get<double>(), (3'640 + 6'400) / 128.0, 1e-6);
  EXPECT_NEAR(lines[1]["workers_per_trainer"].get<double>(), 5.28 * 3'640 / 6'400, 1e-6);
  EXPECT_EQ(lines[2]["message"], "timed_out \"min_size\"\n");
  EXPECT_EQ(lines[3]["message"], "no \xef\xbf\xbd text");
}

TEST(Journal, AppendsAndRefusesAPathThatCannotBe) {
  const test::TemporaryFolder folder;
  for (int i = 0; i < 2; ++i) Journal(folder / "log.jsonl").Note("n", i, "");
  EXPECT_EQ(LinesOf(folder / "log.jsonl").size(), 2u);
  EXPECT_THAT([&] { Journal(folder / "nowhere/log.jsonl"); },
              ::testing::ThrowsMessage<model::CheckpointError>(
                  ::testing::HasSubstr("nowhere/log.jsonl: cannot be opened: No such file")));
}

TEST(Journal, LeavesOutALineThatDoesNotFitOnTheDiskAndGoesOn) {
  const test::TemporaryFolder folder;
  // A bound on the size of files does what a full disk does; its signal ignored, write fails with EFBIG. A line takes 40 bytes:
  // the bound is in the middle of the second.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 60;
  ::testing::internal::CaptureStderr();
  {
    Journal journal(folder / "log.jsonl");
    setrlimit(RLIMIT_FSIZE, &small);
    for (int64_t step = 0; step < 3; ++step) journal.Note("n", step, "full");
    setrlimit(RLIMIT_FSIZE, &old);
    journal.Note("n", 3, "room again");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "2 lines of the log could not be written\n");
  const auto lines = LinesOf(folder / "log.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_EQ(lines[1]["step"], 3);
}

}  // namespace
}  // namespace replay::trainer
