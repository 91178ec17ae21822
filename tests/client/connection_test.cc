#include "client/connection.h"

#include <dlfcn.h>
#include <netdb.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <thread>

#include "tests/support/fake_server.h"

// In place of the C library's: a name server that does not answer.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  if (name != nullptr && std::string_view(name) == "silent.test") {
    std::this_thread::sleep_for(std::chrono::seconds(15));
    return EAI_AGAIN;
  }
  static const auto original = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return original(name, service, hints, found);
}

namespace replay {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;

// Opens a connection, sends a Sample, and says how it ended.
struct Outcome {
  std::optional<Error> opened, received;
  size_t frames = 0;
  bool open_afterwards = false;
};

Awaitable<void> Talk(std::shared_ptr<Reactor> reactor, Outcome* outcome) {
  const auto connection = std::make_shared<Connection>(reactor);
  outcome->opened = co_await connection->Open(Clock::now() + reactor->options.connect_timeout);
  if (outcome->opened) co_return;
  connection->SetDeadline(Clock::now() + reactor->options.call_timeout);
  const RequestHead head{.id = 1};
  SampleOptions options;
  connection->output().AddFrame(EncodeSample(head, "b", options));
  ReceivedReply reply;
  if (!(outcome->received = co_await connection->Flush())) outcome->received = co_await connection->Receive(1, &reply);
  outcome->frames = reply.frames.size();
  outcome->open_afterwards = connection->is_open();
  connection->Close({ErrorCode::kUnavailable, "the test is over"});
}

Outcome Converse(ClientOptions options) {
  Outcome outcome;
  const auto reactor = std::make_shared<Reactor>(std::move(options));
  asio::co_spawn(reactor->executor(), Talk(reactor, &outcome), asio::detached);
  reactor->context.run();
  return outcome;
}

Outcome Converse(FakeServer::Script script) {
  FakeServer server(std::move(script));
  return Converse(ClientOptions{.address = server.address()});
}

std::vector<uint8_t> WithPreamble(std::vector<uint8_t> reply, void (*change)(Preamble&)) {
  Preamble preamble;
  std::memcpy(&preamble, reply.data(), sizeof preamble);
  change(preamble);
  std::memcpy(reply.data(), &preamble, sizeof preamble);
  return reply;
}

TEST(Connection, ReceivesAReplyByteByByte) {
  const std::vector<Frame> frames = {testing::SmallFrame("a"), testing::SmallFrame("b")};
  const Outcome outcome = Converse([&](FakeServer::Request& request) {
    for (const uint8_t byte : testing::SampleReply(request.id, 3, frames)) request.Send({&byte, 1});
  });
  EXPECT_FALSE(outcome.received) << outcome.received->ToString();
  EXPECT_EQ(outcome.frames, 2u);
}

TEST(Connection, TellsADamagedFrameAndStaysOpen) {
  const Outcome outcome = Converse([](FakeServer::Request& request) {
    auto bytes = testing::SampleReply(request.id, 3, {testing::SmallFrame("a")});
    bytes[bytes.size() - 20] ^= 1;
    request.Send(bytes);
  });
  ASSERT_TRUE(outcome.received);
  EXPECT_EQ(outcome.received->ToString(), "corrupted: the checksum of trajectory 0 of the reply does not match its bytes");
  EXPECT_TRUE(outcome.open_afterwards);
}

TEST(Connection, RefusesHostileReplies) {
  const std::vector<Frame> frames = {testing::SmallFrame("a")};
  const auto size = static_cast<uint32_t>(frames[0].size());
  const auto good = [&](uint64_t id) { return testing::SampleReply(id, 3, frames); };
  struct Case {
    const char* what;
    std::function<std::vector<uint8_t>(uint64_t)> reply;
  };
  const std::vector<Case> cases = {
      {"magic is not", [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.magic = 0x50545448; }); }},
      {"protocol version 9", [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.version = 9; }); }},
      {"control_words is 0", [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.control_words = 0; }); }},
      {"control_words is 1048577",
       [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.control_words = (8 << 20) / 8 + 1; }); }},
      {"payload_bytes is",
       [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.payload_bytes = 1ull << 62; }); }},
      {"bytes together, the payload",
       [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.payload_bytes += 8; }); }},
      {"is said to have 4294967288 bytes", [&](uint64_t id) { return testing::SampleReply(id, 3, frames, {0xfffffff8u}); }},
      {"is said to have 8 bytes",
       [&](uint64_t id) {
         return testing::SampleReply(id, 3, frames, {size - 8, 8});
       }},
      {"must be a multiple of 8",
       [&](uint64_t id) { return WithPreamble(good(id), [](Preamble& p) { p.payload_bytes += 4; }); }},
      {"its size says",
       [&](uint64_t id) {
         return testing::SampleReply(id, 3, frames, {size / 2 / 8 * 8, size - size / 2 / 8 * 8});
       }},
      {"the reply is to request 78, not 1", [&](uint64_t) { return good(78); }},
      {"not readable",
       [&](uint64_t id) {
         auto bytes = good(id);
         std::memset(bytes.data() + sizeof(Preamble), 0xff, 8);  // the root pointer
         return bytes;
       }},
  };
  for (const Case& c : cases) {
    const Outcome outcome = Converse([&](FakeServer::Request& request) { request.Send(c.reply(request.id)); });
    ASSERT_TRUE(outcome.received) << c.what;
    EXPECT_EQ(outcome.received->code, ErrorCode::kProtocolViolation) << c.what << ": " << outcome.received->ToString();
    EXPECT_NE(outcome.received->message.find(c.what), std::string::npos) << outcome.received->ToString();
    EXPECT_FALSE(outcome.open_afterwards) << c.what;
  }
}

