#include "server/kept_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fake_trajectory.h"
#include "tests/support/kept_buffer.h"
#include "tests/support/temporary_folder.h"

namespace replay::server {
namespace {

using testing::HasSubstr;

BufferOptions OptionsOf(uint64_t capacity, RetentionKind retention = RetentionKind::kFifo) {
  BufferOptions options;
  options.capacity_items = capacity;
  options.retention = retention;
  options.delta = {5, 10};
  options.selector = SelectorKind::kPrioritized;
  options.seed = 3;
  EXPECT_EQ("", CheckOptions(&options));
  return options;
}

// A daemon's part of it: a buffer whose decisions are added as they come.
class KeptBuffersTest : public testing::Test {
 protected:
  KeptBuffersTest() {
    EXPECT_FALSE(folder_.Open(around_ / "data", 1).failed());
    Open();
  }
  void Open() {
    buffers_.reset();
    database_.reset();
    EXPECT_FALSE(Database::Open(folder_, &database_).failed());
    buffers_.emplace(database_.get());
  }
  // As a daemon that starts again.
  StorageError Restart() {
    Open();
    loaded_.clear();
    return buffers_->Load(&loaded_);
  }
  std::string WhyNotLoaded() { return Restart().message; }

  uint64_t Create(const std::string& name, const BufferOptions& options) {
    sequence_ = 0;
    buffer_ = std::make_unique<Buffer>(name, options, PolicyVersions::Empty());
    buffer_->SetJournal(&journal_);
    const uint64_t id = next_id_++;
    EXPECT_FALSE(buffers_->Create(id, name, SavedState(*buffer_)).failed());
    return id;
  }
  void Insert(int count, int bytes = 64) {
    fake::Batch batch;
    for (int i = 0; i < count; ++i) {
      batch.Add({.id = "t" + std::to_string(++last_id_),
                 .correct = last_id_ % 3 ? Outcome::kIncorrect : Outcome::kCorrect,
                 .bytes = static_cast<uint64_t>(bytes),
                 .tag = static_cast<uint64_t>(last_id_)});
      SealFrame({batch.frames.back().mutable_data(), batch.frames.back().size()});
    }
    InsertResult result;
    EXPECT_TRUE(buffer_->Insert(batch.Request({7, 7}, ++sequence_), &result).done());
  }
  void Draw(uint32_t count) {
    SampleResult result;
    EXPECT_TRUE(buffer_->Sample({.count = count}, &result).done());
  }
  StorageError Add(uint64_t id) { return buffers_->Add(id, journal_.Take()); }
  StorageError Save(uint64_t id) { return buffers_->Save(id, SavedState(*buffer_)); }

  std::vector<std::string> KeysOf(Rows rows) {
    std::vector<std::string> keys;
    EXPECT_FALSE(database_
                     ->ForEach(rows, "",
                               [&](std::string_view key, auto) {
                                 keys.emplace_back(key);
                                 return true;
                               })
                     .failed());
    return keys;
  }
  // Flips a bit in the middle of a row.
  void Damage(Rows rows, const std::string& key) {
    std::optional<std::string> value;
    ASSERT_FALSE(database_->Get(rows, key, &value).failed());
    (*value)[value->size() / 2] ^= 1;
    Change({rows, key, *value});
  }
  void Change(const Database::Change& change) { ASSERT_FALSE(database_->Write({&change, 1}).failed()); }

  // "" and the frame is in read_.
  std::string WhyNotRead(uint64_t id, const Frame& frame) {
    read_ = Frame::Allocate(frame.size());
    const Database::View view(*database_);
    return KeptBuffers::ReadFrame(view, id, frame.number(), &read_).message;
  }

