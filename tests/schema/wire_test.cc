#include "schema/wire.h"

#include <poll.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "schema/input_buffer.h"
#include "tests/support/make_trajectory.h"

namespace replay {
namespace {

// --- Addresses -------------------------------------------------------------------------------------------------------------

std::string Parsed(std::string_view text) {
  Address address;
  const std::string error = ParseAddress(text, &address);
  return error.empty() ? address.ToString() : error;
}

TEST(ParseAddress, TakesHostsBracketsAndUnixPaths) {
  EXPECT_EQ("127.0.0.1:7070", Parsed("127.0.0.1:7070"));
  EXPECT_EQ("localhost:0", Parsed("localhost:0"));
  EXPECT_EQ("a-b.example:65535", Parsed("a-b.example:65535"));
  EXPECT_EQ("[::1]:80", Parsed("[::1]:80"));
  EXPECT_EQ("unix:/run/replayd.sock", Parsed("unix:/run/replayd.sock"));
  EXPECT_EQ("unix:" + std::string(107, 'p'), Parsed("unix:" + std::string(107, 'p')));
}

TEST(ParseAddress, SaysWhatIsWrong) {
  EXPECT_EQ("address \"unix:\" names no path", Parsed("unix:"));
  EXPECT_EQ("the path of a Unix socket has at most 107 bytes", Parsed("unix:" + std::string(108, 'p')));
  EXPECT_EQ("address \"localhost\" is neither host:port nor unix:/path", Parsed("localhost"));
  EXPECT_EQ("address \"localhost:\" is neither host:port nor unix:/path", Parsed("localhost:"));
  EXPECT_EQ("address \"\" is neither host:port nor unix:/path", Parsed(""));
  EXPECT_EQ("address \":80\" names no host", Parsed(":80"));
  EXPECT_EQ("address \"[]:80\" names no host", Parsed("[]:80"));
  for (const char* port : {"65536", "99999999999999999999", "-1", "+1", "8o", " 80", "0x50"}) {
    EXPECT_EQ("port \"" + std::string(port) + "\" is not a number from 0 to 65535", Parsed("h:" + std::string(port)));
  }
}

// --- A pair of connected sockets, one end in Asio, the other plain ----------------------------------------------------------

struct Pair {
  Pair() : socket(io) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    socket.assign(asio::generic::stream_protocol(AF_UNIX, 0), ends[0]);
    peer = ends[1];
  }
  ~Pair() { ClosePeer(); }
  void ClosePeer() {
    if (peer >= 0) close(peer);
    peer = -1;
  }
  // Lets the coroutines run until each of them waits.
  void Settle() {
    io.restart();
    io.poll();
  }

