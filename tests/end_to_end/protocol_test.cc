// The protocol against the real daemon, byte by byte: what a broken, lying, slow or vanishing client can do, and what others then
// still get.

#include <signal.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "schema/validate.h"
#include "tests/support/daemon.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitized.h"
#include "tests/support/wire_words.h"

namespace replay::test {
namespace {

using std::chrono::steady_clock;

// The core of the suite runs with the buffers on the connections' thread and on others.
class Protocol : public testing::TestWithParam<int> {
 protected:
  DaemonOptions Options(DaemonOptions options = {}) const {
    options.io_threads = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(IoThreads, Protocol, testing::Values(1, 3),
                         [](const auto& name) { return std::to_string(name.param); });

// A request with its control words and payload size forged. `preamble` and `words` start as those of `request`.
Bytes Forge(const Bytes& request, const std::function<void(Preamble&, std::vector<uint64_t>&)>& forge) {
  Preamble preamble;
  std::memcpy(&preamble, request.data(), sizeof preamble);
  std::vector<uint64_t> words(preamble.control_words);
  std::memcpy(words.data(), request.data() + sizeof preamble, words.size() * 8);
  const Bytes payload(request.begin() + static_cast<std::ptrdiff_t>(sizeof preamble + words.size() * 8), request.end());
  forge(preamble, words);
  const auto* head = reinterpret_cast<const uint8_t*>(&preamble);
  const auto* control = reinterpret_cast<const uint8_t*>(words.data());
  return Concatenate({Bytes(head, head + sizeof preamble), Bytes(control, control + words.size() * 8), payload});
}

// Every verb once, with ids that are new in each round and equally long.
struct Conversation {
  explicit Conversation(int round) {
    char id[16];
    std::snprintf(id, sizeof id, "r%06d", round);
    requests = {HelloBytes(1),
                PingBytes(2),
                InsertBytes({.id = 3, .timeout_ms = 5000, .writer = static_cast<uint64_t>(round) + 1, .sequence = 1},
                            MakeGroup(2, {.id = id, .length = 3})),
                SampleBytes({.id = 4, .timeout_ms = 5000, .count = 2}),
                GetBytes(5, "rollouts", {std::string(id) + "-0", std::string(id) + "-1", "none"}),
                StatsBytes(6),
                PublishBytes(7, round, round),
                WaitVersionBytes(8, 5000, round - 1),
                DeleteBytes(9, "rollouts", {std::string(id) + "-0", std::string(id) + "-1"}),
                SampleBytes({.id = 10, .buffer = "nowhere"}),
                PingBytes(11)};
    for (const Bytes& request : requests) bytes.insert(bytes.end(), request.begin(), request.end());
  }
  static std::string Expected() {
    return "1 ok, 2 ok, 3 ok, 4 ok 2 draws, 5 ok 2 found, 6 ok, 7 ok, 8 ok, 9 ok 2 deleted, "
           "10 notFound: there is no buffer \"nowhere\", 11 ok";
  }
  std::string ReadReplies(RawClient& client) const {
    std::string text;
    for (size_t i = 0; i < requests.size(); ++i) {
      const RawReply reply = client.Receive();
      text += (i ? ", " : "") + reply.ToString();
      if (reply.get().isSample()) text += " " + std::to_string(reply.get().getSample().getDraws().size()) + " draws";
      if (reply.get().isGet()) text += " " + std::to_string(reply.get().getGet().getFound().size()) + " found";
      if (reply.get().isDelete()) text += " " + std::to_string(reply.get().getDelete().getDeleted()) + " deleted";
      reply.Frames();
    }
    return text;
  }
  std::vector<Bytes> requests;
  Bytes bytes;
};

// --- However the bytes arrive --------------------------------------------------------------------------------------------------

TEST_P(Protocol, AConversationIsTheSameSplitAtEveryByte) {
  Daemon daemon(Options());
  RawClient other(daemon.address(), true);
  const size_t size = Conversation(0).bytes.size();
  for (size_t split = 0; split <= size; ++split) {
    const Conversation conversation(static_cast<int>(split));
    const std::span<const uint8_t> bytes = conversation.bytes;
    RawClient client(split % 2 ? daemon.address() : daemon.unix_address());
    ASSERT_TRUE(client.Send(bytes.first(split)));
    // By the other's answer the daemon has looked at the first part.
    if (split % 16 == 0) {
      ASSERT_TRUE(other.Call(PingBytes(1)).ok());
    }
    ASSERT_TRUE(client.Send(bytes.subspan(split)));
    ASSERT_EQ(Conversation::Expected(), conversation.ReadReplies(client)) << "split at " << split << " of " << size;
  }
  EXPECT_EQ("", StatsOf(other).Violation());
  EXPECT_EQ(0u, StatsOf(other).items);
}

TEST_P(Protocol, AConversationIsTheSameByteByByte) {
  Daemon daemon(Options());
  const Conversation conversation(1);
  RawClient client(daemon.address());
  for (const uint8_t& byte : conversation.bytes) ASSERT_TRUE(client.Send({&byte, 1}));
  EXPECT_EQ(Conversation::Expected(), conversation.ReadReplies(client));
}

TEST_P(Protocol, WhatIsCutOffAtAnyByteLeavesNothingBehind) {
  Daemon daemon(Options());
  RawClient other(daemon.address(), true);
  const uint64_t baseline_bytes = ServerStatsOf(other).memory_used_bytes;
  const Bytes insert = InsertBytes({.id = 2, .timeout_ms = 1000}, MakeGroup(3, {.id = "g", .length = 20}));
  const Bytes whole = Concatenate({HelloBytes(), insert});
  for (size_t kept = 0; kept < whole.size(); ++kept) {
    RawClient client(kept % 3 ? daemon.address() : daemon.unix_address());
    ASSERT_TRUE(client.Send(std::span<const uint8_t>(whole).first(kept)));
    switch (kept % 4) {
      case 0:
        client.Reset();
        break;
      case 1:
        client.HalfClose();
        ASSERT_TRUE(client.WaitClosed()) << "kept " << kept;
        break;
      default:
        client.Close();
    }
    if (kept % 32 == 0) {
      ASSERT_TRUE(other.Call(PingBytes(5)).ok());
    }
  }
  // Some may still wait to be accepted, or to become a connection of their thread.
  const auto deadline = steady_clock::now() + kReplyDeadline;
  for (int settled = 0; settled < 5 && steady_clock::now() < deadline;) {
    const ServerCounts server = ServerStatsOf(other);
    settled = server.accepted == whole.size() + 1 && server.connections == 1 ? settled + 1 : 0;
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_EQ(1u, ServerStatsOf(other).connections);
  EXPECT_EQ(baseline_bytes, ServerStatsOf(other).memory_used_bytes);
  const BufferCounts counts = StatsOf(other);
  EXPECT_EQ(0u, counts.items);
  EXPECT_EQ(0u, counts.accepted);
  EXPECT_EQ(0u, counts.producers);
  EXPECT_EQ("", counts.Violation());
  // The very bytes, whole, are fine.
  RawClient client(daemon.address());
  client.Send(whole);
  EXPECT_TRUE(client.Receive().ok());
  EXPECT_EQ(3u, client.Receive().get().getInsert().getCount());
}

TEST_P(Protocol, LargeInsertsAndSamplesKeepEveryByte) {
  Daemon daemon(Options());
  RawClient client(daemon.unix_address(), true);
  // Below and above the size that is read straight into its block, and beyond one input buffer, in one pipelined burst.
  std::map<std::string, Frame> sent;
  Bytes burst;
  uint64_t id = 10;
  for (uint32_t length : {2u, 1000u, 2500u, 3500u, 29'000u, 29'200u, 200'000u, 4u, 600'000u, 7u}) {
    const std::string name = "t" + std::to_string(length);
    const Frame frame = MakeTrajectory({.id = name, .length = length, .rich = true});
    sent.emplace(name, frame);
    burst = Concatenate({burst, InsertBytes({.id = id++, .timeout_ms = 10'000}, {frame}), PingBytes(id++)});
  }
  std::thread writer([&] { client.Send(burst); });
  for (uint64_t expected = 10; expected < id; ++expected)
    EXPECT_EQ(std::to_string(expected) + " ok", client.Receive().ToString());
  writer.join();
  for (const auto& [name, frame] : sent) {
    const RawReply reply = client.Call(GetBytes(7, "rollouts", {name}));
    ASSERT_EQ(1u, reply.Frames().size()) << reply.ToString();
    const Frame got = reply.Frames()[0];
    EXPECT_TRUE(std::equal(frame.bytes().begin(), frame.bytes().end(), got.bytes().begin(), got.bytes().end())) << name;
  }
  const RawReply batch = client.Call(SampleBytes({.count = 200}));
  ASSERT_TRUE(batch.ok()) << batch.ToString();
  for (const Frame& frame : batch.Frames()) {
    TrajectoryFacts facts;
    EXPECT_EQ("", ValidateTrajectory(frame.bytes(), {}, &facts));
  }
}

TEST_P(Protocol, RequestsSentAheadAreAnsweredInOrderWithTheirIds) {
  Daemon daemon(
      Options({.buffers = R"([{"name": "rollouts", "capacity_items": 100000}, {"name": "other"}, {"name": "third"}])"}));
  RawClient client(daemon.address(), true);
  Bytes all;
  std::vector<std::string> expected;
  std::mt19937_64 random(5);
  for (uint64_t id = 1000; id < 2000; ++id) {
    const std::string buffer = random() % 2 ? "rollouts" : random() % 2 ? "other" : "third";
    const std::string name = "p" + std::to_string(id);
    Bytes request;
    std::string answer = " ok";
    switch (random() % 5) {
      case 0:
        request = PingBytes(id);
        break;
      case 1:
        request = StatsBytes(id, buffer);
        break;
      case 2:
        request = SampleBytes({.id = id, .buffer = "absent"});
        answer = " notFound: there is no buffer \"absent\"";
        break;
      default:
        request = InsertBytes({.id = id, .buffer = buffer, .timeout_ms = 5000}, {MakeTrajectory({.id = name})});
    }
    all.insert(all.end(), request.begin(), request.end());
    expected.push_back(std::to_string(id) + answer);
  }
  std::thread writer([&] { client.Send(all); });
  for (const std::string& answer : expected) EXPECT_EQ(answer, client.Receive().ToString());
  writer.join();
}

TEST_P(Protocol, ARequestThatStopsInTheMiddleHoldsBackNoReply) {
  Daemon daemon(Options());
  for (const std::string buffer : {"rollouts", "nowhere"}) {  // to be inserted, and only to be skipped
    for (const uint32_t length : {20u, 30'000u}) {  // a payload that the input buffer holds whole, and one it does not
      for (const double part : {0.01, 0.2, 0.5, 0.999}) {
        const std::string id = std::to_string(length) + "-" + std::to_string(part);
        const Bytes insert =
            InsertBytes({.id = 2, .buffer = buffer, .timeout_ms = 5000}, {MakeTrajectory({.id = id, .length = length})});
        const auto cut = static_cast<size_t>(part * static_cast<double>(insert.size()));
        RawClient client(daemon.address(), true);
        Bytes bytes = PingBytes(1);
        bytes.insert(bytes.end(), insert.begin(), insert.begin() + static_cast<std::ptrdiff_t>(cut));
        ASSERT_TRUE(client.Send(bytes));
        ASSERT_EQ("1 ok", client.Receive().ToString()) << "cut at " << cut << " of " << insert.size();
        ASSERT_TRUE(client.Send(std::span(insert).subspan(cut)));
        EXPECT_EQ(buffer == "rollouts" ? "2 ok" : "2 notFound: there is no buffer \"nowhere\"", client.Receive().ToString());
      }
    }
  }
}

TEST_P(Protocol, ARequestThatWaitsHoldsBackThoseBehindItAndNobodyElse) {
  Daemon daemon(Options());
  RawClient waiting(daemon.address(), true), other(daemon.address(), true);
  waiting.Send(Concatenate({SampleBytes({.id = 5, .timeout_ms = 60'000}), PingBytes(6)}));
  EXPECT_EQ(1u, StatsUntil(other, [](const auto& c) { return c.waiting_samples == 1; }).waiting_samples);
  EXPECT_FALSE(waiting.Readable(milliseconds(50)));
  EXPECT_TRUE(other.Call(InsertBytes({}, {MakeTrajectory()})).ok());
  EXPECT_EQ("5 ok", waiting.Receive().ToString());
  EXPECT_EQ("6 ok", waiting.Receive().ToString());
}

// --- Nonsense ------------------------------------------------------------------------------------------------------------------

// What ends a conversation: one last reply that says why, then the close. And others are still served.
void ExpectEnds(Daemon& daemon, bool hello, const Bytes& bytes, const std::string& reply) {
  RawClient other(daemon.address(), true);
  RawClient client(daemon.address(), hello);
  client.Send(bytes);
  std::string got;
  try {
    got = client.Receive().ToString();
  } catch (const NoReply& none) {
    got = none.what();
  }
  EXPECT_EQ(reply, got);
  EXPECT_TRUE(client.WaitClosed()) << reply;
  EXPECT_TRUE(other.Call(PingBytes(1)).ok());
}

TEST_P(Protocol, WhatBreaksTheProtocolIsAnsweredOnceAndClosed) {
  Daemon daemon(Options());
  const Bytes ping = PingBytes(4);
  const auto preamble_with = [&](auto change) { return Forge(ping, [&](Preamble& p, auto&) { change(p); }); };
  for (const bool hello : {false, true}) {
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.magic = 1; }),
               "0 protocolViolation: magic is not \"RPLY\": this is not the replay protocol");
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.version = 2; }),
               "0 unsupportedVersion: protocol version 2 is not supported, only 1");
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.flags = 1; }), "0 protocolViolation: flags is 1: it must be 0");
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.reserved = 9; }),
               "0 protocolViolation: reserved is 9: it must be 0");
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.control_words = 0; }),
               "0 protocolViolation: control_words is 0: a message has a control part");
    ExpectEnds(daemon, hello, preamble_with([](Preamble& p) { p.control_words = ~0u; }),
               std::string("0 protocolViolation: control_words is 4294967295: at most ") + (hello ? "16384" : "2048") +
                   " are allowed here");
  }
  ExpectEnds(daemon, false, preamble_with([](Preamble& p) { p.control_words = 2049; }),
             "0 protocolViolation: control_words is 2049: at most 2048 are allowed here");
  ExpectEnds(daemon, true, preamble_with([](Preamble& p) { p.control_words = 16'385; }),
             "0 protocolViolation: control_words is 16385: at most 16384 are allowed here");
  ExpectEnds(daemon, false, preamble_with([](Preamble& p) { p.payload_bytes = 8; }),
             "0 protocolViolation: payload_bytes is 8: at most 0 are allowed");
  ExpectEnds(daemon, true, preamble_with([](Preamble& p) { p.payload_bytes = kMaxRequestPayloadBytes + 8; }),
             "0 protocolViolation: payload_bytes is 268435464: at most 268435456 are allowed");
  ExpectEnds(daemon, true, preamble_with([](Preamble& p) { p.payload_bytes = ~0ull; }),
             "0 protocolViolation: payload_bytes is 18446744073709551615: at most 268435456 are allowed");
  ExpectEnds(daemon, true, preamble_with([](Preamble& p) { p.payload_bytes = 12; }),
             "0 protocolViolation: payload_bytes is 12: it must be a multiple of 8");
  ExpectEnds(daemon, true, preamble_with([](Preamble& p) { p.payload_bytes = 8; }),
             "4 protocolViolation: payload_bytes is 8: only Insert and Update have a payload");
  ExpectEnds(daemon, false, PingBytes(7), "7 protocolViolation: the first request of a connection is Hello");
  ExpectEnds(daemon, false, StatsBytes(8), "8 protocolViolation: the first request of a connection is Hello");
  ExpectEnds(daemon, false,
             RequestBytes(9, 0, [](schema::Request::Builder request) { request.initHello().setProtocolVersion(7); }),
             "9 unsupportedVersion: protocol version 7 is not supported, only 1");
}

TEST_P(Protocol, OtherProtocolsAndPayloadBeforeControlAreRefused) {
  Daemon daemon(Options());
  const std::string refused = "0 protocolViolation: magic is not \"RPLY\": this is not the replay protocol";
  const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ExpectEnds(daemon, false, Bytes(http.begin(), http.end()), refused);
  const std::string redis = "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n";
  ExpectEnds(daemon, false, Bytes(redis.begin(), redis.end()), refused);
  ExpectEnds(daemon, false, Bytes(64, 0xff), refused);
  const Frame frame = MakeTrajectory();
  ExpectEnds(daemon, true, Bytes(frame.bytes().begin(), frame.bytes().end()), refused);
  // Control before preamble.
  const Bytes ping = PingBytes(1);
  ExpectEnds(daemon, true, Concatenate({Bytes(ping.begin() + 24, ping.end()), Bytes(24, 0)}), refused);
}

TEST_P(Protocol, RepliesToWhatCameBeforeTheNonsenseStillArrive) {
  Daemon daemon(Options());
  RawClient client(daemon.address());
  client.Send(Concatenate({HelloBytes(1), PingBytes(2), Bytes(4096, 0xee)}));
  EXPECT_EQ("1 ok", client.Receive().ToString());
  EXPECT_EQ("2 ok", client.Receive().ToString());
  EXPECT_EQ(schema::ErrorCode::PROTOCOL_VIOLATION, client.Receive().code());
  EXPECT_TRUE(client.WaitClosed());
}

TEST_P(Protocol, ARequestThatAsksForNonsenseIsAnsweredAndTheConversationGoesOn) {
  Daemon daemon(Options());
  RawClient client(daemon.address(), true);
  const auto answer = [&](const Bytes& request) {
    const std::string text = client.Call(request).ToString();
    EXPECT_TRUE(client.Call(PingBytes(1)).ok()) << text;
    return text;
  };
  const std::vector<Frame> frames = {MakeTrajectory({.id = "a"}), MakeTrajectory({.id = "b"})};
  const auto with_sizes = [&](std::vector<uint32_t> sizes) {
    return RequestBytes(
        2, 0,
        [&](schema::Request::Builder request) {
          auto insert = request.initInsert();
          insert.setBuffer("rollouts");
          auto list = insert.initFrameBytes(static_cast<uint32_t>(sizes.size()));
          for (uint32_t i = 0; i < list.size(); ++i) list.set(i, sizes[i]);
        },
        frames);
  };
  const auto first = static_cast<uint32_t>(frames[0].size()), second = static_cast<uint32_t>(frames[1].size());
  const std::string sum = std::to_string(first + second);
  EXPECT_EQ("2 invalidArgument: frame_bytes is empty: an Insert has at least one trajectory", answer(with_sizes({})));
  EXPECT_EQ(
      "2 invalidArgument: frame_bytes add up to " + std::to_string(first) + ", payload_bytes is " + sum + ": they must agree",
      answer(with_sizes({first})));
  EXPECT_EQ("2 invalidArgument: frame_bytes add up to " + std::to_string(first + second + 8) + ", payload_bytes is " + sum +
                ": they must agree",
            answer(with_sizes({first, second + 8})));
  for (uint32_t bad : {0u, 8u, 16u, first + 4, 0xfffffff8u, (64u << 20) + 8}) {
    EXPECT_EQ(
        "2 invalidArgument: frame_bytes[0] is " + std::to_string(bad) + ": it must be a multiple of 8 from 24 to 67108864",
        answer(with_sizes({bad, first + second - bad})));
  }
  // The sizes add up but cut the frames in the wrong place.
  const std::string cut = answer(with_sizes({first - 8, second + 8}));
  EXPECT_TRUE(cut.starts_with("2 invalidArgument: trajectories[0]: frame says its segment has ")) << cut;
  const std::string many = answer(with_sizes(std::vector<uint32_t>(kMaxTrajectoriesPerInsert + 1, 24)));
  EXPECT_EQ("2 invalidArgument: frame_bytes has 8193 entries: at most 8192 are allowed", many);
  EXPECT_EQ("2 notFound: there is no buffer \"nowhere\"", answer(InsertBytes({.buffer = "nowhere"}, frames)));
  EXPECT_EQ("2 invalidArgument: trajectory_id: trajectories 0 and 1 of the request have the same one",
            answer(InsertBytes({}, {frames[0], frames[0]})));
  EXPECT_EQ(
      "2 invalidArgument: group_size: the group of trajectory 0 has 3 members, the request holds 2: a group is inserted whole",
      answer(InsertBytes({}, {MakeGroup(3, {.id = "g"})[0], MakeGroup(3, {.id = "g"})[1]})));
  EXPECT_EQ("2 invalidArgument: trajectories[1]: loss_mask has 3 entries, token_ids has 16: they must agree",
            answer(InsertBytes({}, {frames[0], MakeTrajectory({.id = "c", .edit = [](auto t) { t.initLossMask(3); }})})));
  Frame corrupted = Frame::CopyOf(frames[1].bytes());
  corrupted.mutable_data()[corrupted.size() / 2] ^= 1;
  EXPECT_EQ("2 corrupted: trajectories[1]: the frame's checksum does not match its bytes",
            answer(InsertBytes({}, {frames[0], corrupted})));
  EXPECT_EQ("2 invalidArgument: sequence is 0: a writer numbers its requests from 1",
            answer(InsertBytes({.writer = 7}, frames)));
  EXPECT_EQ("3 invalidArgument: count is 0: a Sample draws at least 1", answer(SampleBytes({.count = 0})));
  EXPECT_EQ("3 invalidArgument: count is 65537: at most 65536 are allowed", answer(SampleBytes({.count = 65'537})));
  EXPECT_EQ("4 invalidArgument: limit is 0: without ids it must be at least 1", answer(ScanBytes(4, "rollouts", 0, 0)));
  EXPECT_EQ("5 invalidArgument: ids has 513 entries: at most 512 are allowed",
            answer(DeleteBytes(5, "rollouts", std::vector<std::string>(513, "x"))));
  EXPECT_EQ("5 invalidArgument: buffer has 65 bytes: at most 64 are allowed", answer(DeleteBytes(5, std::string(65, 'x'), {})));
  const Bytes unknown = Forge(PingBytes(6), [](Preamble&, std::vector<uint64_t>& words) {
    reinterpret_cast<uint16_t*>(&words[2])[2] = 4711;  // the union's tag, behind id and timeoutMs
  });
  EXPECT_EQ("6 invalidArgument: the verb has number 4711, which this server does not know", answer(unknown));
  // Nothing of all that was stored.
  const BufferCounts counts = StatsOf(client);
  EXPECT_EQ(0u, counts.items);
  EXPECT_EQ(0u, counts.accepted);
  EXPECT_EQ("", counts.Violation());
}

TEST_P(Protocol, ControlBytesThatLieAreRefusedQuickly) {
  Daemon daemon(Options());
  RawClient other(daemon.address(), true);
  // One text pointed to by each of the ids; a list of half a billion voids; far pointers; pointers beyond the end.
  const Bytes get = GetBytes(4, "rollouts", {"a", "b"});
  const auto forged_ids = [&](auto forge) {
    return Forge(get, [&](Preamble& preamble, std::vector<uint64_t>& words) {
      const size_t request = 1;
      const size_t struct_at = request + ((words[0] >> 32) & 0xffff);                        // the union's pointer
      const size_t get_at = struct_at + 1 + (static_cast<uint32_t>(words[struct_at]) >> 2);  // Get's data
      const size_t ids_pointer = get_at + ((words[struct_at] >> 32) & 0xffff) + 1;
      forge(words, ids_pointer);
      preamble.control_words = static_cast<uint32_t>(words.size());
    });
  };
  const std::vector<Bytes> lies = {
      forged_ids([](auto& words, size_t at) { words[at] = ListPointer(0, ElementSize::kVoid, (1u << 29) - 1); }),
      forged_ids([](auto& words, size_t at) { words[at] = ListPointer(1000, ElementSize::kPointer, 2); }),
      forged_ids([](auto& words, size_t at) { words[at] = FarPointer(static_cast<uint32_t>(at), 0, false); }),
      forged_ids([](auto& words, size_t at) { words[at] = FarPointer(0, 4000, true); }),
      forged_ids([](auto& words, size_t at) {  // amplification: 500 pointers to one text of 64 KB
        const size_t first = words.size();
        words.resize(first + 500 + 8192);
        words[at] = ListPointer(static_cast<int32_t>(first - at - 1), ElementSize::kPointer, 500);
        for (size_t i = first; i < first + 500; ++i)
          words[i] = ListPointer(static_cast<int32_t>(first + 500 - i - 1), ElementSize::kByte, 65'536);
      })};
  for (const Bytes& lie : lies) {
    RawClient client(daemon.address(), true);
    const auto before = steady_clock::now();
    client.Send(lie);
    const RawReply reply = client.Receive();
    EXPECT_TRUE(reply.code() == schema::ErrorCode::PROTOCOL_VIOLATION || reply.code() == schema::ErrorCode::INVALID_ARGUMENT)
        << reply.ToString();
    EXPECT_LT(steady_clock::now() - before, milliseconds(1000));
  }
  EXPECT_TRUE(other.Call(PingBytes(1)).ok());
}

TEST_P(Protocol, RandomMutationsOfEveryRequestEndInAReplyOrAClose) {
  Daemon daemon(Options());
  RawClient other(daemon.address(), true);
  const uint64_t seed = 17;
  std::mt19937_64 random(seed);
  const std::vector<Bytes> requests = Conversation(0).requests;
  for (int i = 0; i < 1500; ++i) {
    RawClient client(daemon.unix_address(), true);
    const Bytes mutated = Forge(requests[random() % requests.size()], [&](Preamble& preamble, std::vector<uint64_t>& words) {
      const size_t words_before = words.size();
      MutateWords(&words, random);
      // Mostly an honest preamble around lying words; now and then the preamble lies too.
      preamble.control_words = static_cast<uint32_t>(words.size());
      if (random() % 16 == 0) reinterpret_cast<uint8_t*>(&preamble)[random() % 24] ^= static_cast<uint8_t>(random());
      if (words.empty()) preamble.control_words = static_cast<uint32_t>(words_before);
    });
    // The mutation may have set a long wait: closing our side ends it. What counts is that the daemon lets go.
    ASSERT_TRUE(client.Send(Concatenate({mutated, PingBytes(77)}))) << "seed " << seed << " round " << i;
    client.HalfClose();
    ASSERT_TRUE(client.WaitClosed()) << "seed " << seed << " round " << i;
    if (i % 50 == 0) {
      ASSERT_TRUE(other.Call(PingBytes(1)).ok());
    }
  }
  EXPECT_EQ("", StatsOf(other).Violation());
}

// --- Waiting -------------------------------------------------------------------------------------------------------------------

struct Timed {
  std::string reply;
  double ms;
};
Timed TimeCall(RawClient& client, const Bytes& request) {
  const auto before = steady_clock::now();
  std::string reply = client.Call(request).ToString();
  return {std::move(reply), std::chrono::duration<double, std::milli>(steady_clock::now() - before).count()};
}

TEST_P(Protocol, AWaitEndsAtItsDeadlineWithItsReason) {
  Daemon daemon(Options({.buffers = R"([
      {"name": "rollouts", "min_size": 8},
      {"name": "paced", "replay_ratio": 1.0, "tolerance": 4, "max_draws_per_sample": 4, "max_insert": 4, "min_size": 2}])"}));
  RawClient client(daemon.address(), true);
  const auto now = TimeCall(client, SampleBytes({}));
  EXPECT_EQ("3 timedOut minSize: 0 of 8 items present", now.reply);
  const auto later = TimeCall(client, SampleBytes({.timeout_ms = 60}));
  EXPECT_EQ("3 timedOut minSize: 0 of 8 items present", later.reply);
  EXPECT_GE(later.ms, 59.0);
  EXPECT_LT(later.ms, 1000.0);

  // Pacing: after 8 trajectories nobody drew from, inserts wait; after draws down to the band's edge, samples wait.
  int number = 0;
  RawReply reply = client.Call(PingBytes(0));
  do {
    reply = client.Call(InsertBytes({.buffer = "paced"}, {MakeTrajectory({.id = "p" + std::to_string(number++)})}));
  } while (reply.ok() && number < 100);
  EXPECT_EQ(schema::ErrorCode::TIMED_OUT, reply.code());
  EXPECT_EQ(schema::WaitReason::PACING, reply.reason()) << reply.ToString();
  const auto paced_insert =
      TimeCall(client, InsertBytes({.buffer = "paced", .timeout_ms = 60}, {MakeTrajectory({.id = "last"})}));
  EXPECT_TRUE(paced_insert.reply.starts_with("2 timedOut pacing: ")) << paced_insert.reply;
  EXPECT_GE(paced_insert.ms, 59.0);
  int samples = 0;
  do {
    reply = client.Call(SampleBytes({.buffer = "paced"}));
  } while (reply.ok() && ++samples < 100);
  EXPECT_EQ(schema::WaitReason::PACING, reply.reason()) << reply.ToString();
  EXPECT_GT(samples, 4);
  EXPECT_LT(samples, 20);
  EXPECT_EQ("", StatsOf(client, "paced").Violation());
}

TEST_P(Protocol, AWaitThatNoProducerCanEndSaysSo) {
  Daemon daemon(Options({.buffers = R"([{"name": "rollouts", "min_size": 8}])", .server = R"("no_producer_after": "50ms")"}));
  RawClient client(daemon.address(), true);
  const std::string reply = client.Call(SampleBytes({.timeout_ms = 300})).ToString();
  EXPECT_TRUE(reply.starts_with("3 timedOut noProducer: 0 of 8 items present; no connection has inserted for ")) << reply;
}

TEST_P(Protocol, AnInsertBeyondTheMemoryLimitWaitsForItAndSaysSo) {
  Daemon daemon(Options({.buffers = R"([{"name": "rollouts", "capacity_bytes": "1MiB"}])",
                         .rest = R"("memory": {"limit": "16MiB"}, "limits": {"in_flight_bytes": "8MiB"})"}));
  RawClient client(daemon.address(), true);
  // Three clients announce 5 MiB each and send nothing of it: what is reserved counts.
  const Frame large = MakeTrajectory({.id = "large", .length = 500'000});
  const Bytes insert = InsertBytes({.timeout_ms = 60'000}, {large});
  std::vector<RawClient> holders;
  const size_t head = insert.size() - large.size();
  for (int i = 0; i < 3; ++i) {
    holders.emplace_back(daemon.address(), true);
    holders.back().Send(std::span<const uint8_t>(insert).first(head));
  }
  const auto until = steady_clock::now() + kReplyDeadline;
  while (ServerStatsOf(client).memory_used_bytes < 2 * large.size() && steady_clock::now() < until) std::this_thread::yield();
  const Bytes mine = InsertBytes({.timeout_ms = 100}, {MakeTrajectory({.id = "mine", .length = 500'000})});
  std::thread writer([&] { client.Send(mine); });
  const std::string reply = client.Receive().ToString();
  writer.join();
  EXPECT_TRUE(reply.starts_with("2 timedOut memory: ")) << reply;
  holders.clear();
  std::thread again(
      [&] { client.Send(InsertBytes({.timeout_ms = 20'000}, {MakeTrajectory({.id = "ok", .length = 50'000})})); });
  EXPECT_EQ("2 ok", client.Receive().ToString());
  again.join();
}

TEST_P(Protocol, ADisconnectedCallLeavesTheQueueAtOnce) {
  Daemon daemon(Options({.buffers = R"([
      {"name": "rollouts", "min_size": 8},
      {"name": "paced", "replay_ratio": 1.0, "tolerance": 4, "max_draws_per_sample": 4, "max_insert": 4, "min_size": 1}])"}));
  RawClient other(daemon.address(), true);
  RawReply reply = other.Call(PingBytes(0));
  for (int i = 0; i < 100 && reply.reason() != schema::WaitReason::PACING; ++i)
    reply = other.Call(InsertBytes({.buffer = "paced"}, {MakeTrajectory({.id = "p" + std::to_string(i)})}));
  const Bytes sample = SampleBytes({.timeout_ms = 600'000});
  const Bytes insert = InsertBytes({.buffer = "paced", .timeout_ms = 600'000}, {MakeTrajectory({.id = "late"})});
  // As much as a socket buffers. A close behind more than that reaches the daemon only once it reads on.
  const Bytes ahead =
      Concatenate({sample, PingBytes(8), InsertBytes({.timeout_ms = 600'000}, {MakeTrajectory({.length = 3000})})});
  for (const Bytes& call : {sample, ahead, insert}) {
    for (int how = 0; how < 3; ++how) {
      for (const bool tcp : {true, false}) {
        RawClient client(tcp ? daemon.address() : daemon.unix_address(), true);
        client.Send(call);
        const std::string buffer = call == insert ? "paced" : "rollouts";
        const auto waiting = [](const BufferCounts& counts) { return counts.waiting_samples + counts.waiting_inserts; };
        ASSERT_EQ(1u, waiting(StatsUntil(
                          other, [&](const auto& c) { return waiting(c) == 1; }, buffer)));
        if (how == 0) client.Close();
        if (how == 1) client.HalfClose();
        if (how == 2) client.Reset();
        const auto before = steady_clock::now();
        ASSERT_EQ(0u, waiting(StatsUntil(
                          other, [&](const auto& c) { return waiting(c) == 0; }, buffer)))
            << "how " << how << " tcp " << tcp << " bytes " << call.size();
        EXPECT_LT(steady_clock::now() - before, milliseconds(1000));
      }
    }
  }
}

// What decides a call and the end of its peer reach the daemon in one go: it is stopped while both happen.
TEST_P(Protocol, ACallMayBeDecidedInTheMomentItsPeerLeaves) {
  Daemon daemon(Options({.buffers = R"([{"name": "rollouts", "capacity_items": 1000, "min_size": 1, "max_draws": 1}])"}));
  RawClient writer(daemon.address(), true);
  for (int round = 0; round < 30; ++round) {
    std::vector<RawClient> samplers;
    for (int i = 0; i < 4; ++i) {
      samplers.emplace_back(i % 2 ? daemon.address() : daemon.unix_address(), true);
      samplers.back().Send(SampleBytes({.timeout_ms = 600'000}));
    }
    ASSERT_EQ(4u, StatsUntil(writer, [](const auto& c) { return c.waiting_samples == 4; }).waiting_samples);
    kill(daemon.pid(), SIGSTOP);
    writer.Send(InsertBytes({}, MakeGroup(4, {.id = "r" + std::to_string(round)})));
    samplers.clear();
    kill(daemon.pid(), SIGCONT);
    ASSERT_TRUE(writer.Receive().ok());
    const BufferCounts counts = StatsUntil(writer, [](const auto& c) { return c.waiting_samples == 0 && c.consumers == 0; });
    ASSERT_EQ(0u, counts.waiting_samples);
    ASSERT_EQ("", counts.Violation());
    writer.Call(DeleteBytes(9, "rollouts",
                            {"r" + std::to_string(round) + "-0", "r" + std::to_string(round) + "-1",
                             "r" + std::to_string(round) + "-2", "r" + std::to_string(round) + "-3"}));
  }
}

TEST_P(Protocol, DroppingABufferEndsTheCallsThatWaitForIt) {
  Daemon daemon(Options({.buffers = R"([
      {"name": "rollouts", "min_size": 8},
      {"name": "paced", "replay_ratio": 1.0, "tolerance": 4, "max_draws_per_sample": 4, "max_insert": 4, "min_size": 1}])"}));
  RawClient other(daemon.address(), true);
  RawReply reply = other.Call(PingBytes(0));
  for (int i = 0; i < 100 && reply.reason() != schema::WaitReason::PACING; ++i)
    reply = other.Call(InsertBytes({.buffer = "paced"}, {MakeTrajectory({.id = "p" + std::to_string(i)})}));
  std::vector<RawClient> samplers, writers;
  for (int i = 0; i < 10; ++i) {
    samplers.emplace_back(daemon.address(), true);
    samplers.back().Send(SampleBytes({.timeout_ms = 600'000}));
    writers.emplace_back(daemon.address(), true);
    writers.back().Send(
        InsertBytes({.buffer = "paced", .timeout_ms = 600'000}, {MakeTrajectory({.id = "w" + std::to_string(i)})}));
  }
  ASSERT_EQ(10u, StatsUntil(other, [](const auto& c) { return c.waiting_samples == 10; }).waiting_samples);
  ASSERT_EQ(10u, StatsUntil(
                     other, [](const auto& c) { return c.waiting_inserts == 10; }, "paced")
                     .waiting_inserts);
  EXPECT_EQ("5 ok", other.Call(DropBytes(5, "rollouts")).ToString());
  EXPECT_EQ("5 ok", other.Call(DropBytes(5, "paced")).ToString());
  for (RawClient& sampler : samplers)
    EXPECT_EQ("3 bufferDropped: buffer \"rollouts\" was dropped while the call waited", sampler.Receive().ToString());
  for (RawClient& writer : writers)
    EXPECT_EQ("2 bufferDropped: buffer \"paced\" was dropped while the call waited", writer.Receive().ToString());
  EXPECT_EQ("3 notFound: there is no buffer \"rollouts\"", samplers[0].Call(SampleBytes({})).ToString());
  EXPECT_EQ("5 notFound: there is no buffer \"paced\"", other.Call(DropBytes(5, "paced")).ToString());
  // Its memory is free again and its name as well.
  EXPECT_EQ(0u, ServerStatsOf(other).memory_used_bytes);
  const Bytes create = RequestBytes(6, 0, [](schema::Request::Builder request) {
    auto created = request.initCreateBuffer();
    created.setName("rollouts");
    created.initOptions().setCapacityItems(10);
  });
  EXPECT_EQ("6 ok", other.Call(create).ToString());
  EXPECT_TRUE(writers[0].Call(InsertBytes({}, {MakeTrajectory()})).ok());
}

TEST_P(Protocol, AFewOptionsAreEnoughToCreateABuffer) {
  Daemon daemon(Options({.buffers = "[]"}));
  RawClient client(daemon.address(), true);
  const auto create = [&](const std::string& name) {
    return client.Call(RequestBytes(6, 0, [&](schema::Request::Builder request) { request.initCreateBuffer().setName(name); }))
        .ToString();
  };
  EXPECT_EQ("6 ok", create("plain"));
  EXPECT_EQ("6 alreadyExists: buffer \"plain\" exists already", create("plain"));
  EXPECT_EQ("6 invalidArgument: buffer name has a character other than A-Z a-z 0-9 _ . -", create("../etc"));
  EXPECT_EQ("6 invalidArgument: buffer name has 0 bytes: it must have 1 to 64", create(""));
  EXPECT_TRUE(client.Call(InsertBytes({.buffer = "plain"}, {MakeTrajectory()})).ok());
  EXPECT_TRUE(client.Call(SampleBytes({.buffer = "plain"})).ok());
}

// --- Exactly once, versions ----------------------------------------------------------------------------------------------------

TEST_P(Protocol, ARepeatedInsertIsStoredOnceAndGetsTheFirstReceipt) {
  Daemon daemon(Options());
  RawClient client(daemon.address(), true);
  const Bytes insert = InsertBytes({.writer = 7, .sequence = 1}, MakeGroup(2, {.id = "a"}));
  const RawReply first = client.Call(insert);
  ASSERT_EQ("2 ok", first.ToString());
  EXPECT_FALSE(first.get().getInsert().getDuplicate());
  EXPECT_EQ(schema::AcknowledgementLevel::MEMORY, first.get().getInsert().getLevel());
  RawClient again(daemon.unix_address(), true);  // from another connection, as after a reconnect
  const RawReply second = again.Call(insert);
  ASSERT_EQ("2 ok", second.ToString());
  EXPECT_TRUE(second.get().getInsert().getDuplicate());
  EXPECT_EQ(first.get().getInsert().getFirstItem(), second.get().getInsert().getFirstItem());
  EXPECT_EQ(2u, second.get().getInsert().getCount());
  // The receipt outlives the items.
  EXPECT_EQ(2u, client.Call(DeleteBytes(3, "rollouts", {"a-0", "a-1"})).get().getDelete().getDeleted());
  EXPECT_TRUE(again.Call(insert).get().getInsert().getDuplicate());
  EXPECT_EQ(0u, StatsOf(client).items);
  // Once acknowledged, the receipt is gone and the writer is told so; as is a writer nobody knows.
  EXPECT_TRUE(
      client.Call(InsertBytes({.writer = 7, .sequence = 2, .acknowledged_through = 1}, {MakeTrajectory({.id = "b"})})).ok());
  EXPECT_EQ(schema::ErrorCode::WRITER_EXPIRED, client.Call(insert).code());
  EXPECT_EQ(schema::ErrorCode::WRITER_EXPIRED,
            client.Call(InsertBytes({.writer = 8, .sequence = 5}, {MakeTrajectory({.id = "c"})})).code());
  // The same id without a writer is another matter: it is live.
  EXPECT_EQ(schema::ErrorCode::ALREADY_EXISTS, client.Call(InsertBytes({}, {MakeTrajectory({.id = "b"})})).code());
  const BufferCounts counts = StatsOf(client);
  EXPECT_EQ("", counts.Violation());
  EXPECT_EQ(3u, counts.accepted);
  EXPECT_EQ(4u, counts.duplicate);
}

TEST_P(Protocol, VersionsOnlyGoForwardAndWakeThoseWhoWait) {
  Daemon daemon(Options());
  RawClient client(daemon.address(), true), waiter(daemon.address(), true), second(daemon.address(), true);
  EXPECT_EQ(schema::WaitReason::VERSION, client.Call(WaitVersionBytes(4, 0, std::nullopt)).reason());
  waiter.Send(WaitVersionBytes(4, 60'000, std::nullopt));
  second.Send(WaitVersionBytes(4, 60'000, 5));
  const auto waiting = [&] {
    return client.Call(RequestBytes(5, 0, [](auto r) { r.initWaiters(); })).get().getWaiters().getWaiters().size();
  };
  const auto until = steady_clock::now() + kReplyDeadline;
  while (waiting() < 2 && steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ("6 ok", client.Call(PublishBytes(6, 5, 50)).ToString());
  EXPECT_EQ(5, waiter.Receive().get().getVersion().getVersion());
  EXPECT_FALSE(second.Readable(milliseconds(50)));
  EXPECT_EQ("6 failedPrecondition", client.Call(PublishBytes(6, 5, 51)).ToString().substr(0, 20));
  EXPECT_EQ("6 failedPrecondition", client.Call(PublishBytes(6, 4, 51)).ToString().substr(0, 20));
  EXPECT_EQ("6 failedPrecondition", client.Call(PublishBytes(6, 6, 49)).ToString().substr(0, 20));
  EXPECT_EQ("6 ok", client.Call(PublishBytes(6, 1, 10, /*epoch=*/1)).ToString());
  const RawReply woken = second.Receive();
  EXPECT_EQ(1u, woken.get().getVersion().getEpoch());
  EXPECT_EQ(1, woken.get().getVersion().getVersion());
  EXPECT_EQ("6 failedPrecondition", client.Call(PublishBytes(6, 9, 90, /*epoch=*/0)).ToString().substr(0, 20));
  EXPECT_EQ(2u, client.Call(RequestBytes(7, 0, [](auto r) { r.initVersions(); })).get().getVersions().getVersions().size());
}

// --- Many at once --------------------------------------------------------------------------------------------------------------

TEST_P(Protocol, AGroupIsNeverSeenHalfInserted) {
  constexpr uint32_t kGroup = 4;
  Daemon daemon(Options({.buffers = R"([{"name": "rollouts", "capacity_items": 40}])"}));
  RawClient setup(daemon.address(), true);
  ASSERT_TRUE(setup.Call(InsertBytes({}, MakeGroup(kGroup, {.id = "first"}))).ok());
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> looked = 0;
  std::vector<std::thread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      RawClient client(w ? daemon.address() : daemon.unix_address(), true);
      for (int i = 0; !stop; ++i) {
        // Several groups in one request now and then, with bodies of many sizes.
        std::vector<Frame> frames =
            MakeGroup(kGroup, {.id = std::to_string(w) + "." + std::to_string(i), .length = 1u + i % 700});
        if (i % 3 == 0) {
          const auto more = MakeGroup(kGroup, {.id = std::to_string(w) + "." + std::to_string(i) + "+"});
          frames.insert(frames.end(), more.begin(), more.end());
        }
        ASSERT_EQ("2 ok", client.Call(InsertBytes({.timeout_ms = 5000}, frames)).ToString());
      }
    });
  }
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      RawClient client(r ? daemon.address() : daemon.unix_address(), true);
      while (!stop) {
        ASSERT_EQ(0u, StatsOf(client).items % kGroup);
        const RawReply scan = client.Call(ScanBytes(8, "rollouts", 0, 1000));
        std::map<std::string, std::set<uint32_t>> members;
        for (const Frame& frame : scan.Frames()) {
          FrameReader reader(frame.bytes());
          const auto trajectory = reader.Root<schema::Trajectory>();
          members[trajectory.getGroupId()].insert(trajectory.getIndexInGroup());
        }
        for (const auto& [group, indices] : members) ASSERT_EQ(kGroup, indices.size()) << group;
        const RawReply sample = client.Call(SampleBytes({.timeout_ms = 5000, .count = 16}));
        ASSERT_TRUE(sample.ok()) << sample.ToString();
        for (const auto& draw : sample.get().getSample().getDraws()) {
          const double inverse = 1 / draw.getProbability();
          ASSERT_EQ(0, static_cast<int64_t>(inverse + 0.5) % kGroup) << "drawn from " << inverse << " items";
        }
        ++looked;
      }
    });
  }
  // And clients that die in the middle of a group.
  const Bytes doomed = InsertBytes({}, MakeGroup(kGroup, {.id = "doomed", .length = 300}));
  const auto end = steady_clock::now() + milliseconds(1500);
  for (size_t i = 1; steady_clock::now() < end; ++i) {
    RawClient client(daemon.address(), true);
    client.Send(std::span<const uint8_t>(doomed).first((i * 97) % doomed.size()));
    if (i % 2) client.Reset();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(looked, 20u);
  RawClient client(daemon.address(), true);
  EXPECT_EQ(0u, client.Call(GetBytes(9, "rollouts", {"doomed-0", "doomed-1", "doomed-2", "doomed-3"})).Frames().size());
  EXPECT_EQ("", StatsOf(client).Violation());
}

TEST_P(Protocol, BuffersDoNotMixAndTheirCountsAddUp) {
  Daemon daemon(Options({.buffers = R"([{"name": "a", "capacity_items": 50}, {"name": "b", "capacity_items": 70},
                                        {"name": "c", "capacity_items": 1000, "max_draws": 2}])"}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      RawClient client(t ? daemon.address() : daemon.unix_address(), true);
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 600; ++i) {
        const std::string buffer(1, static_cast<char>('a' + random() % 3));
        const auto writer = static_cast<uint64_t>(t) * 10 + static_cast<uint64_t>(buffer[0] - 'a') + 1;
        switch (random() % 6) {
          case 0:
            client.Call(SampleBytes({.buffer = buffer, .count = static_cast<uint32_t>(1 + random() % 8)}));
            break;
          case 1:
            client.Call(DeleteBytes(4, buffer, {buffer + std::to_string(random() % 300)}));
            break;
          case 2:
            client.Call(
                InsertBytes({.buffer = buffer, .writer = writer, .sequence = 1}, {MakeTrajectory({.id = buffer + "!"})}));
            break;
          case 3: {
            Frame broken = MakeTrajectory({.edit = [](auto trajectory) { trajectory.initLossMask(2); }});
            client.Call(InsertBytes({.buffer = buffer}, {broken, broken}));
            break;
          }
          default:
            client.Call(InsertBytes({.buffer = buffer}, {MakeTrajectory({.id = buffer + std::to_string(random() % 300)})}));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RawClient client(daemon.address(), true);
  for (const std::string buffer : {"a", "b", "c"}) {
    const BufferCounts counts = StatsOf(client, buffer);
    EXPECT_EQ("", counts.Violation()) << buffer;
    EXPECT_GT(counts.accepted, 0u);
    EXPECT_GT(counts.duplicate, 0u);
    EXPECT_GT(counts.rejected, 0u);
    EXPECT_GT(counts.removed, 0u);
    for (const Frame& frame : client.Call(ScanBytes(8, buffer, 0, 1000)).Frames()) {
      FrameReader reader(frame.bytes());
      EXPECT_EQ(buffer[0], reader.Root<schema::Trajectory>().getTrajectoryId()[0]);
    }
  }
}

// --- What stands behind a payload that is skipped ------------------------------------------------------------------------------

TEST_P(Protocol, WhatFollowsASkippedPayloadIsUnderstoodHoweverTheBytesAreSplit) {
  Daemon daemon(Options());
  RawClient client(daemon.address(), true);
  const Bytes skipped = InsertBytes({.id = 1, .buffer = "nowhere"}, {MakeTrajectory({.length = 100})});
  const Bytes both = Concatenate({skipped, PingBytes(2)});
  for (size_t split = skipped.size() - 17; split < skipped.size() + 9; ++split) {
    client.Send(std::span<const uint8_t>(both).first(split));
    std::this_thread::sleep_for(milliseconds(5));
    client.Send(std::span<const uint8_t>(both).subspan(split));
    EXPECT_EQ("notFound", CodeName(client.Receive().code())) << split;
    ASSERT_EQ("2 ok", client.Receive().ToString()) << split;
    client.Send(std::span<const uint8_t>(skipped).first(split - 9));  // The same with a frame that takes the general path.
    std::this_thread::sleep_for(milliseconds(5));
    client.Send(std::span<const uint8_t>(skipped).subspan(split - 9));
    client.Send(InsertBytes({.id = 3}, {MakeTrajectory({.id = "t" + std::to_string(split), .rich = true})}));
    EXPECT_EQ("notFound", CodeName(client.Receive().code())) << split;
    ASSERT_EQ("3 ok", client.Receive().ToString()) << split;
  }
}

// --- Waits -------------------------------------------------------------------------------------------------------------------------

TEST_P(Protocol, WhoWaitsBehindOthersShowsWhatItWaitsForItself) {
  Daemon daemon(Options());
  RawClient other(daemon.address(), true);
  std::vector<RawClient> waiting;
  for (uint64_t i = 0; i < 3; ++i) {
    waiting.emplace_back(daemon.address(), true);
    waiting.back().Send(SampleBytes({.timeout_ms = 60'000}));
  }
  EXPECT_EQ(3u, StatsUntil(other, [](const auto& c) { return c.waiting_samples == 3; }).waiting_samples);
  const std::string text = HttpGet(daemon.metrics_address(), "/metrics");
  EXPECT_NE(std::string::npos, text.find("replay_waiters{buffer=\"rollouts\",op=\"sample\",reason=\"min_size\"} 3\n")) << text;
}

// Items newer than the trainer's step are all there is, older ones wait for pacing: the draw that finds nothing lets them in, and
// is met by them, on whichever thread its connection lives.
TEST_P(Protocol, ADrawIsMetByTheInsertsThatItLetsIn) {
  std::string buffers;
  for (const char* name : {"a", "b", "c"})
    buffers += std::string(buffers.empty() ? "[" : ",") + R"({"name": ")" + name +
               R"(", "capacity_items": 1000, "capacity_bytes": "1MiB", "replay_ratio": 1, "tolerance": 8,
                   "max_draws_per_sample": 4, "max_insert": 4})";
  Daemon daemon(Options({.buffers = buffers + "]"}));
  RawClient other(daemon.address(), true);
  for (const char* buffer : {"a", "b", "c"}) {
    RawClient writer(daemon.address(), true), sampler(daemon.address(), true);
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(
          writer.Call(InsertBytes({.buffer = buffer}, MakeGroup(4, {.id = "new" + std::to_string(i), .versions = {10}}))).ok());
    writer.Send(InsertBytes({.buffer = buffer, .timeout_ms = 60'000}, MakeGroup(4, {.id = "old", .versions = {5}})));
    ASSERT_EQ(1u, StatsUntil(
                      other, [](const auto& c) { return c.waiting_inserts == 1; }, buffer)
                      .waiting_inserts);
    const auto before = steady_clock::now();
    EXPECT_TRUE(sampler.Call(SampleBytes({.buffer = buffer, .timeout_ms = 5'000, .count = 1, .step = 5})).ok()) << buffer;
    EXPECT_LT(steady_clock::now() - before, milliseconds(2'500)) << buffer;
  }
}

// --- Those who hold a connection up --------------------------------------------------------------------------------------------

TEST_P(Protocol, SilentDrippingAndUnreadingPeersAreDisconnected) {
  Daemon daemon(Options({.server = R"("handshake_timeout": "300ms", "request_timeout": "600ms", "send_timeout": "600ms")"}));
  RawClient other(daemon.address(), true);
  RawClient silent(daemon.address());
  EXPECT_TRUE(silent.WaitClosed(milliseconds(10'000)));
  // Says hello, then sends one byte of a request at a time.
  RawClient dripping(daemon.address(), true);
  const Bytes insert = InsertBytes({}, {MakeTrajectory({.length = 1000})});
  const auto before = steady_clock::now();
  for (size_t i = 0; i < insert.size() && !dripping.Readable(milliseconds(20)); ++i)
    if (!dripping.Send({&insert[i], 1})) break;
  EXPECT_TRUE(dripping.WaitClosed(milliseconds(10'000)));
  EXPECT_GT(steady_clock::now() - before, milliseconds(500));
  // Asks for much and reads nothing. The other keeps its connection: it is idle, not stuck.
  const std::vector<Frame> frames = {MakeTrajectory({.id = "big", .length = 400'000})};
  std::thread writer([&] { other.Send(InsertBytes({}, frames)); });
  EXPECT_EQ("2 ok", other.Receive().ToString());
  writer.join();
  RawClient greedy(daemon.address(), true);
  for (int i = 0; i < 30; ++i) greedy.Send(GetBytes(4, "rollouts", {"big"}), milliseconds(100));
  const auto until = steady_clock::now() + kReplyDeadline;
  while (ServerStatsOf(other).connections > 1 && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(1u, ServerStatsOf(other).connections);
  EXPECT_TRUE(other.Call(PingBytes(1)).ok());
}

TEST_P(Protocol, NoCallWaitsLongerThanTheDaemonAllows) {
  Daemon daemon(Options({.rest = R"("limits": {"max_wait": "1s"})"}));
  RawClient sampler(daemon.address(), true), versions(daemon.address(), true);
  const auto before = steady_clock::now();
  sampler.Send(SampleBytes({.timeout_ms = UINT32_MAX}));
  versions.Send(WaitVersionBytes(4, UINT32_MAX, std::nullopt));
  EXPECT_EQ("timedOut", CodeName(sampler.Receive().code()));
  EXPECT_EQ("timedOut", CodeName(versions.Receive().code()));
  EXPECT_GE(steady_clock::now() - before, milliseconds(1'000));
}

// A large request leaves nothing behind on its connection.
TEST_P(Protocol, AnIdleConnectionCostsLittleWhateverItHasAskedFor) {
  Daemon daemon(Options());
  std::vector<RawClient> clients;
  clients.emplace_back(daemon.address(), true);
  ASSERT_TRUE(clients[0].Call(InsertBytes({}, {MakeTrajectory()})).ok());
  const auto ask = [&] {
    clients.emplace_back(daemon.address(), true);
    EXPECT_TRUE(clients.back().Call(SampleBytes({.count = kMaxSampleCount})).ok());
    EXPECT_TRUE(clients.back().Call(PingBytes(1)).ok());
  };
  for (int i = 0; i < 4; ++i) ask();
  const uint64_t before = daemon.rss_bytes();
  for (int i = 0; i < 40; ++i) ask();
  const uint64_t after = std::max(before, daemon.rss_bytes());
  if (!kSanitized) {
    EXPECT_LT(after - before, 40u * 256 * 1024) << "the draws of one such sample take 2.6 MB";
  }
}

TEST(MetricsPort, LetsTheOldestOfManyConnectionsGo) {
  Daemon daemon;
  std::vector<RawClient> idle;
  for (int i = 0; i < 200; ++i) idle.emplace_back(daemon.metrics_address());
  EXPECT_TRUE(idle.front().WaitClosed(milliseconds(3'000))) << "and not only at the deadline of its request, 5 s";
  EXPECT_NE(std::string::npos, HttpGet(daemon.metrics_address(), "/metrics").find("replay_items"));
  EXPECT_LT(daemon.open_files(), 120u) << "they would take the descriptors of the replay port";
}

TEST_P(Protocol, ADaemonThatIsAskedToStopTellsThoseWhoWaitAndLeavesWithStatusZero) {
  Daemon daemon(Options({.buffers = R"([
      {"name": "rollouts"},
      {"name": "paced", "max_staleness": 0, "replay_ratio": 1.0, "max_draws_per_sample": 1, "max_insert": 2}])"}));
  RawClient idle(daemon.address(), true);
  int inserted = 0;
  while (idle.Call(InsertBytes({.buffer = "paced"}, {MakeTrajectory({.id = std::to_string(inserted)})})).ok()) ++inserted;
  // By the verb, each on a connection of its own, and each waits in whatever order they arrive.
  const std::map<std::string, Bytes> calls = {
      {"Sample", SampleBytes({.timeout_ms = 600'000})},
      {"Sample from two", RequestBytes(3, 600'000,
                                       [](auto request) {
                                         auto parts = request.initSample();
                                         parts.setBuffer("rollouts");
                                         auto list = parts.initParts(2);
                                         list[0].setCount(1);  // Waits for this one, and has not drawn from the other.
                                         list[1].setBuffer("paced");
                                         list[1].setCount(1);
                                       })},
      {"Insert", InsertBytes({.id = 3, .buffer = "paced", .timeout_ms = 600'000}, {MakeTrajectory({.id = "last"})})},
      {"Admit", RequestBytes(3, 600'000,
                             [](auto request) {
                               auto admit = request.initAdmit();
                               admit.setBuffer("paced");
                               admit.setCount(1);
                               admit.setBatch(1);
                             })},
      {"ReserveGroup", RequestBytes(3, 600'000,
                                    [](auto request) {
                                      auto reserve = request.initReserveGroup();
                                      reserve.setBuffer("paced");
                                      reserve.setGroupId("g");
                                      reserve.setSize(2);
                                      reserve.setLeaseMs(60'000);
                                      reserve.setDeadlineMs(60'000);
                                      reserve.setBatch(2);
                                    })},
      {"WaitVersion", WaitVersionBytes(3, 600'000, std::nullopt)}};
  std::map<std::string, RawClient> waiting;
  for (const auto& [name, request] : calls) {
    const auto [client, added] = waiting.emplace(name, RawClient(daemon.address(), true));
    ASSERT_TRUE(client->second.Send(request));
  }
  const auto waiters = [&] {
    const RawReply reply = idle.Call(RequestBytes(5, 0, [](auto r) { r.initWaiters(); }));
    std::multiset<std::string> each;
    for (const auto& waiter : reply.get().getWaiters().getWaiters())
      each.insert(std::string(waiter.getVerb().cStr()) + " of \"" + waiter.getBuffer().cStr() + "\"");
    std::string all;
    for (const std::string& waiter : each) all += (all.empty() ? "" : ", ") + waiter;
    return all;
  };
  const std::string everyone = R"(Admit of "paced", Insert of "paced", ReserveGroup of "paced", )"
                               R"(Sample of "rollouts", Sample of "rollouts", WaitVersion of "")";
  const auto until = steady_clock::now() + kReplyDeadline;
  while (waiters() != everyone && steady_clock::now() < until) std::this_thread::yield();
  std::string answered;
  for (auto& [name, client] : waiting)
    if (client.Readable(milliseconds(0))) answered += name + ": " + client.Receive().ToString() + "\n";
  ASSERT_EQ(everyone, waiters()) << answered;
  kill(daemon.pid(), SIGTERM);
  for (auto& [name, client] : waiting)
    EXPECT_EQ(std::string("3 unavailable draining: ") + (name == "Sample from two" ? "buffer \"rollouts\": " : "") +
                  "the server is shutting down: try again when it is back",
              client.Receive().ToString())
        << name;
  EXPECT_TRUE(idle.WaitClosed());
  daemon.AwaitExit();
}

TEST_P(Protocol, ADaemonThatGivesNoTimeToDrainLeavesAllTheSame) {
  Daemon daemon(Options({.server = R"("drain_timeout": "0s")"}));
  RawClient idle(daemon.address(), true);
  kill(daemon.pid(), SIGTERM);
  EXPECT_TRUE(idle.WaitClosed());
  daemon.AwaitExit();
}

TEST(DaemonRestart, ComesBackOnItsAddressesAfterAKillAndIsAnotherGeneration) {
  Daemon daemon;
  uint64_t generation = 0;
  {
    RawClient client(daemon.unix_address(), true);
    generation = ServerStatsOf(client).generation;
    EXPECT_TRUE(client.Call(InsertBytes({}, {MakeTrajectory()})).ok());
    daemon.KillNow();
    EXPECT_TRUE(client.WaitClosed());
  }
  daemon.Start();  // the socket's file is still there, the port in TIME_WAIT
  for (const std::string& address : {daemon.address(), daemon.unix_address()}) {
    RawClient client(address, true);
    EXPECT_NE(generation, ServerStatsOf(client).generation);
    EXPECT_EQ(0u, StatsOf(client).items);
  }
}

// --- Metrics -------------------------------------------------------------------------------------------------------------------

TEST_P(Protocol, MetricsAreWellFormedAndAgreeWithStats) {
  Daemon daemon(Options());
  RawClient client(daemon.address(), true);
  ASSERT_TRUE(client.Call(InsertBytes({}, MakeGroup(4, {.id = "g", .correct = schema::Correctness::YES}))).ok());
  ASSERT_TRUE(client.Call(SampleBytes({.count = 3})).ok());
  const std::string answer = HttpGet(daemon.metrics_address(), "/metrics");
  ASSERT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer.substr(0, 200);
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  static const std::regex sample(
      R"(^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\n\\]*"(,[a-zA-Z_][a-zA-Z0-9_]*="[^"\n\\]*")*\})? (NaN|[+-]?Inf|[-+0-9.e]+)$)");
  std::map<std::string, double> values;
  std::map<std::string, std::string> types;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      const size_t space = line.rfind(' ');
      const bool first = types.emplace(line.substr(7, space - 7), line.substr(space + 1)).second;
      EXPECT_TRUE(first) << line;
    } else if (!line.starts_with("# HELP ")) {
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_TRUE(values.emplace(match[1].str() + match[2].str(), std::strtod(match[4].str().c_str(), nullptr)).second) << line;
    }
  }
  EXPECT_EQ("counter", types["replay_items_inserted_total"]);
  EXPECT_EQ("histogram", types["replay_sample_staleness_steps"]);
  EXPECT_EQ("gauge", types["replay_waiters"]);
  EXPECT_EQ(4, values.at("replay_items_inserted_total{buffer=\"rollouts\"}"));
  EXPECT_EQ(3, values.at("replay_items_sampled_total{buffer=\"rollouts\"}"));
  EXPECT_EQ(4, values.at("replay_buffer_items{buffer=\"rollouts\",tier=\"memory\"}"));
  EXPECT_EQ(static_cast<double>(StatsOf(client).bytes), values.at("replay_buffer_bytes{buffer=\"rollouts\",tier=\"memory\"}"));
  EXPECT_EQ(3, values.at("replay_sample_staleness_steps_count{buffer=\"rollouts\"}"));
  EXPECT_EQ(3, values.at("replay_sample_staleness_steps_bucket{buffer=\"rollouts\",le=\"+Inf\"}"));
  EXPECT_EQ(1, values.at("replay_requests_total{method=\"Insert\"}"));
  EXPECT_EQ(1, values.at("replay_connections"));
  EXPECT_EQ(0, values.at("replay_waiters{buffer=\"rollouts\",op=\"sample\",reason=\"min_size\"}"));
}

TEST_P(Protocol, TheMetricsPortTakesGetsAndRefusesEverythingElse) {
  Daemon daemon(Options());
  EXPECT_TRUE(HttpGet(daemon.metrics_address(), "/livez").ends_with("\r\n\r\nalive\n"));
  EXPECT_TRUE(HttpGet(daemon.metrics_address(), "/readyz").ends_with("\r\n\r\nready\n"));
  EXPECT_TRUE(HttpGet(daemon.metrics_address(), "/../etc/passwd").starts_with("HTTP/1.1 404"));
  const auto status = [&](const std::string& request) {
    RawClient client(daemon.metrics_address());
    client.Send({reinterpret_cast<const uint8_t*>(request.data()), request.size()});
    std::string answer(12, '\0');
    size_t got = 0;
    while (got < answer.size() && client.Readable(milliseconds(10'000))) {
      const ssize_t more = recv(client.fd(), answer.data() + got, answer.size() - got, 0);
      if (more <= 0) break;
      got += static_cast<size_t>(more);
    }
    return answer.substr(0, got);
  };
  EXPECT_EQ("HTTP/1.1 200", status("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 405", status("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 405", status("DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 400", status("nonsense\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 400", status("GET /metrics HTTP/1.1\r\nContent-Length: +1\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 400", status("GET /metrics HTTP/1.1\r\n" + std::string(9000, 'x') + ": y\r\n\r\n"));
  EXPECT_EQ("HTTP/1.1 200", status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
}

}  // namespace
}  // namespace replay::test
