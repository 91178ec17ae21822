#include "server/buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "schema/names.h"
#include "tests/support/fake_trajectory.h"

namespace replay::server {
namespace {

using fake::Batch;

const Key128 kWriter{1, 2};

BufferOptions Options(uint64_t capacity = 4, SelectorKind selector = SelectorKind::kFifo) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.selector = selector;
  options.seed = 1;
  return options;
}

std::string Describe(const Verdict& verdict) {
  if (verdict.done()) return "done";
  if (verdict.waits()) return "waits: " + std::string(ToString(verdict.reason));
  return std::string(ToString(verdict.code)) + ": " + verdict.message;
}

// A buffer with one-line requests; every test ends with its invariants.
struct Fixture {
  explicit Fixture(BufferOptions options) {
    EXPECT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, versions);
  }
  ~Fixture() { buffer->CheckInvariants(); }

  std::string Insert(Batch batch, Key128 writer = {}, uint64_t sequence = 0, uint64_t acknowledged = 0) {
    return server::Describe(buffer->Insert(batch.Request(writer, sequence, acknowledged), &inserted));
  }
  std::string Insert(const fake::Trajectory& trajectory) { return Insert(Batch().Add(trajectory)); }
  // "t<n>", where n is the next insertion number when all inserts succeed.
  void InsertMany(int count, fake::Trajectory trajectory = {}) {
    for (int i = 0; i < count; ++i) {
      trajectory.id = "t" + std::to_string(++last_id);
      trajectory.tag = static_cast<uint64_t>(last_id);
      EXPECT_EQ("done", Insert(trajectory));
    }
  }
  std::string Sample(uint32_t count, std::optional<int64_t> step = {}, uint32_t given_back = 0) {
    const Verdict verdict = buffer->Sample({.count = count, .step = step, .given_back = given_back}, &sampled);
    if (!verdict.done()) return server::Describe(verdict);
    // "3(f0 n1 s0 -1)": item, frame index, draw count, staleness, steps since last use.
    std::string text;
    for (const DrawnItem& draw : sampled.draws) {
      text += (text.empty() ? "" : " ") + std::to_string(draw.item) + "(f" + std::to_string(draw.frame) + " n" +
              std::to_string(draw.draw_count) + " s" + std::to_string(draw.staleness) + " " +
              std::to_string(draw.steps_since_last_use) + ")";
      EXPECT_EQ(draw.item, fake::TagOf(sampled.frames[draw.frame]));
    }
    return text;
  }
  void Publish(int64_t version, int64_t step, uint64_t epoch = 0, const std::string& run = "run") {
    PolicyVersion published;
    published.run_id = run;
    published.epoch = epoch;
    published.version = version;
    published.step = step;
    std::string error;
    versions = versions->Publish(published, &error);
    ASSERT_NE(nullptr, versions) << error;
    buffer->OnPublish(versions);
  }
  std::string Describe() const { return buffer->Describe(); }

  PolicyVersions::Snapshot versions = PolicyVersions::Empty();
  std::unique_ptr<Buffer> buffer;
  InsertResult inserted;
  SampleResult sampled;
  int last_id = 0;
};

TEST(Buffer, FifoKeepsTheFreshest) {
  Fixture fixture(Options(3));
  fixture.InsertMany(5);
  EXPECT_EQ("| 3 4 5 positive=0 fresh=3 drawn=0", fixture.Describe());
  const BufferStats stats = fixture.buffer->Stats();
  EXPECT_EQ(2u, stats.removed[static_cast<size_t>(RemoveReason::kCapacity)]);
  EXPECT_EQ(5u, stats.accepted);
  EXPECT_EQ(3u * 64, stats.bytes);
  EXPECT_EQ(30u, stats.tokens);
  EXPECT_EQ(50u, stats.tokens_inserted);
}

