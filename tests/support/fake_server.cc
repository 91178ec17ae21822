#include "tests/support/fake_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "client/trajectory.h"
#include "schema/protocol.capnp.h"
#include "schema/trajectory.capnp.h"

namespace replay::testing {
namespace {

bool ReadAll(int fd, void* data, size_t size) {
  auto* at = static_cast<uint8_t*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

std::string OptionsText(schema::BufferOptions::Reader options) {
  return "capacity_items=" + std::to_string(options.getCapacityItems()) +
         " retention=" + std::to_string(static_cast<int>(options.getRetention())) + " delta=" + options.getDelta().cStr() +
         " selector=" + std::to_string(static_cast<int>(options.getSelector())) +
         " min_size=" + std::to_string(options.getMinSize()) + " pace=" + std::to_string(options.getPaceDraws()) +
         std::to_string(options.getPaceInserts()) + " threshold=" + std::to_string(options.getHasCorrectThreshold()) +
         " seed=" + std::to_string(options.getHasSeed());
}

void ReadInsert(schema::Insert::Reader insert, std::span<const uint8_t> payload, FakeServer::Request* request) {
  request->verb = "insert";
  request->buffer = insert.getBuffer().cStr();
  request->writer = insert.getWriterHigh() ^ insert.getWriterLow();
  request->sequence = insert.getSequence();
  request->acknowledged_through = insert.getAcknowledgedThrough();
  for (const uint32_t size : insert.getFrameBytes()) {
    FrameReader reader(payload.first(size));
    request->ids.emplace_back(reader.Root<schema::Trajectory>().getTrajectoryId().cStr());
    payload = payload.subspan(size);
  }
}

// Every verb's name, and of some the arguments.
void ReadRequest(schema::Request::Reader from, std::span<const uint8_t> payload, FakeServer::Request* request) {
  request->id = from.getId();
  request->timeout_ms = from.getTimeoutMs();
  switch (from.which()) {
    case schema::Request::HELLO:
      request->verb = "hello";
      return;
    case schema::Request::INSERT:
      return ReadInsert(from.getInsert(), payload, request);
    case schema::Request::SAMPLE:
      request->verb = "sample";
      request->buffer = from.getSample().getBuffer().cStr();
      request->step = from.getSample().getStep();
      request->count = from.getSample().getCount();
      request->given_back = from.getSample().getGivenBack();
      return;
    case schema::Request::CREATE_BUFFER:
      request->verb = "create_buffer";
      request->buffer = from.getCreateBuffer().getName().cStr();
      request->options = OptionsText(from.getCreateBuffer().getOptions());
      return;
    case schema::Request::ALTER_BUFFER:
      request->verb = "alter_buffer";
      request->options = OptionsText(from.getAlterBuffer().getOptions());
      for (const auto& field : from.getAlterBuffer().getFields()) request->fields.emplace_back(field.cStr());
      return;
    case schema::Request::GET:
      request->verb = "get";
      for (const auto& id : from.getGet().getIds()) request->ids.emplace_back(id.cStr());
      return;
    case schema::Request::WAIT_VERSION:
      request->verb = "wait_version";
      return;
    case schema::Request::PING:
      request->verb = "ping";
      return;
    default:
      request->verb = "other";
  }
}

template <typename Fill>
std::vector<uint8_t> BuildReply(uint64_t id, const std::vector<Frame>& frames, Fill fill) {
  ControlBuilder builder;
  auto reply = builder.Start<schema::Reply>(static_cast<uint32_t>(1024 + 8 * frames.size()));
  reply.setId(id);
  fill(reply);
  uint64_t payload_bytes = 0;
  for (const Frame& frame : frames) payload_bytes += frame.size();
  const auto control = builder.Finish(payload_bytes);
  std::vector<uint8_t> bytes(control.begin(), control.end());
  for (const Frame& frame : frames) bytes.insert(bytes.end(), frame.data(), frame.data() + frame.size());
  return bytes;
}

}  // namespace

FakeServer::FakeServer(Script script, uint64_t generation) : script_(std::move(script)), generation_(generation) { Listen(); }

FakeServer::~FakeServer() {
  GoAway();
  for (std::thread& thread : threads_) thread.join();
}

void FakeServer::SetHello(Script script) { hello_ = std::move(script); }

void FakeServer::Listen() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1024) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::cerr << "the fake server cannot listen: " << std::strerror(errno) << "\n";
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  listener_ = listener;
  accepter_ = std::thread([this, listener] { Accept(listener); });
}

void FakeServer::GoAway() {
  const int listener = listener_.exchange(-1);
  if (listener >= 0) {
    shutdown(listener, SHUT_RDWR);
    accepter_.join();
    close(listener);
  }
  CutConnections();
}

void FakeServer::Restart(uint64_t generation) {
  GoAway();
  generation_ = generation;
  Listen();
}

void FakeServer::CutConnections() {
  const std::lock_guard lock(mutex_);
  for (const int fd : open_fds_) shutdown(fd, SHUT_RDWR);
}

void FakeServer::Accept(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int number = ++accepted_, on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    open_fds_.push_back(fd);
    threads_.emplace_back([this, fd, number] { Serve(fd, number); });
  }
}