  const test::TemporaryFolder around_;
  DataFolder folder_;
  std::unique_ptr<Database> database_;
  std::optional<KeptBuffers> buffers_;
  std::vector<KeptBuffers::Loaded> loaded_;
  Journal journal_;
  Frame read_;
  std::unique_ptr<Buffer> buffer_;
  uint64_t next_id_ = 1;
  int last_id_ = 0;
  uint64_t sequence_ = 0;
};

TEST_F(KeptBuffersTest, ABufferIsTheSameAfterEachRestart) {
  const uint64_t id = Create("rollouts", OptionsOf(40, RetentionKind::kPositiveBias));
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (uint64_t left = random() % 6; left > 0; --left) {
      Insert(1 + static_cast<int>(random() % 8));
      Draw(1 + static_cast<uint32_t>(random() % 5));
      if (random() % 2) buffer_->Delete("t" + std::to_string(last_id_));
      if (random() % 2) {
        ASSERT_FALSE(Add(id).failed());
      }
    }
    ASSERT_FALSE(Add(id).failed());
    if (random() % 3 == 0) {
      ASSERT_FALSE(Save(id).failed());
    }
    const StorageError error = Restart();
    ASSERT_FALSE(error.failed()) << error.message;
    ASSERT_EQ(1u, loaded_.size());
    EXPECT_EQ(id, loaded_[0].id);
    ASSERT_TRUE(StateOf(*buffer_) == StateOf(*loaded_[0].buffer));
    buffer_ = std::move(loaded_[0].buffer);
    buffer_->SetJournal(&journal_);
    buffer_->CheckInvariants();
    std::vector<StoredItem> items;
    buffer_->Scan(0, 100, 1 << 20, &items);
    for (const StoredItem& item : items) EXPECT_EQ("", WhyNotRead(id, item.frame)) << item.item;
  }
}

TEST_F(KeptBuffersTest, WhatLeftIsDeletedWhenTheStateIsSaved) {
  const uint64_t id = Create("rollouts", OptionsOf(50, RetentionKind::kPositiveBias));
  for (int round = 0; round < 40; ++round) {
    Insert(10);
    ASSERT_FALSE(Add(id).failed());
    EXPECT_FALSE(KeysOf(Rows::kRecords).empty());
    if (round % 2) continue;
    ASSERT_FALSE(Save(id).failed());
    EXPECT_EQ(buffer_->live(), KeysOf(Rows::kFrames).size()) << "round " << round;
    EXPECT_TRUE(KeysOf(Rows::kRecords).empty());
    EXPECT_EQ(2u, KeysOf(Rows::kStates).size()) << "a head and a part";
    ASSERT_FALSE(Restart().failed());
    buffer_ = std::move(loaded_[0].buffer);
    buffer_->SetJournal(&journal_);
  }
  EXPECT_LT(buffer_->live(), 51u);
}

TEST_F(KeptBuffersTest, AStateOfManyPartsIsReadWhole) {
  const uint64_t id = Create("large", OptionsOf(100'000));
  for (int i = 0; i < 100; ++i) Insert(256);
  ASSERT_FALSE(Add(id).failed());
  ASSERT_FALSE(Save(id).failed());
  EXPECT_GT(KeysOf(Rows::kStates).size(), 3u);
  ASSERT_FALSE(Restart().failed());
  EXPECT_TRUE(StateOf(*buffer_) == StateOf(*loaded_[0].buffer));
}

TEST_F(KeptBuffersTest, BuffersComeAndGoWithoutTheOthers) {
  const uint64_t first = Create("first", OptionsOf(10));
  Insert(3);
  ASSERT_FALSE(Add(first).failed());
  const std::string state = StateOf(*buffer_);
  const uint64_t second = Create("second", OptionsOf(20));
  Insert(4);
  ASSERT_FALSE(Add(second).failed());
  EXPECT_NE(first, second);
  ASSERT_FALSE(Restart().failed());
  ASSERT_EQ(2u, loaded_.size());
  EXPECT_EQ("first", loaded_[0].buffer->name());
  EXPECT_TRUE(state == StateOf(*loaded_[0].buffer));
  EXPECT_EQ(4u, loaded_[1].buffer->live());
  ASSERT_FALSE(buffers_->Drop(first).failed());
  ASSERT_FALSE(Restart().failed());
  ASSERT_EQ(1u, loaded_.size());
  EXPECT_EQ("second", loaded_[0].buffer->name());
  EXPECT_EQ(4u, KeysOf(Rows::kFrames).size());
}

TEST_F(KeptBuffersTest, NothingDamagedIsTakenForWhatWasKept) {
  const uint64_t id = Create("rollouts", OptionsOf(40));
  Insert(5);
  ASSERT_FALSE(Add(id).failed());
  ASSERT_FALSE(Save(id).failed());
  for (int i = 0; i < 3; ++i) {
    Insert(2);
    Draw(3);
    ASSERT_FALSE(Add(id).failed());
  }
  const std::vector<std::string> records = KeysOf(Rows::kRecords), states = KeysOf(Rows::kStates);
  ASSERT_EQ(3u, records.size());
  const std::string cannot = "buffer \"rollouts\" cannot be loaded: ";
  const auto row_of = [&](Rows rows, const std::string& key) {
    std::optional<std::string> value;
    EXPECT_FALSE(database_->Get(rows, key, &value).failed());
    return *value;
  };
  const auto expect_with_damage = [&](Rows rows, const std::string& key, const std::string& why) {
    const std::string whole = row_of(rows, key);
    Damage(rows, key);
    EXPECT_THAT(WhyNotLoaded(), HasSubstr(cannot + why));
    Change({rows, key, whole});
    EXPECT_EQ("", WhyNotLoaded());
  };
  const auto expect_without = [&](Rows rows, const std::string& key, const std::string& why) {
    const std::string whole = row_of(rows, key);
    Change({rows, key, std::nullopt});
    EXPECT_THAT(WhyNotLoaded(), HasSubstr(cannot + why));
    Change({rows, key, whole});
    EXPECT_EQ("", WhyNotLoaded());
  };
  const auto number = [&](size_t record) {
    return std::to_string(*FromBigEndian(std::string_view(records[record]).substr(8)));
  };
  expect_with_damage(Rows::kRecords, records[1], "record " + number(1) + " is damaged");
  expect_without(Rows::kRecords, records[0], "record " + number(0) + " is missing");
  expect_without(Rows::kRecords, records[1], "record " + number(1) + " is missing");
  expect_with_damage(Rows::kStates, states[1], "its state is damaged");
  expect_without(Rows::kStates, states[0], "it has no state");
  expect_without(Rows::kStates, states[1], "its state is damaged: 0 of 1 parts, 0 of ");
}

TEST_F(KeptBuffersTest, IsLoadedWithoutItsFramesWhichAreReadOneByOne) {
  const uint64_t id = Create("rollouts", OptionsOf(40));
  Insert(4);
  ASSERT_FALSE(Add(id).failed());
  ASSERT_FALSE(Save(id).failed());
  Insert(4);
  ASSERT_FALSE(Add(id).failed());
  std::vector<StoredItem> before, items;
  buffer_->Scan(0, 100, 1 << 20, &before);
  ASSERT_FALSE(Restart().failed());
  EXPECT_EQ(0u, loaded_[0].buffer->resident_bytes());
  loaded_[0].buffer->Scan(0, 100, 1 << 20, &items);
  ASSERT_EQ(8u, items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    ASSERT_TRUE(items[i].frame.is_absent());
    EXPECT_EQ("", WhyNotRead(id, items[i].frame));
    const std::span<const uint8_t> expected = before[i].frame.bytes();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read_.bytes().begin(), read_.bytes().end())) << i;
  }
}

TEST_F(KeptBuffersTest, AFrameThatIsNotWhatItWasIsAnErrorForWhoReadsIt) {
  const uint64_t id = Create("rollouts", OptionsOf(40));
  Insert(3);
  ASSERT_FALSE(Add(id).failed());
  const std::vector<std::string> frames = KeysOf(Rows::kFrames);
  Damage(Rows::kFrames, frames[0]);
  Change({Rows::kFrames, frames[1], std::nullopt});
  Change({Rows::kFrames, frames[2], "short"});
  ASSERT_FALSE(Restart().failed()) << "none of them is read";
  std::vector<StoredItem> items;
  loaded_[0].buffer->Scan(0, 100, 1 << 20, &items);
  EXPECT_EQ("frame 1 is damaged: its checksum does not match", WhyNotRead(id, items.at(0).frame));
  EXPECT_EQ("frame 2 is not there", WhyNotRead(id, items.at(1).frame));
  EXPECT_EQ("frame 3 has 5 bytes, not 64", WhyNotRead(id, items.at(2).frame));
}

// A batch that was drawn before is read as it was then.
TEST_F(KeptBuffersTest, AViewHasWhatWasThereWhenItBegan) {
  const uint64_t id = Create("rollouts", OptionsOf(4));
  Insert(4);
  ASSERT_FALSE(Add(id).failed());
  ASSERT_FALSE(Restart().failed());
  std::vector<StoredItem> items;
  loaded_[0].buffer->Scan(0, 100, 1 << 20, &items);
  const Database::View view(*database_);
  ASSERT_FALSE(buffers_->Drop(id).failed());
  EXPECT_TRUE(KeysOf(Rows::kFrames).empty());
  for (const StoredItem& item : items) {
    EXPECT_EQ("frame " + std::to_string(item.frame.number()) + " is not there", WhyNotRead(id, item.frame));
    Frame frame = Frame::Allocate(item.frame.size());
    EXPECT_EQ("", KeptBuffers::ReadFrame(view, id, item.frame.number(), &frame).message);
  }
}

// On a full disk nothing is added, and later all of it: no record is lost between.
TEST_F(KeptBuffersTest, GoesOnOnceThereIsRoom) {
  const uint64_t id = Create("rollouts", OptionsOf(40));
  Insert(2);
  ASSERT_FALSE(Add(id).failed());
  Insert(3);
  const Journal::Entries entries = journal_.Take();
  folder_.SetReserve(uint64_t{1} << 60);
  EXPECT_EQ(StorageProblem::kFull, buffers_->Add(id, entries).problem);
  EXPECT_EQ(StorageProblem::kFull, Save(id).problem);
  folder_.SetReserve(1);
  ASSERT_FALSE(buffers_->Add(id, entries).failed());
  ASSERT_FALSE(Restart().failed());
  EXPECT_TRUE(StateOf(*buffer_) == StateOf(*loaded_[0].buffer));
}

// A save that does not come to its head leaves the one before it as it was.
TEST_F(KeptBuffersTest, ASaveThatWasCutShortChangesNothing) {
  const uint64_t id = Create("rollouts", OptionsOf(40));
  Insert(5);
  ASSERT_FALSE(Add(id).failed());
  ASSERT_FALSE(Save(id).failed());
  Insert(2);
  ASSERT_FALSE(Add(id).failed());
  const std::vector<std::string> states = KeysOf(Rows::kStates);
  Change({Rows::kStates, BigEndian(id) + BigEndian(3) + BigEndian(0), "half a state"});
  Change({Rows::kStates, BigEndian(id) + BigEndian(3) + BigEndian(9), "more of it"});
  ASSERT_EQ("", WhyNotLoaded());
  EXPECT_TRUE(StateOf(*buffer_) == StateOf(*loaded_[0].buffer));
  ASSERT_FALSE(Save(id).failed());
  EXPECT_EQ(2u, KeysOf(Rows::kStates).size());
  ASSERT_EQ("", WhyNotLoaded());
  EXPECT_TRUE(StateOf(*buffer_) == StateOf(*loaded_[0].buffer));
}

}  // namespace
}  // namespace replay::server