TEST(Buffer, PositiveBiasKeepsOlderCorrectItems) {
  BufferOptions options = Options(4);
  options.retention = RetentionKind::kPositiveBias;
  options.delta = {5, 10};
  Fixture fixture(options);
  for (const Outcome outcome :
       {Outcome::kCorrect, Outcome::kIncorrect, Outcome::kCorrect, Outcome::kUnknown, Outcome::kIncorrect})
    fixture.InsertMany(1, {.correct = outcome});
  EXPECT_EQ("1+ 3+ | 4 5 positive=2 fresh=2 drawn=0", fixture.Describe());
  EXPECT_TRUE(fixture.buffer->Delete("t5"));
  EXPECT_EQ("1+ | 3+ 4 positive=1 fresh=2 drawn=0", fixture.Describe());
}

TEST(Buffer, AnInsertIsAllOrNothing) {
  Fixture fixture(Options());
  fixture.InsertMany(2);
  Batch batch;
  batch.Add({.id = "new"}).Add({.id = "t2"});
  EXPECT_EQ("already_exists: trajectory 1 of the request has the trajectory_id of a live item, inserted as number 2",
            fixture.Insert(batch));
  EXPECT_EQ("| 1 2 positive=0 fresh=2 drawn=0", fixture.Describe());
  StoredItem item;
  EXPECT_FALSE(fixture.buffer->Get("new", &item));
  const BufferStats stats = fixture.buffer->Stats();
  EXPECT_EQ(4u, stats.offered);
  EXPECT_EQ(2u, stats.rejected);
}

TEST(Buffer, AnIdIsFreeAgainOnceItsItemHasLeft) {
  Fixture fixture(Options(1));
  EXPECT_EQ("done", fixture.Insert({.id = "a"}));
  EXPECT_EQ("done", fixture.Insert({.id = "b"}));
  EXPECT_EQ("done", fixture.Insert({.id = "a"}));
  EXPECT_EQ("| 3 positive=0 fresh=1 drawn=0", fixture.Describe());
}

TEST(Buffer, RefusesWhatItCanNeverHold) {
  BufferOptions options = Options(2);
  options.capacity_bytes = 1000;
  Fixture fixture(options);
  EXPECT_EQ(
      "invalid_argument: 3 trajectories in one request, but the buffer keeps 2 fresh ones (capacity_items 2, 0 of them for "
      "older ones that stay on)",
      fixture.Insert(Batch().Add({.id = "a"}).Add({.id = "b"}).Add({.id = "c"})));
  EXPECT_EQ(
      "invalid_argument: 1032 bytes in one request, but the buffer keeps 1000 (capacity_bytes; each frame counts 32 bytes more "
      "than its size)",
      fixture.Insert({.id = "a", .bytes = 1000}));
  EXPECT_EQ("invalid_argument: the request has no trajectories", fixture.Insert(Batch()));
  EXPECT_EQ("done", fixture.Insert({.id = "a", .bytes = 968}));
  EXPECT_EQ("done", fixture.Insert({.id = "b", .bytes = 400}));
  EXPECT_EQ("| 2 positive=0 fresh=1 drawn=0", fixture.Describe());
  EXPECT_EQ(1u, fixture.buffer->Stats().removed[static_cast<size_t>(RemoveReason::kBytes)]);
}

TEST(Buffer, ARepeatedRequestIsStoredOnce) {
  Fixture fixture(Options(1));
  EXPECT_EQ("done", fixture.Insert(Batch().Add({.id = "a"}), kWriter, 1));
  EXPECT_EQ("done", fixture.Insert(Batch().Add({.id = "b"}), kWriter, 2));  // evicts a: the receipt outlives it
  EXPECT_EQ("done", fixture.Insert(Batch().Add({.id = "a"}), kWriter, 1));
  EXPECT_TRUE(fixture.inserted.duplicate);
  EXPECT_EQ(1u, fixture.inserted.first_item);
  EXPECT_EQ("| 2 positive=0 fresh=1 drawn=0", fixture.Describe());
  EXPECT_EQ(1u, fixture.buffer->Stats().duplicate);
  EXPECT_EQ("writer_expired: sequence 2 of a writer that is not known here, or that has said it has the answer",
            fixture.Insert(Batch().Add({.id = "c"}), Key128{9, 9}, 2));
}