void FakeServer::Serve(int fd, int connection) {
  Preamble preamble;
  while (ReadAll(fd, &preamble, sizeof preamble)) {
    std::vector<uint64_t> control(preamble.control_words), payload(preamble.payload_bytes / 8);
    if (!ReadAll(fd, control.data(), control.size() * 8) || !ReadAll(fd, payload.data(), payload.size() * 8)) break;
    Request request;
    request.fd_ = fd;
    request.connection = connection;
    ControlReader reader(control.data(), preamble.control_words);
    ReadRequest(reader.Root<schema::Request>(), {reinterpret_cast<const uint8_t*>(payload.data()), payload.size() * 8},
                &request);
    if (request.verb != "hello") {
      script_(request);
    } else if (hello_) {
      hello_(request);
    } else {
      request.Send(HelloReply(request.id, generation_, kProtocolVersion, max_payload_bytes_));
    }
    if (request.closed_) break;
  }
  const std::lock_guard lock(mutex_);
  std::erase(open_fds_, fd);
  close(fd);
}

void FakeServer::Request::Send(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

std::vector<uint8_t> OkReply(uint64_t id) {
  return BuildReply(id, {}, [](schema::Reply::Builder) {});
}

std::vector<uint8_t> ErrorReply(uint64_t id, ErrorCode code, const std::string& message, WaitReason reason) {
  return BuildReply(id, {}, [&](schema::Reply::Builder reply) {
    reply.setCode(static_cast<schema::ErrorCode>(code));
    reply.setMessage(message.c_str());
    reply.setWaitReason(static_cast<schema::WaitReason>(reason));
  });
}

std::vector<uint8_t> HelloReply(uint64_t id, uint64_t generation, uint32_t version, uint64_t max_payload_bytes) {
  return BuildReply(id, {}, [&](schema::Reply::Builder reply) {
    auto hello = reply.initHello();
    hello.setProtocolVersion(version);
    hello.setServerVersion("fake");
    hello.setGeneration(generation);
    hello.setMaxPayloadBytes(max_payload_bytes);
  });
}

std::vector<uint8_t> InsertReply(uint64_t id, const InsertReceipt& receipt) {
  return BuildReply(id, {}, [&](schema::Reply::Builder reply) {
    auto insert = reply.initInsert();
    insert.setFirstItem(receipt.first_item);
    insert.setCount(receipt.count);
    insert.setDuplicate(receipt.duplicate);
    insert.setLive(receipt.live);
  });
}

std::vector<uint8_t> SampleReply(uint64_t id, int64_t step, const std::vector<Frame>& frames, std::vector<uint32_t> frame_bytes,
                                 const std::vector<uint64_t>& candidates) {
  if (frame_bytes.empty())
    for (const Frame& frame : frames) frame_bytes.push_back(static_cast<uint32_t>(frame.size()));
  return BuildReply(id, frames, [&](schema::Reply::Builder reply) {
    auto sample = reply.initSample();
    sample.setStep(step);
    auto draws = sample.initDraws(static_cast<unsigned>(frames.size()));
    for (unsigned i = 0; i < draws.size(); ++i) {
      draws[i].setFrame(i);
      draws[i].setDrawCount(1);
      draws[i].setProbability(0.25);
      draws[i].setStaleness(3);
      draws[i].setStepsSinceLastUse(-1);
      draws[i].setItem(100 + i);
    }
    auto sizes = sample.initFrameBytes(static_cast<unsigned>(frame_bytes.size()));
    for (unsigned i = 0; i < sizes.size(); ++i) sizes.set(i, frame_bytes[i]);
    if (candidates.empty()) return;
    auto counts = sample.initCandidates(static_cast<unsigned>(candidates.size()));
    for (unsigned i = 0; i < counts.size(); ++i) counts.set(i, candidates[i]);
  });
}

std::vector<uint8_t> GetReply(uint64_t id, const std::vector<Frame>& frames, size_t item_count) {
  return BuildReply(id, frames, [&](schema::Reply::Builder reply) {
    auto get = reply.initGet();
    auto items = get.initItems(static_cast<unsigned>(item_count));
    auto draws = get.initDrawCounts(static_cast<unsigned>(item_count));
    for (unsigned i = 0; i < items.size(); ++i) {
      items.set(i, 7 + i);
      draws.set(i, 2);
    }
    auto sizes = get.initFrameBytes(static_cast<unsigned>(frames.size()));
    for (unsigned i = 0; i < sizes.size(); ++i) sizes.set(i, static_cast<uint32_t>(frames[i].size()));
  });
}

std::vector<uint8_t> VersionReply(uint64_t id, const PolicyVersion& version) {
  return BuildReply(id, {}, [&](schema::Reply::Builder reply) {
    auto to = reply.initVersion();
    to.setRunId(version.run_id.c_str());
    to.setVersion(version.version);
    to.setStep(version.step);
    to.setUri(version.uri.c_str());
  });
}

Trajectory SmallTrajectory(const std::string& id) {
  Trajectory trajectory;
  trajectory.trajectory_id = id;
  trajectory.token_ids = {1, 15, 9, 204, 2};
  trajectory.prompt_length = 2;
  trajectory.loss_mask = {0, 0, 1, 1, 1};
  trajectory.behaviour_logprobs = {NAN, NAN, -0.1f, -2.3f, -0.7f};
  trajectory.version_segments = {{2, 5, 12}};
  trajectory.created_at_unix_ns = 1;
  return trajectory;
}

Frame SmallFrame(const std::string& id) {
  IdMaker ids;
  return *EncodeTrajectory(SmallTrajectory(id), ids);
}

}  // namespace replay::testing