TEST(Connection, PassesOnWhyTheServerEndsTheConversation) {
  const Outcome outcome = Converse([](FakeServer::Request& request) {
    request.Send(testing::ErrorReply(0, ErrorCode::kProtocolViolation, "control_words is 0"));
    request.Close();
  });
  EXPECT_EQ(outcome.received->ToString(), "protocol_violation: control_words is 0");
}

TEST(Connection, SaysThatItBroke) {
  const Outcome outcome = Converse([](FakeServer::Request& request) {
    auto bytes = testing::SampleReply(request.id, 3, {testing::SmallFrame("a")});
    bytes.resize(bytes.size() / 2);
    request.Send(bytes);
    request.Close();
  });
  EXPECT_EQ(outcome.received->code, ErrorCode::kUnavailable);
  EXPECT_NE(outcome.received->message.find("closed by the server"), std::string::npos) << outcome.received->message;
}

TEST(Connection, EndsAtItsDeadline) {
  FakeServer server([](FakeServer::Request&) {});
  const Outcome outcome = Converse(ClientOptions{.address = server.address(), .call_timeout = milliseconds(30)});
  EXPECT_EQ(outcome.received->ToString(), "timed_out: " + server.address() + " did not answer in time");
}

TEST(Connection, SaysWhyItDoesNotOpen) {
  EXPECT_EQ(Converse(ClientOptions{.address = "nowhere"}).opened->ToString(),
            "invalid_argument: address \"nowhere\" is neither host:port nor unix:/path");
  EXPECT_EQ(Converse(ClientOptions{.address = "unix:/no/such/socket"}).opened->ToString(),
            "unavailable: not connected to unix:/no/such/socket: No such file or directory");
  FakeServer server([](FakeServer::Request&) {});
  server.GoAway();
  EXPECT_EQ(Converse(ClientOptions{.address = server.address()}).opened->ToString(),
            "unavailable: not connected to " + server.address() + ": Connection refused");
}

TEST(Connection, ResolvesNames) {
  FakeServer server([](FakeServer::Request& request) { request.Send(testing::SampleReply(request.id, 1, {})); });
  const std::string address = server.address();
  const Outcome outcome = Converse(ClientOptions{.address = "localhost" + address.substr(address.rfind(':'))});
  EXPECT_FALSE(outcome.opened) << outcome.opened->ToString();
  EXPECT_FALSE(outcome.received);
}

TEST(Connection, ChecksHello) {
  FakeServer silent([](FakeServer::Request&) {});
  silent.SetHello([](FakeServer::Request&) {});
  const Outcome unheard = Converse(ClientOptions{.address = silent.address(), .connect_timeout = milliseconds(300)});
  EXPECT_EQ(unheard.opened->ToString(), "unavailable: " + silent.address() + " accepted the connection but did not say hello");

  FakeServer newer([](FakeServer::Request&) {});
  newer.SetHello([](FakeServer::Request& request) { request.Send(testing::HelloReply(request.id, 1, 7)); });
  EXPECT_EQ(Converse(ClientOptions{.address = newer.address()}).opened->ToString(),
            "unsupported_version: the server speaks protocol version 7, this client 1");

  FakeServer full([](FakeServer::Request&) {});
  full.SetHello([](FakeServer::Request& request) {
    request.Send(testing::ErrorReply(request.id, ErrorCode::kResourceExhausted, "10000 connections are open"));
    request.Close();
  });
  EXPECT_EQ(Converse(ClientOptions{.address = full.address()}).opened->ToString(),
            "resource_exhausted: 10000 connections are open");
}

// The look-up goes on behind the back of a client that has given up and ended: nothing can interrupt it.
TEST(Client, ASilentNameServerHoldsUpNeitherACallNorTheEnd) {
  const auto before = Clock::now();
  {
    Client client({.address = "silent.test:7070", .connect_timeout = 100ms});
    EXPECT_EQ(client.Stats().error().ToString(), "unavailable: the name \"silent.test\" was not resolved in time");
  }
  EXPECT_LT(Clock::now() - before, 5s);
}

}  // namespace
}  // namespace replay