TEST(Buffer, AWriterWhoseFirstRequestFailedIsKnown) {
  Fixture fixture(Options());
  fixture.InsertMany(1);
  EXPECT_EQ("already_exists", fixture.Insert(Batch().Add({.id = "t1"}), kWriter, 1).substr(0, 14));
  EXPECT_EQ("done", fixture.Insert(Batch().Add({.id = "x"}), kWriter, 2));
  fixture.buffer->CountRejected(3, {7, 7}, 1);
  EXPECT_EQ("done", fixture.Insert(Batch().Add({.id = "y"}), {7, 7}, 2));
  EXPECT_EQ(4u, fixture.buffer->Stats().rejected);
}

TEST(Buffer, DrawsSayHowOftenAndWhenAnItemWasUsed) {
  Fixture fixture(Options());
  fixture.InsertMany(2, {.version = 3});
  EXPECT_EQ("1(f0 n1 s2 -1) 2(f1 n1 s2 -1)", fixture.Sample(2, 5));
  EXPECT_EQ("1(f0 n2 s6 4)", fixture.Sample(1, 9));
  EXPECT_EQ("1(f0 n3 s6 0)", fixture.Sample(1, 9));
  EXPECT_EQ("1(f0 n4 s1 0)", fixture.Sample(1, 4));  // the trainer went back
  EXPECT_EQ("| 1*4 2*1 positive=0 fresh=2 drawn=5", fixture.Describe());
  const BufferStats stats = fixture.buffer->Stats();
  EXPECT_EQ((std::vector<uint64_t>{0, 1, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0}), stats.staleness.counts);
  EXPECT_EQ((std::vector<uint64_t>{2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}), stats.reuse_gap.counts);
  EXPECT_EQ(50u, stats.tokens_drawn);
  EXPECT_EQ(4, stats.consumer_step);
}

TEST(Buffer, RepeatsWithinABatchShareTheirFrame) {
  Fixture fixture(Options(4, SelectorKind::kUniform));
  fixture.InsertMany(1);
  EXPECT_EQ("1(f0 n1 s7 -1) 1(f0 n2 s7 0) 1(f0 n3 s7 0)", fixture.Sample(3, 7));
  EXPECT_EQ(1u, fixture.sampled.frames.size());
  EXPECT_EQ(64u, fixture.sampled.payload_bytes);
  EXPECT_EQ(1, fixture.sampled.draws[0].probability);
}

TEST(Buffer, ProbabilityIsOneOverWhatMayBeDrawn) {
  Fixture fixture(Options(8, SelectorKind::kUniform));
  fixture.InsertMany(5, {.version = 1});
  fixture.InsertMany(3, {.version = 9});
  fixture.Sample(1, 9);
  EXPECT_EQ(1 / 8.0, fixture.sampled.draws[0].probability);
  fixture.Sample(1, 4);
  EXPECT_EQ(1 / 5.0, fixture.sampled.draws[0].probability);
  EXPECT_EQ(3u, fixture.sampled.withheld);
}

TEST(Buffer, MaxDrawsRemovesAfterTheBatchAndRepeatsMayPassIt) {
  BufferOptions options = Options(4, SelectorKind::kUniform);
  options.max_draws = 2;
  Fixture fixture(options);
  fixture.InsertMany(1);
  EXPECT_EQ("1(f0 n1 s0 -1) 1(f0 n2 s0 0) 1(f0 n3 s0 0)", fixture.Sample(3));
  EXPECT_EQ("| positive=0 fresh=0 drawn=3", fixture.Describe());
  EXPECT_EQ("waits: min_size", fixture.Sample(1));
  EXPECT_EQ(1u, fixture.buffer->Stats().removed[static_cast<size_t>(RemoveReason::kMaxDraws)]);
}

TEST(Buffer, LifoWithMaxDrawsOneConsumesTheFreshest) {
  BufferOptions options = Options(4, SelectorKind::kLifo);
  options.max_draws = 1;
  Fixture fixture(options);
  fixture.InsertMany(4);
  EXPECT_EQ("4(f0 n1 s0 -1) 3(f1 n1 s0 -1)", fixture.Sample(2));
  EXPECT_EQ("| 1 2 positive=0 fresh=2 drawn=2", fixture.Describe());
}