  asio::io_context io{1};
  Socket socket;
  int peer = -1;
};

void WriteAll(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

// What a session would have read: each message's control and payload, and whether every control was 8-aligned.
struct Received {
  std::vector<std::vector<uint8_t>> controls;
  std::vector<std::vector<uint8_t>> payloads;
  bool aligned = true;
  bool ended = false;
  boost::system::error_code error;
};

// Reads messages as a session does: preamble, control in place, body into its own memory. With `give_back`, the block is
// returned after each message, as before a wait.
Awaitable<void> ReadMessages(Socket& socket, InputBuffer& input, Received& received, bool give_back) {
  for (;;) {
    while (input.available().size() < sizeof(Preamble)) {
      if (!co_await input.Fill(socket, received.error)) {
        received.ended = true;
        co_return;
      }
    }
    Preamble preamble;
    std::memcpy(&preamble, input.available().data(), sizeof preamble);
    input.Consume(sizeof preamble);
    const size_t control_bytes = preamble.control_words * size_t{8};
    while (input.available().size() < control_bytes) {
      if (!co_await input.Fill(socket, received.error)) {
        received.ended = true;
        co_return;
      }
    }
    const std::span<const uint8_t> control = input.available().first(control_bytes);
    received.aligned = received.aligned && reinterpret_cast<uintptr_t>(control.data()) % 8 == 0;
    received.controls.emplace_back(control.begin(), control.end());
    input.Consume(control_bytes);
    std::vector<uint8_t> payload(preamble.payload_bytes);
    if (!co_await input.ReadBody(socket, payload.data(), payload.size(), received.error)) {
      received.ended = true;
      co_return;
    }
    received.payloads.push_back(std::move(payload));
    if (give_back) input.GiveBack();
  }
}

// Messages with random contents and the given sizes (control words, payload bytes).
struct Conversation {
  explicit Conversation(const std::vector<std::pair<uint32_t, uint64_t>>& sizes, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    for (const auto& [control_words, payload_bytes] : sizes) {
      Preamble preamble;
      preamble.control_words = control_words;
      preamble.payload_bytes = payload_bytes;
      const auto* raw = reinterpret_cast<const uint8_t*>(&preamble);
      bytes.insert(bytes.end(), raw, raw + sizeof preamble);
      controls.emplace_back(control_words * size_t{8});
      for (uint8_t& byte : controls.back()) byte = static_cast<uint8_t>(random());
      payloads.emplace_back(payload_bytes);
      for (uint8_t& byte : payloads.back()) byte = static_cast<uint8_t>(random());
      bytes.insert(bytes.end(), controls.back().begin(), controls.back().end());
      bytes.insert(bytes.end(), payloads.back().begin(), payloads.back().end());
    }
  }
  std::vector<uint8_t> bytes;
  std::vector<std::vector<uint8_t>> controls;
  std::vector<std::vector<uint8_t>> payloads;
};

// "" or what differs.
std::string Compare(const Conversation& sent, const Received& received) {
  if (received.controls.size() != sent.controls.size())
    return std::to_string(received.controls.size()) + " of " + std::to_string(sent.controls.size()) + " messages";
  for (size_t i = 0; i < sent.controls.size(); ++i) {
    if (received.controls[i] != sent.controls[i]) return "control " + std::to_string(i) + " differs";
    if (i >= received.payloads.size() || received.payloads[i] != sent.payloads[i])
      return "payload " + std::to_string(i) + " differs";
  }
  if (!received.aligned) return "a control message was not 8-aligned";
  if (received.error) return received.error.message();
  return "";
}

// --- Input -----------------------------------------------------------------------------------------------------------------

TEST(InputBuffer, ReadsTheSameHoweverTheBytesAreSplit) {
  const Conversation conversation({{3, 0}, {1, 16}, {12, 120}, {5, 0}});
  for (const bool give_back : {false, true}) {
    for (size_t split = 0; split <= conversation.bytes.size(); ++split) {
      Pair pair;
      InputBlockPool pool;
      InputBuffer input(pool);
      Received received;
      asio::co_spawn(pair.io, ReadMessages(pair.socket, input, received, give_back), asio::detached);
      pair.Settle();
      const std::span<const uint8_t> bytes = conversation.bytes;
      WriteAll(pair.peer, bytes.first(split));
      pair.Settle();
      WriteAll(pair.peer, bytes.subspan(split));
      pair.Settle();
      ASSERT_EQ("", Compare(conversation, received)) << "split at " << split;
      pair.ClosePeer();
      pair.Settle();
      ASSERT_TRUE(received.ended);
    }
  }
}

TEST(InputBuffer, ReadsByteByByte) {
  const Conversation conversation({{3, 8}, {40, 400}, {1, 0}});
  Pair pair;
  InputBlockPool pool;
  InputBuffer input(pool);
  Received received;
  asio::co_spawn(pair.io, ReadMessages(pair.socket, input, received, false), asio::detached);
  for (const uint8_t& byte : conversation.bytes) {
    WriteAll(pair.peer, {&byte, 1});
    pair.Settle();
  }
  EXPECT_EQ("", Compare(conversation, received));
}

TEST(InputBuffer, ATruncatedStreamEndsWithoutAnErrorAtEveryByte) {
  const Conversation conversation({{3, 24}});
  for (size_t kept = 0; kept < conversation.bytes.size(); ++kept) {
    Pair pair;
    InputBlockPool pool;
    InputBuffer input(pool);
    Received received;
    asio::co_spawn(pair.io, ReadMessages(pair.socket, input, received, false), asio::detached);
    WriteAll(pair.peer, std::span<const uint8_t>(conversation.bytes).first(kept));
    pair.Settle();
    EXPECT_FALSE(received.ended);
    pair.ClosePeer();
    pair.Settle();
    EXPECT_TRUE(received.ended);
    EXPECT_FALSE(received.error) << received.error.message();
    EXPECT_TRUE(received.payloads.empty());
  }
}

TEST(InputBuffer, LargeBodiesAndWhatFollowsThemArriveWhole) {
  // Bodies below, around and far above both the input buffer and the socket's own.
  const Conversation conversation({{2, 8},
                                   {7, kInputBufferBytes / 8 - 8},
                                   {1, kInputBufferBytes},
                                   {3, kInputBufferBytes - 48},
                                   {5, 3 * kInputBufferBytes + 8},
                                   {16'384, 5u << 20},
                                   {1, 0},
                                   {16'384, 0},
                                   {16'384, 16},
                                   {9, 8}});
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Pair pair;
    InputBlockPool pool;
    InputBuffer input(pool);
    Received received;
    asio::co_spawn(pair.io, ReadMessages(pair.socket, input, received, seed % 2 == 0), asio::detached);
    std::thread writer([&] {
      std::mt19937_64 random(seed);
      std::span<const uint8_t> left = conversation.bytes;
      while (!left.empty()) {
        const size_t most = seed < 3 ? 1 << 20 : seed < 5 ? 70'000 : 9'000;
        const size_t piece = std::min<size_t>(left.size(), 1 + random() % most);
        WriteAll(pair.peer, left.first(piece));
        left = left.subspan(piece);
      }
      shutdown(pair.peer, SHUT_WR);
    });
    pair.io.run();
    writer.join();
    EXPECT_EQ("", Compare(conversation, received)) << "seed " << seed;
    EXPECT_TRUE(received.ended);
  }
}

Awaitable<void> FillOnce(Socket& socket, InputBuffer& input, bool& filled, boost::system::error_code& error) {
  filled = co_await input.Fill(socket, error);
}

TEST(InputBuffer, KeepsWhatWasNotConsumedWhenItGivesItsBlockBack) {
  Pair pair;
  InputBlockPool pool;
  InputBuffer input(pool);
  std::vector<uint8_t> sent(1000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 31);
  WriteAll(pair.peer, sent);
  bool filled = false;
  boost::system::error_code error;
  asio::co_spawn(pair.io, FillOnce(pair.socket, input, filled, error), asio::detached);
  pair.Settle();
  ASSERT_TRUE(filled);
  ASSERT_EQ(1000u, input.available().size());
  input.Consume(400);
  input.GiveBack();
  const auto rest = [&] { return std::vector<uint8_t>(input.available().begin(), input.available().end()); };
  EXPECT_EQ(std::vector<uint8_t>(sent.begin() + 400, sent.end()), rest());
  input.GiveBack();  // again: nothing to give
  input.Consume(200);
  EXPECT_EQ(std::vector<uint8_t>(sent.begin() + 600, sent.end()), rest());

  // More bytes join the leftover behind it.
  WriteAll(pair.peer, std::span<const uint8_t>(sent).first(8));
  filled = false;
  asio::co_spawn(pair.io, FillOnce(pair.socket, input, filled, error), asio::detached);
  pair.Settle();
  ASSERT_TRUE(filled);
  std::vector<uint8_t> expected(sent.begin() + 600, sent.end());
  expected.insert(expected.end(), sent.begin(), sent.begin() + 8);
  EXPECT_EQ(expected, rest());
  input.Consume(408);
  input.GiveBack();
  EXPECT_TRUE(input.available().empty());
}

TEST(InputBuffer, AResetIsAnErrorAndACloseIsNot) {
  Pair pair;
  InputBlockPool pool;
  InputBuffer input(pool);
  bool filled = true;
  boost::system::error_code error;
  asio::co_spawn(pair.io, FillOnce(pair.socket, input, filled, error), asio::detached);
  pair.Settle();
  // On a Unix socket unread bytes at close reset the connection.
  const uint8_t byte = 0;
  ASSERT_EQ(1, send(pair.socket.native_handle(), &byte, 1, MSG_NOSIGNAL));
  pair.ClosePeer();
  pair.Settle();
  EXPECT_FALSE(filled);
  EXPECT_EQ(boost::system::errc::connection_reset, error);
}

// --- Output ----------------------------------------------------------------------------------------------------------------

Awaitable<void> FlushAll(Socket& socket, OutputQueue& queue, bool& flushed, boost::system::error_code& error,
                         std::chrono::steady_clock::time_point* blocked_since) {
  flushed = co_await queue.Flush(socket, error, blocked_since);
}

// Reads until `count` bytes or the end.
std::vector<uint8_t> ReadSome(int fd, size_t count) {
  std::vector<uint8_t> bytes(count);
  size_t got = 0;
  while (got < count) {
    const ssize_t more = recv(fd, bytes.data() + got, count - got, 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  bytes.resize(got);
  return bytes;
}

TEST(OutputQueue, SendsBytesAndFramesInOrderThroughATinySocketBuffer) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Pair pair;
    const int tiny = 4096;
    setsockopt(pair.socket.native_handle(), SOL_SOCKET, SO_SNDBUF, &tiny, sizeof tiny);
    std::mt19937_64 random(seed);
    MemoryBudget budget(1 << 30);
    OutputQueue queue;
    std::vector<uint8_t> expected;
    for (int i = 0; i < 5000; ++i) {  // More pieces than one sendmsg takes, several times.
      std::vector<uint8_t> bytes(random() % (seed == 1 ? 64 : 3000));
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      if (random() % 3 == 0) {
        queue.AddBytes(bytes);
      } else {
        ASSERT_TRUE(budget.TryReserve(static_cast<int64_t>(bytes.size())));
        Frame frame = Frame::Allocate(bytes.size(), &budget);
        if (!bytes.empty()) std::memcpy(frame.mutable_data(), bytes.data(), bytes.size());
        queue.AddFrame(std::move(frame));
      }
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    ASSERT_EQ(expected.size(), queue.pending_bytes());
    bool flushed = false;
    boost::system::error_code error;
    std::vector<uint8_t> got;
    std::thread reader([&] { got = ReadSome(pair.peer, expected.size()); });
    asio::co_spawn(pair.io, FlushAll(pair.socket, queue, flushed, error, nullptr), asio::detached);
    pair.io.run();
    reader.join();
    EXPECT_TRUE(flushed) << error.message();
    EXPECT_TRUE(got == expected) << "seed " << seed;
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(0, budget.used_bytes()) << "frames are let go when they are sent";
  }
}

TEST(OutputQueue, MayBeFilledAgainAfterAPartialSend) {
  Pair pair;
  OutputQueue queue;
  std::vector<uint8_t> expected;
  std::vector<uint8_t> got;
  std::mt19937_64 random(4);
  boost::system::error_code error;
  for (int round = 0; round < 400; ++round) {
    std::vector<uint8_t> bytes(random() % 20'000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (round % 2) {
      queue.AddFrame(Frame::CopyOf(bytes));
    } else {
      queue.AddBytes(bytes);
    }
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    if (!queue.empty()) queue.SendSome(pair.socket.native_handle(), error);
    ASSERT_FALSE(error);
    uint8_t piece[30'000];
    const ssize_t more = recv(pair.peer, piece, random() % sizeof piece, MSG_DONTWAIT);
    if (more > 0) got.insert(got.end(), piece, piece + more);
  }
  std::thread reader([&] {
    const std::vector<uint8_t> rest = ReadSome(pair.peer, expected.size() - got.size());
    got.insert(got.end(), rest.begin(), rest.end());
  });
  bool flushed = false;
  asio::co_spawn(pair.io, FlushAll(pair.socket, queue, flushed, error, nullptr), asio::detached);
  pair.io.run();
  reader.join();
  EXPECT_TRUE(flushed);
  EXPECT_TRUE(got == expected);
}

TEST(OutputQueue, EmptyPiecesAreNoBytes) {
  OutputQueue queue;
  queue.AddBytes({});
  queue.AddFrame(Frame());
  queue.AddFrame(Frame::CopyOf({}));
  EXPECT_TRUE(queue.empty());
  const uint8_t byte = 9;
  queue.AddBytes({&byte, 1});
  queue.AddBytes({});
  EXPECT_EQ(1u, queue.pending_bytes());
  Pair pair;
  boost::system::error_code error;
  EXPECT_TRUE(queue.SendSome(pair.socket.native_handle(), error));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(std::vector<uint8_t>{9}, ReadSome(pair.peer, 1));
}

TEST(OutputQueue, SaysSinceWhenItWaitsForAPeerThatDoesNotRead) {
  Pair pair;
  OutputQueue queue;
  queue.AddFrame(Frame::CopyOf(std::vector<uint8_t>(4 << 20)));
  bool flushed = false;
  boost::system::error_code error;
  std::chrono::steady_clock::time_point blocked_since{};
  asio::co_spawn(pair.io, FlushAll(pair.socket, queue, flushed, error, &blocked_since), asio::detached);
  pair.Settle();
  EXPECT_FALSE(flushed);
  EXPECT_NE(std::chrono::steady_clock::time_point{}, blocked_since);
  EXPECT_GT(queue.pending_bytes(), 0u);
  std::thread reader([&] { ReadSome(pair.peer, 4 << 20); });
  pair.io.restart();
  pair.io.run();
  reader.join();
  EXPECT_TRUE(flushed);
  EXPECT_EQ(std::chrono::steady_clock::time_point{}, blocked_since);
}

TEST(OutputQueue, APeerThatIsGoneIsAnErrorNotASignal) {
  Pair pair;
  OutputQueue queue;
  queue.AddFrame(Frame::CopyOf(std::vector<uint8_t>(1 << 20)));
  pair.ClosePeer();
  bool flushed = true;
  boost::system::error_code error;
  asio::co_spawn(pair.io, FlushAll(pair.socket, queue, flushed, error, nullptr), asio::detached);
  pair.io.run();
  EXPECT_FALSE(flushed);
  EXPECT_EQ(boost::system::errc::broken_pipe, error);
  queue.Clear();
  EXPECT_TRUE(queue.empty());
  queue.Release();
}

}  // namespace
}  // namespace replay
