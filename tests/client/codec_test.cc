#include "client/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <sstream>

#include "schema/names.h"
#include "schema/protocol.capnp.h"
#include "server/buffer_options.h"
#include "tests/support/fake_server.h"

namespace replay {
namespace {

// The request as the server would read it.
class Parsed {
 public:
  explicit Parsed(const Frame& request) : words_(request.size() / 8) {
    std::memcpy(words_.data(), request.data(), request.size());
    Preamble preamble;
    std::memcpy(&preamble, request.data(), sizeof preamble);
    EXPECT_EQ(CheckPreamble(preamble, kMaxRequestControlBytes, kMaxRequestPayloadBytes), "");
    reader_.emplace(words_.data() + 3, preamble.control_words);
  }
  schema::Request::Reader root() { return reader_->Root<schema::Request>(); }

 private:
  std::vector<uint64_t> words_;
  std::optional<ControlReader> reader_;
};

ReceivedReply Received(const std::vector<uint8_t>& bytes, std::vector<Frame> frames = {}) {
  Preamble preamble;
  std::memcpy(&preamble, bytes.data(), sizeof preamble);
  ReceivedReply reply;
  reply.control.resize(preamble.control_words);
  std::memcpy(reply.control.data(), bytes.data() + sizeof preamble, preamble.control_words * 8);
  reply.frames = std::move(frames);
  return reply;
}

TEST(EncodeSample, SaysTheBufferOfEachPartAndTheRankAlsoWithoutAConsumer) {
  SampleOptions options;
  options.parts = {{.count = 2, .view = std::string(64, 'v'), .buffer = std::string(64, 'b')},
                   {.count = 3, .min_staleness = 4}};
  options.rank = 1;
  options.world_size = 4;
  Parsed parsed(EncodeSample({}, "live", options));
  const auto sample = parsed.root().getSample();
  EXPECT_EQ(sample.getRank(), 1u);
  EXPECT_EQ(sample.getWorldSize(), 4u);
  EXPECT_FALSE(sample.hasConsumer());
  EXPECT_EQ(std::string(sample.getParts()[0].getBuffer()), std::string(64, 'b'));
  EXPECT_STREQ(sample.getParts()[1].getBuffer().cStr(), "");
  EXPECT_EQ(sample.getParts()[0].getMinStaleness(), 0);
  EXPECT_EQ(sample.getParts()[1].getMinStaleness(), 4);
}

TEST(DecodeDone, KnowsEveryCodeThatTheServerMaySend) {
  for (size_t code = 1; code < kErrorCodeNames.size(); ++code) {
    const auto sent = static_cast<ErrorCode>(code);
    const Result<Done> done = DecodeDone(Received(testing::ErrorReply(1, sent, "why")));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, sent);
    EXPECT_EQ(done.error().ToString(), std::string(kErrorCodeNames[code]) + ": why");
  }
  const Result<Done> newer =
      DecodeDone(Received(testing::ErrorReply(1, static_cast<ErrorCode>(kErrorCodeNames.size()), "why")));
  EXPECT_EQ(newer.error().code, ErrorCode::kInternal);
  EXPECT_NE(newer.error().message.find("of a newer server: why"), std::string::npos);
}

TEST(EncodeHistory, SaysWhatIsAskedForAndRefusesASourceThatIsTooLong) {
  const Result<Frame> frame = EncodeHistory({.id = 3}, "b", std::string(128, 's'), 17, 20);
  ASSERT_TRUE(frame) << frame.error().ToString();
  Parsed parsed(*frame);
  const auto history = parsed.root().getHistory();
  EXPECT_EQ(history.getSource().size(), 128u);
  EXPECT_EQ(history.getAfterIndex(), 17);
  EXPECT_EQ(history.getLimit(), 20u);
  EXPECT_EQ(EncodeHistory({}, "b", std::string(129, 's'), -1, 1).error().message,
            "source has 129 bytes: at most 128 are allowed");
}

TEST(EncodeCreateBuffer, SendsDefaultsUnderWhatIsGiven) {
  const BufferOptions options{.capacity_items = 2268, .policy = "positive_bias", .delta = "0.25", .seed = 0};
  const Result<Frame> frame = EncodeCreateBuffer({.id = 5, .timeout_ms = 0}, "rollouts", options);
  ASSERT_TRUE(frame) << frame.error().ToString();
  Parsed parsed(*frame);
  EXPECT_EQ(parsed.root().getId(), 5u);
  const auto create = parsed.root().getCreateBuffer();
  EXPECT_STREQ(create.getName().cStr(), "rollouts");
  const auto to = create.getOptions();
  EXPECT_EQ(to.getCapacityItems(), 2268u);
  EXPECT_EQ(to.getCapacityBytes(), 0u);
  EXPECT_EQ(to.getRetention(), schema::RetentionKind::POSITIVE_BIAS);
  EXPECT_EQ(to.getSelector(), schema::SelectorKind::UNIFORM);
  EXPECT_STREQ(to.getDelta().cStr(), "0.25");
  EXPECT_EQ(to.getMinSize(), 1u);
  EXPECT_TRUE(to.getPaceDraws() && to.getPaceInserts());
  EXPECT_TRUE(to.getHasSeed());
  EXPECT_FALSE(to.getHasCorrectThreshold());

  Parsed plain(*EncodeCreateBuffer({}, "b", {}));
  EXPECT_EQ(plain.root().getCreateBuffer().getOptions().getCapacityItems(), 1'000'000u);
  EXPECT_STREQ(plain.root().getCreateBuffer().getOptions().getDelta().cStr(), "0");
  EXPECT_EQ(plain.root().getCreateBuffer().getOptions().getRetention(), schema::RetentionKind::FIFO);
}

TEST(EncodeCreateBuffer, ExplainsUnknownNames) {
  EXPECT_EQ(EncodeCreateBuffer({}, "b", {.policy = "positiv"}).error().ToString(),
            "invalid_argument: policy is \"positiv\": it must be one of uniform, positive_bias");
  EXPECT_EQ(EncodeCreateBuffer({}, "b", {.retention = "lru"}).error().ToString(),
            "invalid_argument: retention is \"lru\": it must be one of fifo, positive_bias, best");
  EXPECT_EQ(EncodeAlterBuffer({}, "b", {.selector = "random"}).error().ToString(),
            "invalid_argument: selector is \"random\": it must be one of uniform, uniform_distinct, lifo, fifo, "
            "epoch, unused_first, prioritized, recency");
}

std::string Fields(const BufferOptions& options) {
  const Result<Frame> frame = EncodeAlterBuffer({}, "b", options);
  if (!frame) return frame.error().ToString();
  Parsed parsed(*frame);
  std::string names;
  for (const auto& name : parsed.root().getAlterBuffer().getFields())
    names += (names.empty() ? "" : " ") + std::string(name.cStr());
  return names;
}

TEST(EncodeAlterBuffer, ListsWhatIsSet) {
  EXPECT_EQ(Fields({.delta = "0.5", .pace_inserts = false}), "delta pace_inserts");
  EXPECT_EQ(Fields({.policy = "positive_bias", .selector = "lifo"}), "retention selector");
  EXPECT_EQ(Fields({}), "invalid_argument: no option is set: there is nothing to alter");
  // All that the server knows, so that none is forgotten here. The policy is a preset of two.
  const BufferOptions everything{.capacity_items = 1,
                                 .capacity_bytes = 1,
                                 .policy = "uniform",
                                 .retention = "fifo",
                                 .delta = "0.123456789012345678",
                                 .selector = "fifo",
                                 .priority_exponent = 1,
                                 .staleness_decay = 1,
                                 .max_staleness = 1,
                                 .max_age = std::chrono::milliseconds(1),
                                 .evict_staleness = 1,
                                 .max_draws = 1,
                                 .correct_threshold = 0.5,
                                 .replay_ratio = 1,
                                 .tolerance = 1,
                                 .min_size = 1,
                                 .max_draws_per_sample = 1,
                                 .max_insert = 1,
                                 .pace_draws = true,
                                 .pace_inserts = true,
                                 .seed = 1,
                                 .views = std::vector{ViewOptions{.name = "v", .filter = "draws < 2"}},
                                 .unit = "group",
                                 .closed = true,
                                 .lease = std::chrono::milliseconds(1),
                                 .zero_spread = "keep",
                                 .parts = 1,
                                 .prompt_history = 1,
                                 .level = "disk"};
  std::vector<std::string> names;
  std::istringstream listed(Fields(everything));
  for (std::string name; listed >> name;) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(server::OptionNames()));
}