TEST(Buffer, RefusesACountThatCanNeverBeMet) {
  BufferOptions options = Options(4);
  Fixture fixture(options);
  EXPECT_EQ("invalid_argument: count is 0: a Sample draws at least 1", fixture.Sample(0));
  EXPECT_EQ("invalid_argument: count is 5, but selector fifo draws different items and the buffer holds at most 4",
            fixture.Sample(5));
  options.max_draws_per_sample = 2;
  EXPECT_EQ("", fixture.buffer->Alter(options));
  EXPECT_EQ("invalid_argument: count is 3, max_draws_per_sample of the buffer is 2", fixture.Sample(3));
}

TEST(Buffer, SaysWhyASampleWaits) {
  BufferOptions options = Options(4);
  options.min_size = 2;
  Fixture fixture(options);
  fixture.InsertMany(1, {.version = 5});
  EXPECT_EQ("waits: min_size", fixture.Sample(1));
  EXPECT_EQ("1 of 2 items present", fixture.buffer->WhySampleWaits({.count = 1}));
  fixture.InsertMany(1, {.version = 6});
  EXPECT_EQ("waits: min_size", fixture.Sample(3));
  EXPECT_EQ("2 of 3 items present", fixture.buffer->WhySampleWaits({.count = 3}));
  EXPECT_EQ("waits: staleness", fixture.Sample(1, 5));
  EXPECT_EQ("1 of 2 items may be drawn; 1 are newer than step 5 or of an older epoch",
            fixture.buffer->WhySampleWaits({.count = 1, .step = 5, .given_back = 0}));
  EXPECT_EQ(1u, fixture.buffer->Stats().withheld);
  EXPECT_EQ("", fixture.buffer->WhySampleWaits({.count = 1}));
}

TEST(Buffer, StalenessIsMeasuredInPublishedSteps) {
  Fixture fixture(Options());
  fixture.Publish(1, 100);
  fixture.InsertMany(1, {.version = 1});
  fixture.Publish(2, 110);
  fixture.InsertMany(1, {.version = 2});
  fixture.Publish(3, 125);
  EXPECT_EQ("1(f0 n1 s25 -1) 2(f1 n1 s15 -1)", fixture.Sample(2));
  EXPECT_EQ(125, fixture.sampled.step);
  EXPECT_EQ("1(f0 n2 s30 5)", fixture.Sample(1, 130));
}

TEST(Buffer, AVersionPublishedLateGetsItsStep) {
  Fixture fixture(Options());
  fixture.InsertMany(1, {.version = 7});
  EXPECT_EQ("1(f0 n1 s0 -1)", fixture.Sample(1));
  fixture.Publish(7, 70);
  fixture.Publish(8, 80);
  EXPECT_EQ("1(f0 n2 s10 73)", fixture.Sample(1));
}

TEST(Buffer, ItemsOfAnOlderEpochAreWithheldButStay) {
  for (const SelectorKind kind : {SelectorKind::kFifo, SelectorKind::kUniformDistinct}) {
    Fixture fixture(Options(4, kind));
    fixture.Publish(1, 1);
    fixture.InsertMany(2, {.epoch = 0, .version = 1});
    fixture.Publish(1, 1, 1);
    fixture.InsertMany(1, {.epoch = 1, .version = 1});
    fixture.InsertMany(1, {.epoch = 0, .version = 1});  // a generator that has not noticed yet
    EXPECT_EQ("| 1~ 2~ 3 4~ positive=0 fresh=4 drawn=0", fixture.Describe());
    EXPECT_EQ("3(f0 n1 s0 -1)", fixture.Sample(1));
    EXPECT_EQ(3u, fixture.sampled.withheld);
    EXPECT_EQ("waits: staleness", fixture.Sample(2));
    fixture.InsertMany(1, {.epoch = 1, .version = 1});
    EXPECT_EQ("| 2~ 3*1 4~ 5 positive=0 fresh=4 drawn=1", fixture.Describe());
  }
}

