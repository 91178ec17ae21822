#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/buffer.h"
#include "tests/support/fake_trajectory.h"
#include "tests/support/kept_buffer.h"
#include "tests/support/make_column.h"

namespace replay::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A buffer with something of everything that a state has. That a recovered buffer is in no way different, buffer_sim_test shows
// over random operations; here is what must be refused.
struct Fixture {
  Fixture() {
    BufferOptions options;
    options.capacity_items = 24;
    options.retention = RetentionKind::kBest;
    options.delta = {3, 10};
    options.selector = SelectorKind::kPrioritized;
    options.priority_exponent = 0.5;
    options.prompt_history = 8;
    options.max_age_ms = 60'000;
    options.seed = 7;
    options.views.push_back({.name = "good", .filter = "reward > 0.5", .selector = SelectorKind::kEpoch});
    options.views.push_back({.name = "new", .filter = "success < 0.9", .selector = SelectorKind::kUnusedFirst});
    EXPECT_EQ("", CheckOptions(&options));
    buffer = std::make_unique<Buffer>("b", options, PolicyVersions::Empty());
    buffer->SetJournal(&kept.journal);
    buffer->OnTime(1'000);
    kept.Save(*buffer);
    Publish(1);
    Insert(15);
    Draw("trainer");
    kept.Save(*buffer);
    Insert(10);
    Draw("");
    Draw("trainer 2");
    Publish(2);
    buffer->OnTime(2'000);
    uint32_t revision = 0;
    EXPECT_EQ(UpdateOutcome::kDone, buffer->Update({.id = "t24",
                                                    .reward = 1.0f,
                                                    .tags = {{"level", int64_t{3}}, {"kind", std::string("x")}},
                                                    .columns = {test::MakeColumn({.id = "t24", .length = 10})}},
                                                   &revision));
    EXPECT_EQ(1u, buffer->Delete("t23"));
    ReserveResult reserved;
    EXPECT_TRUE(buffer->Reserve({.group_id = "g", .size = 2, .lease_ms = 10'000, .deadline_ms = 20'000}, &reserved).done());
    fake::Batch member;
    member.Add({.id = "m", .group = "g", .group_size = 2});
    InsertRequest partial = member.Request();
    partial.partial = true;
    EXPECT_TRUE(buffer->Insert(partial, &inserted).done());
    buffer->AddCost({.generation_seconds = 1.5, .trainers = 2});
  }
  void Insert(int count) {
    fake::Batch batch;
    for (int i = 0; i < count; ++i, ++last_id)
      batch.Add({.id = "t" + std::to_string(last_id),
                 .version = last_id / 10,
                 .reward = static_cast<float>(last_id % 3) / 2,
                 .priority = static_cast<float>(1 + last_id % 4),
                 .source = last_id % 2 ? "maths" : "code",
                 .dataset_index = last_id % 5});
    ++sequence;
    EXPECT_TRUE(buffer->Insert(batch.Request({1, 2}, sequence, sequence - 1), &inserted).done());
  }
  void Draw(const std::string& consumer) {
    SampleRequest request{.count = 4, .step = 3, .consumer = consumer};
    request.world_size = consumer.empty() ? 0 : 1;
    EXPECT_TRUE(buffer->Sample(request, &sampled).done());
  }
  void Publish(int64_t version) {
    PolicyVersion published;
    published.run_id = "run";
    published.version = published.step = version;
    std::string error;
    versions = versions->Publish(published, &error);
    buffer->OnPublish(versions);
  }

  PolicyVersions::Snapshot versions = PolicyVersions::Empty();
  KeptBuffer kept;
  std::unique_ptr<Buffer> buffer;
  InsertResult inserted;
  SampleResult sampled;
  int last_id = 0;
  uint64_t sequence = 0;
};

std::string WhyNot(KeptBuffer* kept) {
  std::string error;
  return kept->Recover(&error) ? "" : error;
}

TEST(BufferArchive, ARecoveredBufferDrawsTheSame) {
  Fixture fixture;
  std::string error;
  std::unique_ptr<Buffer> recovered = fixture.kept.Recover(&error);
  ASSERT_TRUE(recovered) << error;
  recovered->CheckInvariants();
  EXPECT_EQ(fixture.buffer->Describe(), recovered->Describe());
  EXPECT_EQ(StateOf(*fixture.buffer), StateOf(*recovered));
  for (int batch = 0; batch < 10; ++batch) {
    SampleResult expected, drawn;
    const SampleRequest request{.count = 8, .view = batch % 2 ? "good" : ""};
    ASSERT_TRUE(fixture.buffer->Sample(request, &expected).done());
    ASSERT_TRUE(recovered->Sample(request, &drawn).done());
    for (size_t i = 0; i < expected.draws.size(); ++i) {
      EXPECT_EQ(expected.draws[i].item, drawn.draws[i].item) << "batch " << batch;
      EXPECT_EQ(expected.draws[i].probability, drawn.draws[i].probability);
    }
  }
  // A batch that was drawn for a key is drawn the same, also by who was not there.
  SampleResult again;
  const SampleRequest keyed{.count = 4, .step = 3, .consumer = "trainer 2", .world_size = 1};
  ASSERT_TRUE(recovered->Sample(keyed, &again).done());
  EXPECT_TRUE(again.planned);
  // And a repeated request gets its first receipt.
  fake::Batch repeated;
  for (int id = 15; id < 25; ++id) repeated.Add({.id = "t" + std::to_string(id)});
  InsertResult result;
  ASSERT_TRUE(recovered->Insert(repeated.Request({1, 2}, 2, 1), &result).done());
  EXPECT_TRUE(result.duplicate);
  EXPECT_EQ(16u, result.first_item);
}

TEST(BufferArchive, WhatWasHeldBeforeARestartIsGivenBack) {
  BufferOptions options;
  options.capacity_items = 4;
  options.selector = SelectorKind::kFifo;
  options.lease_ms = 60'000;
  options.max_draws = 1;
  ASSERT_EQ("", CheckOptions(&options));
  Buffer buffer("b", options, PolicyVersions::Empty());
  KeptBuffer kept;
  buffer.SetJournal(&kept.journal);
  kept.Save(buffer);
  fake::Batch batch;
  batch.Add({.id = "a"}).Add({.id = "b"});
  InsertResult inserted;
  ASSERT_TRUE(buffer.Insert(batch.Request(), &inserted).done());
  SampleResult sampled;
  ASSERT_TRUE(buffer.Sample({.count = 2, .holder = 9}, &sampled).done());
  std::string error;
  std::unique_ptr<Buffer> recovered = kept.Recover(&error);
  ASSERT_TRUE(recovered) << error;
  EXPECT_EQ(2u, recovered->Stats().held);
  recovered->SetJournal(&kept.journal);
  recovered->EndAllLeases();
  EXPECT_EQ(0u, recovered->Stats().held);
  ASSERT_TRUE(recovered->Sample({.count = 2, .holder = 1}, &sampled).done());
  EXPECT_EQ(1u, sampled.draws[0].item);
  // That is kept too.
  const std::unique_ptr<Buffer> again = kept.Recover(&error);
  ASSERT_TRUE(again) << error;
  EXPECT_EQ(StateOf(*recovered), StateOf(*again));
}

TEST(BufferArchive, RefusesAStateThatEndsAnywhere) {
  Fixture fixture;
  const std::string whole = fixture.kept.state;
  for (size_t size = 0; size < whole.size(); ++size) {
    std::string error;
    ASSERT_EQ(nullptr, Buffer::Load(std::string_view(whole).substr(0, size), &fixture.kept, &error)) << size;
    ASSERT_NE("", error) << size;
  }
  std::string error;
  EXPECT_EQ(nullptr, Buffer::Load(whole + "x", &fixture.kept, &error));
  EXPECT_EQ("has more in it than a buffer", error);
}

TEST(BufferArchive, RefusesAnotherFormat) {
  Fixture fixture;
  fixture.kept.state[0] = 9;
  EXPECT_EQ("has format 9, this version reads 1", WhyNot(&fixture.kept));
}

TEST(BufferArchive, RefusesWhatNamesAFrameThatIsNotThere) {
  Fixture fixture;
  fixture.kept.Take();
  const std::map<uint64_t, Frame> all = fixture.kept.frames;
  ASSERT_EQ(27u, all.size());  // of 25 items, a column, and a member of a reserved group
  for (const auto& [number, frame] : all) {
    fixture.kept.frames = all;
    fixture.kept.frames.erase(number);
    const std::string error = WhyNot(&fixture.kept);
    // Some left before the state was saved.
    if (error.empty()) continue;
    EXPECT_THAT(error, HasSubstr("a frame that it names is not there")) << number;
  }
  for (const uint64_t number : {uint64_t{15}, uint64_t{25}, uint64_t{26}, uint64_t{27}}) {
    fixture.kept.frames = all;
    fixture.kept.frames[number] = Frame::CopyOf(std::vector<uint8_t>(8));
    EXPECT_NE("", WhyNot(&fixture.kept)) << "another size, number " << number;
  }
}

TEST(BufferArchive, RefusesRecordsThatEndInTheMiddleOrSaySomethingElse) {
  Fixture fixture;
  fixture.kept.Take();
  const std::string whole = fixture.kept.records;
  std::vector<size_t> ends = {0};
  while (ends.back() < whole.size()) {
    uint32_t size = 0;
    std::memcpy(&size, whole.data() + ends.back(), sizeof size);
    ends.push_back(ends.back() + sizeof size + size);
  }
  ASSERT_EQ(9u, ends.size() - 1);
  for (size_t size = 0; size < whole.size(); ++size) {
    fixture.kept.records = whole.substr(0, size);
    const bool whole_records = std::find(ends.begin(), ends.end(), size) != ends.end();
    EXPECT_EQ(whole_records ? "" : "ends in the middle", WhyNot(&fixture.kept)) << size;
  }
  // One that is missing.
  for (size_t gone = 0; gone < 3; ++gone) {
    fixture.kept.records = whole.substr(0, ends[gone]) + whole.substr(ends[gone + 1]);
    EXPECT_THAT(WhyNot(&fixture.kept), HasSubstr("does not come to what it came to")) << gone;
  }
  fixture.kept.records = whole;
  fixture.kept.records[4] = 99;
  EXPECT_EQ("has an operation 99, which this version does not know", WhyNot(&fixture.kept));
  // The digest: the last eight bytes of a record.
  fixture.kept.records = whole;
  fixture.kept.records[ends[1] - 1] ^= 1;
  EXPECT_THAT(WhyNot(&fixture.kept), StartsWith("has operation 1, which does not come to what it came to when it was written: "
                                                "it came to another state"));
}

// A look at a waiting Sample, as for Stats or the list of waiters, is no decision: nothing of it is kept, and nothing changes.
TEST(BufferArchive, LookingChangesNothing) {
  Fixture fixture;
  const std::string before = StateOf(*fixture.buffer);
  fixture.kept.Take();
  const size_t records = fixture.kept.records.size();
  const SampleRequest keyed{.count = 4, .step = 3, .consumer = "trainer", .world_size = 1};
  for (const SampleRequest& request : {SampleRequest{.count = 3, .step = 1}, keyed}) {
    fixture.buffer->WhySampleWaits(request);
    fixture.buffer->WhatSampleWaitsFor(request);
    fixture.buffer->WhySampleRefused(request);
  }
  fixture.buffer->Stats();
  std::vector<StoredItem> items;
  fixture.buffer->Scan(0, 3, 1 << 20, &items);
  fixture.kept.Take();
  EXPECT_EQ(records, fixture.kept.records.size());
  EXPECT_EQ(before, StateOf(*fixture.buffer));
}

}  // namespace
}  // namespace replay::server
