#include "server/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/protocol.capnp.h"

namespace replay::server {
namespace {

using testing::HasSubstr;

// Decodes what `fill` builds.
template <typename Fill>
std::optional<DecodeFailure> DecodeBuilt(Fill fill, Request* request, uint32_t words = 4096) {
  ControlBuilder builder;
  auto root = builder.Start<schema::Request>(words);
  fill(root);
  const auto bytes = builder.Finish(0);
  return DecodeRequest(bytes.data() + sizeof(Preamble), static_cast<uint32_t>((bytes.size() - sizeof(Preamble)) / 8), request);
}

TEST(DecodeRequest, ReadsAnInsert) {
  Request request;
  const auto failure = DecodeBuilt(
      [](schema::Request::Builder root) {
        root.setId(9);
        root.setTimeoutMs(250);
        auto insert = root.initInsert();
        insert.setBuffer("rollouts");
        insert.setWriterHigh(1);
        insert.setWriterLow(2);
        insert.setSequence(3);
        insert.setAcknowledgedThrough(1);
        auto sizes = insert.initFrameBytes(2);
        sizes.set(0, 64);
        sizes.set(1, 4096);
      },
      &request);
  ASSERT_FALSE(failure) << failure->message;
  EXPECT_EQ(9u, request.id);
  EXPECT_EQ(250u, request.timeout_ms);
  EXPECT_EQ(Verb::kInsert, request.verb);
  EXPECT_EQ("rollouts", request.buffer);
  EXPECT_EQ((Key128{2, 1}), request.writer);
  EXPECT_EQ((std::vector<uint32_t>{64, 4096}), request.frame_bytes);
}

TEST(DecodeRequest, ForgetsTheStepOfTheRequestBefore) {
  Request request;
  DecodeBuilt([](auto root) { root.initSample().setHasStep(true); }, &request);
  EXPECT_TRUE(request.sample.step.has_value());
  DecodeBuilt([](auto root) { root.initSample().setCount(3); }, &request);
  EXPECT_FALSE(request.sample.step.has_value());
  EXPECT_EQ(3u, request.sample.count);
}

TEST(DecodeRequest, ReadsWhichBufferAPartComesFrom) {
  Request request;
  const auto failure = DecodeBuilt(
      [](auto root) {
        auto parts = root.initSample().initParts(2);
        parts[0].setCount(2);
        parts[0].setBuffer("frozen");
        parts[1].setCount(3);
        parts[1].setMinStaleness(4);
      },
      &request);
  ASSERT_FALSE(failure) << failure->message;
  EXPECT_EQ(5u, request.sample.count);
  EXPECT_EQ("frozen", request.sample.parts[0].buffer);
  EXPECT_EQ("", request.sample.parts[1].buffer);
  EXPECT_EQ(0, request.sample.parts[0].min_staleness);
  EXPECT_EQ(4, request.sample.parts[1].min_staleness);
}

TEST(DecodeRequest, NamesTheFieldThatIsTooLong) {
  Request request;
  const auto failure = DecodeBuilt([](auto root) { root.initSample().setBuffer(std::string(65, 'x').c_str()); }, &request);
  ASSERT_TRUE(failure);
  EXPECT_FALSE(failure->ends_conversation);
  EXPECT_EQ("buffer has 65 bytes: at most 64 are allowed", failure->message);
}

TEST(DecodeRequest, RefusesMoreIdsThanARequestMayHave) {
  Request request;
  const auto failure = DecodeBuilt([](auto root) { root.initGet().initIds(kMaxIdsPerRequest + 1); }, &request);
  ASSERT_TRUE(failure);
  EXPECT_EQ("ids has 513 entries: at most 512 are allowed", failure->message);
}

TEST(DecodeRequest, ReadsAnUpdateOfAllKinds) {
  Request request;
  const auto failure = DecodeBuilt(
      [](schema::Request::Builder root) {
        auto update = root.initUpdate();
        update.setBuffer("b");
        auto updates = update.initUpdates(2);
        updates[0].setId("t");
        updates[0].setHasAdvantage(true);
        updates[0].setAdvantage(-0.5f);
        auto tags = updates[0].initTags(4);
        for (unsigned i = 0; i < 4; ++i) tags[i].setName(("n" + std::to_string(i)).c_str());
        tags[0].setText("x");
        tags[1].setInteger((int64_t{1} << 60) + 1);
        tags[2].setReal(0.5);
        tags[3].setFlag(true);
        updates[1].setId("u");
        auto columns = update.initColumns(1);
        columns[0].setFrame(1);
        columns[0].setBytes(96);
      },
      &request);
  ASSERT_FALSE(failure) << failure->message;
  EXPECT_EQ(-0.5f, request.updates.at(0).advantage);
  EXPECT_EQ((std::vector<NamedTag>{{"n0", std::string("x")}, {"n1", (int64_t{1} << 60) + 1}, {"n2", 0.5}, {"n3", true}}),
            request.updates[0].tags);
  ASSERT_EQ(1u, request.columns.size());
  EXPECT_EQ(1u, request.columns[0].frame);
  EXPECT_EQ(96u, request.columns[0].bytes);
}

// The short way must not take it for a plain one.
TEST(DecodeRequest, ReadsTheColumnsOfAnInsertAndForgetsThoseOfTheRequestBefore) {
  Request request;
  const auto insert = [&](bool with_column) {
    const auto failure = DecodeBuilt(
        [&](schema::Request::Builder root) {
          auto to = root.initInsert();
          to.setBuffer("b");
          to.initFrameBytes(1).set(0, 64);
          if (!with_column) return;
          auto columns = to.initColumns(1);
          columns[0].setBytes(96);
        },
        &request);
    EXPECT_FALSE(failure) << failure->message;
    return request.columns.size();
  };
  EXPECT_EQ(1u, insert(true));
  EXPECT_EQ(0u, insert(false));
}

TEST(DecodeRequest, RefusesTagsAndAdvantagesThatATrajectoryCouldNotHave) {
  Request request;
  const auto refused = [&](auto edit) {
    const auto failure = DecodeBuilt(
        [&](schema::Request::Builder root) {
          auto update = root.initUpdate().initUpdates(1)[0];
          update.setId("t");
          edit(update);
        },
        &request);
    return failure ? failure->message : "";
  };
  EXPECT_EQ("updates[0].advantage is inf: it must be finite", refused([](auto update) {
              update.setHasAdvantage(true);
              update.setAdvantage(INFINITY);
            }));
  EXPECT_EQ("updates[0].tags has 65 entries: at most 64 are allowed", refused([](auto update) { update.initTags(65); }));
  EXPECT_EQ("updates[0].tags.name is empty", refused([](auto update) { update.initTags(1); }));
}

// Its own check: a client need not be ours.
TEST(DecodeRequest, RefusesAnUpdatedPriorityRewardOrAdvantageThatATrajectoryCouldNotHave) {
  Request request;
  const auto refused = [&](auto edit) {
    const auto failure = DecodeBuilt(
        [&](schema::Request::Builder root) {
          auto updates = root.initUpdate().initUpdates(1);
          updates[0].setId("t");
          edit(updates[0]);
        },
        &request);
    EXPECT_TRUE(!failure || (failure->code == ErrorCode::kInvalidArgument && !failure->ends_conversation));
    return failure ? failure->message : "";
  };
  const auto priority = [&](float value) {
    return refused([value](schema::ItemUpdate::Builder update) {
      update.setHasPriority(true);
      update.setPriority(value);
    });
  };
  EXPECT_EQ("updates[0].priority is -1.000000: it must be from 0 to 1e9", priority(-1));
  EXPECT_EQ("updates[0].priority is nan: it must be from 0 to 1e9", priority(NAN));
  EXPECT_EQ("updates[0].priority is inf: it must be from 0 to 1e9", priority(INFINITY));
  EXPECT_EQ("updates[0].priority is 2000000000.000000: it must be from 0 to 1e9", priority(2e9f));
  for (const float allowed : {0.0f, 0.5f, 1e9f}) EXPECT_EQ("", priority(allowed));
  const auto reward = [&](float value) {
    return refused([value](schema::ItemUpdate::Builder update) {
      update.setHasReward(true);
      update.setReward(value);
    });
  };
  const auto advantage = [&](float value) {
    return refused([value](schema::ItemUpdate::Builder update) {
      update.setHasAdvantage(true);
      update.setAdvantage(value);
    });
  };
  for (const auto& [value, text] : {std::pair(NAN, "nan"), std::pair(INFINITY, "inf"), std::pair(-INFINITY, "-inf")}) {
    EXPECT_EQ("updates[0].reward is " + std::string(text) + ": it must be finite", reward(value));
    EXPECT_EQ("updates[0].advantage is " + std::string(text) + ": it must be finite", advantage(value));
  }
  // Rewards and advantages may be of any size.
  for (const float allowed : {-1.0f, 2e9f}) EXPECT_EQ("", reward(allowed) + advantage(allowed));
}

TEST(DecodeRequest, RefusesACostThatIsNotANumber) {
  Request request;
  const auto failure = DecodeBuilt([](auto root) { root.initReportCost().setTrainingSeconds(NAN); }, &request);
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("training_seconds is nan"));
}

TEST(DecodeRequest, EndsTheConversationWhenThePointersLie) {
  // A root struct pointer that points far outside the message.
  const uint64_t words[2] = {0x0001000100ffff00, 0};
  Request request;
  const auto failure = DecodeRequest(words, 2, &request);
  ASSERT_TRUE(failure);
  EXPECT_TRUE(failure->ends_conversation);
  EXPECT_EQ(ErrorCode::kProtocolViolation, failure->code);
}

// The reply that an encoder appended, as text.
template <typename Encode>
std::string Encoded(Encode encode) {
  ReplyEncoder encoder;
  OutputQueue output;
  encode(encoder, output);
  int sockets[2];
  EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  boost::system::error_code error;
  while (!output.empty()) EXPECT_TRUE(output.SendSome(sockets[0], error));
  close(sockets[0]);
  std::string bytes;
  char chunk[4096];
  for (ssize_t got; (got = read(sockets[1], chunk, sizeof chunk)) > 0;) bytes.append(chunk, static_cast<size_t>(got));
  close(sockets[1]);
  Preamble preamble;
  std::memcpy(&preamble, bytes.data(), sizeof preamble);
  EXPECT_EQ("", CheckPreamble(preamble, kMaxReplyControlBytes, kMaxReplyPayloadBytes));
  EXPECT_EQ(bytes.size(), sizeof preamble + preamble.control_words * 8 + preamble.payload_bytes);
  std::vector<uint64_t> words(preamble.control_words);
  std::memcpy(words.data(), bytes.data() + sizeof preamble, words.size() * 8);
  ControlReader reader(words.data(), preamble.control_words);
  return kj::str(reader.Root<schema::Reply>()).cStr();
}

TEST(ReplyEncoder, SaysWhyAWaitEnded) {
  EXPECT_EQ("(id = 4, code = timedOut, waitReason = minSize, message = \"3 of 8 items present\", none = void)",
            Encoded([](ReplyEncoder& encoder, OutputQueue& output) {
              encoder.Failure(4, ErrorCode::kTimedOut, WaitReason::kMinSize, "3 of 8 items present", output);
            }));
}

TEST(ReplyEncoder, ListsDistinctFramesOnceAndSlotsByReference) {
  const std::string text = Encoded([](ReplyEncoder& encoder, OutputQueue& output) {
    SampleResult result;
    result.frames = {Frame::Allocate(64), Frame::Allocate(32)};
    for (Frame& frame : result.frames) std::memset(frame.mutable_data(), 0, frame.size());
    result.draws = {{0, 1, 0.5, 3, -1, 11}, {1, 1, 0.5, 2, -1, 12}, {0, 2, 0.5, 3, 0, 11, 0.25, 7}};
    result.step = 20;
    encoder.Sample(5, result, output);
  });
  EXPECT_THAT(text, HasSubstr("frameBytes = [64, 32]"));
  EXPECT_THAT(text, HasSubstr("(frame = 0, drawCount = 2, probability = 0.5, staleness = 3, stepsSinceLastUse = 0, item = 11, "
                              "reward = 0.25, revision = 7, "));
}

TEST(ReplyEncoder, AnInsertSaysWhatItRefusedAndOnlyThen) {
  const auto encoded = [](const InsertResult& result) {
    return Encoded([&](ReplyEncoder& encoder, OutputQueue& output) { encoder.Insert(7, result, output); });
  };
  InsertResult result;
  result.first_item = 11;
  result.count = 4;
  result.live = 9;
  EXPECT_THAT(encoded(result), HasSubstr("insert = (firstItem = 11, count = 4, duplicate = false, level = memory, live = 9, "
                                         "refused = 0"));
  result.refused = 2;
  EXPECT_THAT(encoded(result), HasSubstr("insert = (firstItem = 11, count = 4, duplicate = false, level = memory, live = 9, "
                                         "refused = 2"));
}

TEST(ReplyEncoder, ABreakdownListsTheReasonsThatOccurred) {
  ServerStats stats;
  BufferStats& buffer = stats.buffers.emplace_back();
  BreakdownRow& row = buffer.lengths.emplace_back();
  row.name = "129-256";
  row.live = 5;
  row.inserted = 8;
  row.withheld = 2;
  row.removed[static_cast<size_t>(RemoveReason::kMaxDraws)] = 3;
  EXPECT_THAT(Encoded([&](ReplyEncoder& encoder, OutputQueue& output) { encoder.Stats(1, stats, output); }),
              HasSubstr("lengths = [(name = \"129-256\", live = 5, inserted = 8, withheld = 2, removed = [(name = "
                        "\"max_draws\", count = 3)])]"));
}

TEST(ReplyEncoder, ListsPromptsAndSaysWhetherThereAreMore) {
  const std::vector<PromptOutcomes> prompts = {{3, 8, 6, 2, 2.5}, {7, 1, 0, 0, -1}};
  EXPECT_EQ(
      "(id = 9, code = ok, waitReason = none, history = (prompts = ["
      "(datasetIndex = 3, rollouts = 8, scored = 6, correct = 2, rewardSum = 2.5), "
      "(datasetIndex = 7, rollouts = 1, scored = 0, correct = 0, rewardSum = -1)], more = true))",
      Encoded([&](ReplyEncoder& encoder, OutputQueue& output) { encoder.History(9, prompts, true, output); }));
  const std::vector<PromptOutcomes> page(kMaxPromptsListed);
  Encoded([&](ReplyEncoder& encoder, OutputQueue& output) { encoder.History(9, page, true, output); });
}

TEST(ReplyEncoder, FitsTheLargestReplies) {
  Encoded([](ReplyEncoder& encoder, OutputQueue& output) {
    std::vector<PolicyVersion> versions(kMaxVersionsListed / 8);
    for (PolicyVersion& version : versions) {
      version.run_id = version.label = std::string(kMaxIdBytes, 'r');
      version.uri = std::string(kMaxUriBytes, 'u');
    }
    // A socketpair holds about 200 KB: this many fit.
    versions.resize(100);
    encoder.Versions(1, versions, output);
  });
  ServerStats stats;
  stats.requests.assign(static_cast<size_t>(Verb::kCount), 1);
  stats.errors.assign(static_cast<size_t>(ErrorCode::kCount), 1);
  for (int i = 0; i < 8; ++i) {
    BufferStats& buffer = stats.buffers.emplace_back();
    buffer.name = std::string(kMaxBufferNameBytes, 'b');
    buffer.staleness = buffer.reuse_gap = Histogram(kStepBounds);
    buffer.item_draws = Histogram(kDrawBounds);
    BreakdownRow row;
    row.name = std::string(kMaxIdBytes, 's');
    row.removed.fill(1);
    // The sources of all would not fit into a socketpair.
    buffer.sources.assign(i == 0 ? 64 : 0, row);
    buffer.lengths.assign(11, row);
    buffer.draws.assign(11, row);
    buffer.options.parts = kMaxPartViews;
    for (uint32_t part = 0; part < kMaxPartViews; ++part) buffer.views.emplace_back("part " + std::to_string(part), part);
  }
  Encoded([&](ReplyEncoder& encoder, OutputQueue& output) { encoder.Stats(1, stats, output); });
}

}  // namespace
}  // namespace replay::server