TEST(Buffer, PacingHoldsBothSides) {
  BufferOptions options = Options(100, SelectorKind::kUniform);
  options.replay_ratio = 2;
  options.min_size = 2;
  options.max_draws_per_sample = 4;
  options.max_insert = 2;  // tolerance 4
  Fixture fixture(options);
  fixture.InsertMany(4);  // 2 of them baseline
  EXPECT_EQ("waits: pacing", fixture.Insert({.id = "x"}));
  EXPECT_EQ("balance 4 + 1 inserts * replay_ratio 2 would exceed tolerance 4: 2 more draws are needed",
            fixture.buffer->WhyInsertWaits(1));
  EXPECT_EQ(4u, fixture.buffer->Stats().offered);  // not while it waits
  for (int i = 0; i < 2; ++i) fixture.Sample(4);
  EXPECT_EQ(-4, fixture.buffer->Stats().pacing_balance);
  EXPECT_EQ("waits: pacing", fixture.Sample(1));
  EXPECT_NE("waits: pacing", fixture.Sample(1, {}, 1));
  EXPECT_EQ("invalid_argument: 3 trajectories in one request, max_insert of the buffer is 2",
            fixture.Insert(Batch().Add({.id = "a"}).Add({.id = "b"}).Add({.id = "c"})));
  fixture.InsertMany(4);
  EXPECT_EQ("waits: pacing", fixture.Insert({.id = "x"}));
  EXPECT_TRUE(fixture.buffer->Delete("t8"));  // never drawn, counted
  EXPECT_EQ("done", fixture.Insert({.id = "x"}));
}

TEST(Buffer, InsertsDoNotWaitForATrainerThatWaitsForThem) {
  BufferOptions options = Options(100, SelectorKind::kUniform);
  options.replay_ratio = 1;
  options.max_draws_per_sample = 2;
  options.max_insert = 2;  // tolerance 2
  Fixture fixture(options);
  fixture.InsertMany(3, {.version = 9});
  EXPECT_EQ("waits: pacing", fixture.Insert({.id = "x"}));
  EXPECT_EQ("waits: staleness", fixture.Sample(1, 4));  // restored to step 4: all items are newer
  EXPECT_EQ("done", fixture.Insert({.id = "x", .version = 4, .tag = 4}));
  EXPECT_EQ("4(f0 n1 s0 -1)", fixture.Sample(1, 4));
  EXPECT_EQ("waits: pacing", fixture.Insert(Batch().Add({.id = "y"}).Add({.id = "z"})));

  Fixture restarted(options);
  restarted.Publish(9, 9);
  restarted.InsertMany(3, {.version = 9});
  EXPECT_EQ("waits: pacing", restarted.Insert({.id = "x"}));
  restarted.Publish(1, 1, 1);  // all items are of an older epoch now
  EXPECT_EQ("done", restarted.Insert({.id = "x", .epoch = 1, .version = 1}));
}

TEST(Buffer, AnInsertThatCannotSucceedIsRefusedBeforeItWaits) {
  BufferOptions options = Options(100, SelectorKind::kUniform);
  options.replay_ratio = 1;
  options.max_draws_per_sample = 2;
  options.max_insert = 2;
  Fixture fixture(options);
  fixture.InsertMany(3);
  EXPECT_EQ("waits: pacing", fixture.Insert({.id = "x"}));
  EXPECT_EQ("already_exists", fixture.Insert({.id = "t1"}).substr(0, 14));
}

TEST(Buffer, AReplyThatWouldBeTooLargeIsRefusedAndNothingRecorded) {
  Fixture fixture(Options(100));
  Batch batch;
  for (int i = 0; i < 17; ++i) {
    batch.frames.push_back(Frame::Allocate(kMaxFrameBytes));  // never touched: costs no memory
    batch.facts.push_back(fake::MakeFacts({.id = std::to_string(i)}));
  }
  EXPECT_EQ("done", fixture.Insert(std::move(batch)));
  EXPECT_EQ(
      "resource_exhausted: the 17 frames drawn have 1140850688 bytes, a reply carries at most 1073741824: draw fewer at once",
      fixture.Sample(17));
  EXPECT_EQ(0u, fixture.buffer->Stats().drawn);
  EXPECT_TRUE(fixture.sampled.frames.empty());
  EXPECT_TRUE(fixture.buffer->Sample({.count = 16}, &fixture.sampled).done());
}