TEST(EncodeGet, HoldsTheLargestListOfIds) {
  std::vector<std::string> ids(kMaxIdsPerRequest, std::string(kMaxIdBytes, 'x'));
  const Result<Frame> frame = EncodeGet({}, std::string(kMaxBufferNameBytes, 'b'), ids);
  ASSERT_TRUE(frame) << frame.error().ToString();
  Parsed parsed(*frame);
  EXPECT_EQ(parsed.root().getGet().getIds().size(), kMaxIdsPerRequest);
  ids.push_back("one more");
  EXPECT_EQ(EncodeGet({}, "b", ids).error().ToString(),
            "invalid_argument: ids has 513 entries: at most 512 are allowed in a call");
  const std::vector<std::string> nameless = {"a", ""};
  EXPECT_EQ(EncodeDelete({}, "b", nameless).error().ToString(), "invalid_argument: ids[1] has 0 bytes: it must have 1 to 128");
}

TEST(EncodeUpdate, RefusesWhatTheServerWould) {
  const auto refused = [](const ItemUpdate& update) {
    return EncodeUpdate({}, "b", std::vector<ItemUpdate>{update}).error().message;
  };
  EXPECT_EQ("updates[0].priority, reward, correct, advantage, tags and columns are all missing: nothing to update",
            refused({.trajectory_id = "t"}));
  EXPECT_EQ("updates[0].advantage is nan: it must be finite",
            refused({.trajectory_id = "t", .advantage = std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_EQ("updates[0].tags.name is empty", refused({.trajectory_id = "t", .tags = {{"", true}}}));
  EXPECT_EQ("updates[0].column \"x\": data has 0 bytes, shape [2] of f32 has 8",
            refused({.trajectory_id = "t", .columns = {{.name = "x", .shape = {2}, .offsets = {}, .bytes = {}}}}));
}

TEST(EncodeUpdate, HoldsTheLargestIdsAndRefusesWhatDoesNotFitIntoARequest) {
  std::vector<ItemUpdate> updates(kMaxIdsPerRequest);
  for (ItemUpdate& update : updates) {
    update.trajectory_id = std::string(kMaxIdBytes, 'x');
    update.advantage = 1;
  }
  EXPECT_TRUE(EncodeUpdate({}, std::string(kMaxBufferNameBytes, 'b'), updates));
  for (ItemUpdate& update : updates) update.tags = {{"name", std::string(kMaxTagBytes, 'x')}};
  EXPECT_THAT(EncodeUpdate({}, "b", updates).error().message, ::testing::HasSubstr("at most 131072 are allowed in a call"));
}

TEST(EncodeInsert, HoldsTheLargestListOfFrames) {
  const std::vector<Frame> frames(kMaxTrajectoriesPerInsert, testing::SmallFrame("x"));
  ControlBuilder builder;
  const InsertHead head{.buffer = "rollouts", .writer = {1, 2}, .sequence = 9, .acknowledged_through = 8};
  const Frame bytes = Frame::CopyOf(EncodeInsert(builder, {.id = 3, .timeout_ms = 100}, head, frames));
  Parsed parsed(bytes);
  const auto insert = parsed.root().getInsert();
  EXPECT_EQ(insert.getFrameBytes().size(), kMaxTrajectoriesPerInsert);
  EXPECT_EQ(insert.getWriterLow(), 1u);
  EXPECT_EQ(insert.getWriterHigh(), 2u);
  EXPECT_EQ(insert.getSequence(), 9u);
  EXPECT_EQ(insert.getAcknowledgedThrough(), 8u);
}

TEST(Decode, TurnsAnErrorReplyIntoAnError) {
  const auto reply = Received(testing::ErrorReply(1, ErrorCode::kTimedOut, "12 of 64 items present", WaitReason::kMinSize));
  EXPECT_EQ(DecodeSample(reply).error().ToString(), "timed_out (min_size): 12 of 64 items present");
  EXPECT_EQ(DecodeDone(reply).error().reason, WaitReason::kMinSize);
}

TEST(Decode, RefusesAReplyOfAnotherKind) {
  const auto reply = Received(testing::OkReply(1));
  EXPECT_TRUE(DecodeDone(reply));
  EXPECT_EQ(DecodeInsert(reply).error().code, ErrorCode::kProtocolViolation);
  EXPECT_EQ(DecodeStats(reply).error().code, ErrorCode::kProtocolViolation);
  EXPECT_EQ(DecodeHello(Received(testing::HelloReply(1, 1, 99))).error().code, ErrorCode::kUnsupportedVersion);
}

TEST(DecodeSample, ReadsDrawsAndFrames) {
  const std::vector<Frame> frames = {testing::SmallFrame("a"), testing::SmallFrame("b")};
  const Result<Batch> batch = DecodeSample(Received(testing::SampleReply(1, 12, frames), frames));
  ASSERT_TRUE(batch) << batch.error().ToString();
  EXPECT_EQ(batch->step, 12);
  ASSERT_EQ(batch->draws.size(), 2u);
  EXPECT_EQ(batch->trajectory(batch->draws[1]).trajectory_id(), "b");
  EXPECT_EQ(batch->draws[1].item, 101u);
  EXPECT_EQ(batch->draws[0].probability, 0.25);
  EXPECT_TRUE(batch->candidates.empty()) << "an older server";
  const Result<Batch> newer = DecodeSample(Received(testing::SampleReply(1, 12, frames, {}, {4}), frames));
  ASSERT_TRUE(newer) << newer.error().ToString();
  EXPECT_EQ(newer->candidates, std::vector<uint64_t>{4});
  EXPECT_EQ(DecodeSample(Received(testing::SampleReply(1, 12, frames, {}, {4, 5}), frames)).error().ToString(),
            "protocol_violation: the reply has candidates of 2 parts of 1");
  // A draw that refers to a frame which did not come.
  EXPECT_EQ(DecodeSample(Received(testing::SampleReply(1, 12, frames), {frames[0]})).error().ToString(),
            "protocol_violation: draw 1 refers to frame 1 of 1");
}

TEST(DecodeGet, RefusesListsThatDisagree) {
  const std::vector<Frame> frames = {testing::SmallFrame("a")};
  const auto stored = DecodeGet(Received(testing::GetReply(1, frames, 1), frames));
  ASSERT_TRUE(stored) << stored.error().ToString();
  EXPECT_EQ((*stored)[0].item, 7u);
  EXPECT_EQ((*stored)[0].draw_count, 2u);
  EXPECT_EQ(DecodeGet(Received(testing::GetReply(1, frames, 2), frames)).error().code, ErrorCode::kProtocolViolation);
}

TEST(Decode, SurvivesFlippedBits) {
  const std::vector<Frame> frames = {testing::SmallFrame("a"), testing::SmallFrame("b")};
  const auto good = testing::SampleReply(1, 12, frames);
  for (size_t bit = sizeof(Preamble) * 8; bit < (good.size() - frames[0].size() - frames[1].size()) * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const ReceivedReply reply = Received(bytes, frames);
    ReplyHead head;
    (void)DecodeHead(reply.control, &head);
    (void)DecodeSample(reply);
    (void)DecodeStats(reply);
    (void)DecodeGet(reply);
  }
}

}  // namespace
}  // namespace replay