TEST(Buffer, ScanExportsEverythingInPagesWhileItemsComeAndGo) {
  Fixture fixture(Options(50));
  fixture.InsertMany(50);
  std::vector<StoredItem> page;
  uint64_t after = 0;
  std::string numbers;
  bool more = true;
  for (int i = 0; more; ++i) {
    more = fixture.buffer->Scan(after, 7, UINT64_MAX, &page);
    for (const StoredItem& item : page) {
      EXPECT_EQ(item.item, fake::TagOf(item.frame));
      numbers += std::to_string(item.item) + " ";
      after = item.item;
    }
    if (i == 1) {
      EXPECT_TRUE(fixture.buffer->Delete("t14"));  // the end of this page
      EXPECT_TRUE(fixture.buffer->Delete("t16"));
    }
    if (i == 2) fixture.InsertMany(3);
  }
  std::string expected;
  for (int number = 1; number <= 53; ++number)
    if (number != 16) expected += std::to_string(number) + " ";
  EXPECT_EQ(expected, numbers);
}

TEST(Buffer, ScanEndsAPageByBytesButGivesAtLeastOneItem) {
  Fixture fixture(Options(50));
  fixture.InsertMany(3);
  std::vector<StoredItem> page;
  EXPECT_TRUE(fixture.buffer->Scan(0, 100, 1, &page));
  EXPECT_EQ(1u, page.size());
  EXPECT_TRUE(fixture.buffer->Scan(0, 100, 128, &page));
  EXPECT_EQ(2u, page.size());
  EXPECT_FALSE(fixture.buffer->Scan(2, 100, 128, &page));
  EXPECT_EQ(1u, page.size());
  EXPECT_FALSE(fixture.buffer->Scan(3, 100, 128, &page));
  EXPECT_TRUE(page.empty());
}

TEST(Buffer, TwoWritersThatUseOneIdAreToldInsteadOfLosingTrajectories) {
  Buffer buffer("b", Options(10), PolicyVersions::Empty());
  InsertResult result;
  fake::Batch first, second, again;
  first.Add({.id = "mine"});
  second.Add({.id = "yours"});
  again.Add({.id = "mine"});
  ASSERT_TRUE(buffer.Insert(first.Request({7, 0}, 1), &result).done());
  const Verdict verdict = buffer.Insert(second.Request({7, 0}, 1), &result);
  EXPECT_EQ(ErrorCode::kFailedPrecondition, verdict.code);
  EXPECT_EQ("sequence 1 of this writer has inserted other trajectories, from number 1 on: two writers use one id",
            verdict.message);
  EXPECT_TRUE(buffer.Insert(again.Request({7, 0}, 1), &result).done());
  EXPECT_TRUE(result.duplicate);
  buffer.CheckInvariants();
}

TEST(Buffer, AlterEvictsWhatNoLongerFitsAndChangesNothingOnError) {
  BufferOptions options = Options(6);
  Fixture fixture(options);
  fixture.InsertMany(6, {.correct = Outcome::kCorrect});
  fixture.Sample(2);
  options.min_size = 7;
  EXPECT_EQ("min_size is 7: it must not exceed the 6 fresh items of capacity_items 6", fixture.buffer->Alter(options));
  options = Options(5);
  options.retention = RetentionKind::kPositiveBias;
  options.delta = {4, 10};
  EXPECT_EQ("", fixture.buffer->Alter(options));
  EXPECT_EQ("2+*1 3+ | 4+ 5+ 6+ positive=2 fresh=3 drawn=2", fixture.Describe());
  options.max_draws = 1;
  options.selector = SelectorKind::kUniform;
  EXPECT_EQ("", fixture.buffer->Alter(options));
  EXPECT_EQ("3+ | 4+ 5+ 6+ positive=1 fresh=3 drawn=2", fixture.Describe());
  options.capacity_items = 100;
  EXPECT_EQ("", fixture.buffer->Alter(options));
  EXPECT_EQ("| 3+ 4+ 5+ 6+ positive=0 fresh=4 drawn=2", fixture.Describe());
  options.capacity_bytes = 2 * 96;
  EXPECT_EQ("", fixture.buffer->Alter(options));
  EXPECT_EQ("| 5+ 6+ positive=0 fresh=2 drawn=2", fixture.Describe());
}

TEST(Buffer, TheSameSeedDrawsTheSame) {
  // 60 units, of which the first 20 are evicted, a Sample from a view and from all, 10 more, another Sample.
  const auto drawn = [](SelectorKind kind, Unit unit, uint64_t seed) {
    BufferOptions options = Options(40, kind);
    options.unit = unit;
    options.seed = seed;
    options.staleness_decay = 5;
    options.views = {{.name = "v", .filter = "correct = yes", .selector = kind, .staleness_decay = 5}};
    Fixture fixture(options);
    std::string text;
    for (int i = 0; i < 70; ++i) {
      Batch batch;
      for (uint32_t member = 0; member < 2; ++member)
        batch.Add({.id = std::to_string(i) + "." + std::to_string(member),
                   .version = i / 10,
                   .correct = i % 2 ? Outcome::kCorrect : Outcome::kIncorrect,
                   .priority = static_cast<float>(1 + i % 4),
                   .group = "g" + std::to_string(i),
                   .group_size = 2,
                   .index_in_group = member});
      EXPECT_EQ("done", fixture.Insert(std::move(batch)));
      if (i != 59 && i != 69) continue;
      EXPECT_TRUE(
          fixture.buffer->Sample({.count = 12, .parts = {{.count = 6, .view = "v"}, {.count = 6}}}, &fixture.sampled).done());
      for (const DrawnItem& draw : fixture.sampled.draws)
        text += std::to_string(draw.item) + " with " + std::to_string(draw.probability) + ", ";
    }
    return text;
  };
  for (size_t number = 0; number < kSelectorNames.size(); ++number) {
    const auto kind = static_cast<SelectorKind>(number);
    for (const Unit unit : {Unit::kTrajectory, Unit::kGroup}) {
      SCOPED_TRACE(std::string(ToString(kind)) + " of " + std::string(ToString(unit)));
      EXPECT_EQ(drawn(kind, unit, 7), drawn(kind, unit, 7));
      const bool by_chance = kind != SelectorKind::kLifo && kind != SelectorKind::kFifo;
      EXPECT_EQ(by_chance, drawn(kind, unit, 7) != drawn(kind, unit, 8));
    }
  }
}

TEST(Buffer, DefaultStepIsEachRunsOwn) {
  Fixture fixture(Options(8));
  fixture.Publish(1, 10, 0, "a");
  fixture.Publish(2, 20, 0, "a");
  fixture.InsertMany(1, {.run = "a", .version = 1});
  fixture.InsertMany(1, {.run = "b", .version = 500});
  fixture.InsertMany(1, {.run = "b", .version = 490});
  EXPECT_EQ("1(f0 n1 s10 -1) 2(f1 n1 s0 -1) 3(f2 n1 s10 -1)", fixture.Sample(3));
  EXPECT_EQ(500, fixture.sampled.step);
}

TEST(Buffer, HostileVersionsDoNotOverflow) {
  Fixture fixture(Options(8));
  fixture.InsertMany(1, {.version = INT64_MIN});
  EXPECT_EQ("1(f0 n1 s" + std::to_string(INT64_MAX) + " -1)", fixture.Sample(1, INT64_MAX));
  EXPECT_EQ("1(f0 n2 s" + std::to_string(0) + " 0)", fixture.Sample(1, INT64_MIN));
  fixture.InsertMany(1, {.version = INT64_MAX});
  EXPECT_EQ("1(f0 n3 s" + std::to_string(INT64_MAX) + " " + std::to_string(INT64_MAX) + ")", fixture.Sample(1));
}

// All that ends by time: an age, leases, a lease and a deadline of a reserved group.
TEST(Buffer, ABackwardClockStandsStill) {
  BufferOptions options = Options(8);
  options.max_age_ms = 5'000;
  options.max_draws = 1;
  options.lease_ms = 1'000;
  Fixture fixture(options);
  const auto reserve = [&](const std::string& group, uint32_t lease_ms, uint32_t deadline_ms) {
    ReserveResult result;
    return server::Describe(
        fixture.buffer->Reserve({.group_id = group, .size = 2, .lease_ms = lease_ms, .deadline_ms = deadline_ms}, &result));
  };
  const auto state = [&] {
    const BufferStats stats = fixture.buffer->Stats();
    return fixture.Describe() + ", leases " + std::to_string(stats.leases) + ", reserved " +
           std::to_string(stats.reserved_groups);
  };
  EXPECT_FALSE(fixture.buffer->OnTime(10'000));
  fixture.InsertMany(1);
  EXPECT_FALSE(fixture.buffer->OnTime(2'000));
  fixture.InsertMany(2);
  EXPECT_EQ("1(f0 n1 s0 -1)", fixture.Sample(1));
  EXPECT_EQ("done", reserve("by its lease", 2'000, 60'000));
  EXPECT_EQ("done", reserve("by its deadline", 60'000, 3'000));
  const std::string begun = "| 1!*1 2 3 positive=0 fresh=3 drawn=1, leases 1, reserved 2";
  // Nothing ends at 2'000 + its span, which is before 10'000.
  for (const uint64_t now : {2'000, 3'000, 4'000, 5'000, 7'000, 9'999, 10'000, 10'999}) {
    EXPECT_FALSE(fixture.buffer->OnTime(now)) << now;
    EXPECT_EQ(begun, state()) << now;
  }
  const auto ends_at = [&](uint64_t now) {
    EXPECT_FALSE(fixture.buffer->OnTime(now - 1)) << now;
    EXPECT_TRUE(fixture.buffer->OnTime(now)) << now;
    return state();
  };
  EXPECT_EQ("| 1 2 3 positive=0 fresh=3 drawn=1, leases 0, reserved 2", ends_at(11'000));
  EXPECT_EQ("| 1 2 3 positive=0 fresh=3 drawn=1, leases 0, reserved 1", ends_at(12'000));
  EXPECT_EQ("| 1 2 3 positive=0 fresh=3 drawn=1, leases 0, reserved 0", ends_at(13'000));
  EXPECT_EQ("| positive=0 fresh=0 drawn=1, leases 0, reserved 0", ends_at(15'000));
  EXPECT_EQ(3u, fixture.buffer->Stats().removed[static_cast<size_t>(RemoveReason::kAge)]);
}

// PAPER 1.5: draws uniform with replacement, y = B / R: uses of a rollout are Poisson(y); (1 - e^-y) / y of all draws are first uses.
TEST(Buffer, UsesAndFirstUsesAreWhatThePaperImplies) {
  constexpr uint32_t kR = 20, kB = 36;  // y = 1.8, N / R = 100 steps
  Fixture fixture(Options(2000, SelectorKind::kUniform));
  uint64_t first = 0, draws = 0;
  for (int64_t step = 0; step < 2000; ++step) {
    fixture.InsertMany(kR, {.version = step});
    ASSERT_TRUE(fixture.buffer->Sample({.count = kB, .step = step}, &fixture.sampled).done());
    if (step < 500) continue;
    draws += kB;
    for (const DrawnItem& draw : fixture.sampled.draws) {
      first += draw.steps_since_last_use == -1;
      ASSERT_LT(draw.staleness, 100);
    }
  }
  const double y = double{kB} / kR;
  EXPECT_NEAR((1 - std::exp(-y)) / y, static_cast<double>(first) / static_cast<double>(draws), 0.01);
  const BufferStats stats = fixture.buffer->Stats();
  const auto removed = static_cast<double>(stats.removed[static_cast<size_t>(RemoveReason::kCapacity)]);
  EXPECT_NEAR(std::exp(-y), static_cast<double>(stats.item_draws.counts[0]) / removed, 0.02);
  EXPECT_NEAR(y, stats.item_draws.sum / removed, 0.05);
}

TEST(Buffer, CostsAtMost200BytesAnItemBeyondItsFrame) {
  Fixture fixture(Options(200'000, SelectorKind::kUniform));
  fixture.InsertMany(200'000, {.bytes = 24});
  const BufferStats stats = fixture.buffer->Stats();
  EXPECT_LE(stats.index_bytes / stats.items + Frame::kOverheadBytes, 200u);
}

}  // namespace
}  // namespace replay::server
