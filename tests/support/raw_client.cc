#include "tests/support/raw_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "schema/wire.h"

namespace replay::test {

using std::chrono::steady_clock;

// --- Requests ----------------------------------------------------------------------------------------------------------------

Bytes RequestBytes(uint64_t id, uint32_t timeout_ms, const std::function<void(schema::Request::Builder)>& fill,
                   const std::vector<Frame>& payload) {
  ControlBuilder builder;
  auto request = builder.Start<schema::Request>(kMaxRequestControlBytes / 8);
  request.setId(id);
  request.setTimeoutMs(timeout_ms);
  fill(request);
  uint64_t payload_bytes = 0;
  for (const Frame& frame : payload) payload_bytes += frame.size();
  const std::span<const uint8_t> head = builder.Finish(payload_bytes);
  Bytes bytes(head.begin(), head.end());
  for (const Frame& frame : payload) bytes.insert(bytes.end(), frame.bytes().begin(), frame.bytes().end());
  return bytes;
}

Bytes HelloBytes(uint64_t id) {
  return RequestBytes(id, 0, [](schema::Request::Builder request) {
    auto hello = request.initHello();
    hello.setProtocolVersion(kProtocolVersion);
    hello.setClientName("raw");
  });
}

Bytes PingBytes(uint64_t id) {
  return RequestBytes(id, 0, [](schema::Request::Builder request) { request.setPing(); });
}

Bytes InsertBytes(const InsertArgs& args, const std::vector<Frame>& frames) {
  return RequestBytes(
      args.id, args.timeout_ms,
      [&](schema::Request::Builder request) {
        auto insert = request.initInsert();
        insert.setBuffer(args.buffer);
        insert.setWriterLow(args.writer);
        insert.setSequence(args.sequence);
        insert.setAcknowledgedThrough(args.acknowledged_through);
        auto sizes = insert.initFrameBytes(static_cast<uint32_t>(frames.size()));
        for (uint32_t i = 0; i < sizes.size(); ++i) sizes.set(i, static_cast<uint32_t>(frames[i].size()));
      },
      frames);
}

Bytes SampleBytes(const SampleArgs& args) {
  return RequestBytes(args.id, args.timeout_ms, [&](schema::Request::Builder request) {
    auto sample = request.initSample();
    sample.setBuffer(args.buffer);
    sample.setCount(args.count);
    sample.setHasStep(args.step.has_value());
    sample.setStep(args.step.value_or(0));
  });
}

Bytes StatsBytes(uint64_t id, const std::string& buffer) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) { request.initStats().setBuffer(buffer); });
}

Bytes GetBytes(uint64_t id, const std::string& buffer, const std::vector<std::string>& ids) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) {
    auto get = request.initGet();
    get.setBuffer(buffer);
    auto list = get.initIds(static_cast<uint32_t>(ids.size()));
    for (uint32_t i = 0; i < list.size(); ++i) list.set(i, ids[i]);
  });
}

Bytes ScanBytes(uint64_t id, const std::string& buffer, uint64_t after, uint32_t limit) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) {
    auto get = request.initGet();
    get.setBuffer(buffer);
    get.setAfterItem(after);
    get.setLimit(limit);
  });
}

Bytes DeleteBytes(uint64_t id, const std::string& buffer, const std::vector<std::string>& ids) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) {
    auto remove = request.initDelete();
    remove.setBuffer(buffer);
    auto list = remove.initIds(static_cast<uint32_t>(ids.size()));
    for (uint32_t i = 0; i < list.size(); ++i) list.set(i, ids[i]);
  });
}

Bytes DropBytes(uint64_t id, const std::string& buffer) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) { request.initDropBuffer().setName(buffer); });
}

Bytes PublishBytes(uint64_t id, int64_t version, int64_t step, uint64_t epoch, const std::string& run) {
  return RequestBytes(id, 0, [&](schema::Request::Builder request) {
    auto publish = request.initPublishVersion();
    publish.setRunId(run);
    publish.setEpoch(epoch);
    publish.setVersion(version);
    publish.setStep(step);
  });
}

Bytes WaitVersionBytes(uint64_t id, uint32_t timeout_ms, std::optional<int64_t> version, uint64_t epoch,
                       const std::string& run) {
  return RequestBytes(id, timeout_ms, [&](schema::Request::Builder request) {
    auto wait = request.initWaitVersion();
    wait.setRunId(run);
    wait.setEpoch(epoch);
    wait.setHasVersion(version.has_value());
    wait.setVersion(version.value_or(0));
  });
}

Bytes Concatenate(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// --- Replies -----------------------------------------------------------------------------------------------------------------

RawReply::RawReply(Preamble preamble, std::vector<uint64_t> control, Bytes payload)
    : control_(std::make_unique<std::vector<uint64_t>>(std::move(control))),
      payload_(std::move(payload)),
      reader_(std::make_unique<ControlReader>(control_->data(), preamble.control_words)) {}

std::vector<Frame> RawReply::Frames() const {
  const auto reply = get();
  std::vector<uint32_t> sizes;
  const auto take = [&](auto list) {
    for (uint32_t size : list) sizes.push_back(size);
  };
  if (reply.isSample()) take(reply.getSample().getFrameBytes());
  if (reply.isGet()) take(reply.getGet().getFrameBytes());
  std::vector<Frame> frames;
  size_t at = 0;
  for (uint32_t size : sizes) {
    if (size > payload_.size() - at) throw std::runtime_error("the reply's frame sizes exceed its payload");
    frames.push_back(Frame::CopyOf({payload_.data() + at, size}));
    at += size;
  }
  if (at != payload_.size()) throw std::runtime_error("the reply's frame sizes do not add up to its payload");
  return frames;
}

std::string RawReply::ToString() const {
  std::string text = std::to_string(id()) + " " + CodeName(code());
  if (reason() != schema::WaitReason::NONE) text += " " + ReasonName(reason());
  if (!message().empty()) text += ": " + message();
  return text;
}

std::string CodeName(schema::ErrorCode code) {
  static constexpr const char* kNames[] = {"ok",
                                           "invalidArgument",
                                           "notFound",
                                           "alreadyExists",
                                           "timedOut",
                                           "resourceExhausted",
                                           "failedPrecondition",
                                           "writerExpired",
                                           "corrupted",
                                           "unavailable",
                                           "bufferDropped",
                                           "unsupportedVersion",
                                           "protocolViolation",
                                           "internal",
                                           "plan_expired",
                                           "key_reused"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "code " + std::to_string(index);
}

std::string ReasonName(schema::WaitReason reason) {
  static constexpr const char* kNames[] = {"none",   "minSize", "pacing",   "staleness",  "filter", "groupIncomplete",
                                           "memory", "storage", "draining", "noProducer", "version"};
  const auto index = static_cast<size_t>(reason);
  return index < std::size(kNames) ? kNames[index] : "reason " + std::to_string(index);
}

// --- The connection ----------------------------------------------------------------------------------------------------------

namespace {

int Connect(const std::string& text) {
  Address address;
  if (const std::string error = ParseAddress(text, &address); !error.empty()) throw std::runtime_error(error);
  int fd = -1;
  int result = -1;
  if (address.is_unix()) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address.unix_path.c_str(), address.unix_path.size() + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    result = connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to);
  } else {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0)
      throw std::runtime_error("cannot resolve " + text);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    result = connect(fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
  }
  if (result != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    throw std::runtime_error("cannot connect to " + text + ": " + std::strerror(error));
  }
  ConfigureSocket(fd);
  return fd;
}

int MillisecondsUntil(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

}  // namespace

RawClient::RawClient(const std::string& address, bool hello) : fd_(Connect(address)) {
  if (hello && !Call(HelloBytes()).ok()) throw std::runtime_error("Hello was refused");
}

RawClient::RawClient(RawClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RawClient& RawClient::operator=(RawClient&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool RawClient::Send(std::span<const uint8_t> bytes, milliseconds deadline) {
  const auto until = steady_clock::now() + deadline;
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    pollfd wait{fd_, POLLOUT, 0};
    if (poll(&wait, 1, MillisecondsUntil(until)) == 0) return false;
  }
  return true;
}

void RawClient::ReadExactly(uint8_t* bytes, size_t count, steady_clock::time_point deadline) {
  while (count > 0) {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, MillisecondsUntil(deadline)) == 0) throw NoReply("no reply by the deadline");
    const ssize_t got = recv(fd_, bytes, count, MSG_DONTWAIT);
    if (got == 0) throw NoReply("the peer closed the connection");
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) throw NoReply(std::string("the connection broke: ") + std::strerror(errno));
    bytes += got;
    count -= static_cast<size_t>(got);
  }
}

RawReply RawClient::Receive(milliseconds deadline) {
  const auto until = steady_clock::now() + deadline;
  Preamble preamble;
  ReadExactly(reinterpret_cast<uint8_t*>(&preamble), sizeof preamble, until);
  if (const std::string error = CheckPreamble(preamble, kMaxReplyControlBytes, kMaxReplyPayloadBytes); !error.empty())
    throw std::runtime_error("a reply's preamble is wrong: " + error);
  std::vector<uint64_t> control(preamble.control_words);
  ReadExactly(reinterpret_cast<uint8_t*>(control.data()), control.size() * 8, until);
  Bytes payload(preamble.payload_bytes);
  ReadExactly(payload.data(), payload.size(), until);
  return RawReply(preamble, std::move(control), std::move(payload));
}

bool RawClient::WaitClosed(milliseconds deadline) {
  const auto until = steady_clock::now() + deadline;
  uint8_t sink[4096];
  for (;;) {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, MillisecondsUntil(until)) == 0) return false;
    const ssize_t got = recv(fd_, sink, sizeof sink, MSG_DONTWAIT);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    return true;
  }
}

bool RawClient::Readable(milliseconds deadline) const {
  pollfd wait{fd_, POLLIN, 0};
  return poll(&wait, 1, static_cast<int>(deadline.count())) > 0;
}

void RawClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void RawClient::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  Close();
}

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

// --- Stats -------------------------------------------------------------------------------------------------------------------

std::string BufferCounts::Violation() const {
  if (offered != accepted + duplicate + rejected)
    return "offered " + std::to_string(offered) + " != accepted " + std::to_string(accepted) + " + duplicate " +
           std::to_string(duplicate) + " + rejected " + std::to_string(rejected);
  if (accepted != items + removed)
    return "accepted " + std::to_string(accepted) + " != items " + std::to_string(items) + " + removed " +
           std::to_string(removed);
  return "";
}

BufferCounts StatsOf(RawClient& client, const std::string& buffer) {
  const RawReply reply = client.Call(StatsBytes(900, buffer));
  BufferCounts counts;
  for (const auto& shown : reply.get().getStats().getBuffers()) {
    if (std::string(shown.getName().cStr()) != buffer) continue;
    counts.items = shown.getItems();
    counts.bytes = shown.getBytes();
    counts.offered = shown.getOffered();
    counts.accepted = shown.getAccepted();
    counts.duplicate = shown.getDuplicate();
    counts.rejected = shown.getRejected();
    for (const auto& removed : shown.getRemoved()) counts.removed += removed.getCount();
    counts.drawn = shown.getDrawn();
    counts.samples = shown.getSamples();
    counts.waiting_inserts = shown.getWaitingInserts();
    counts.waiting_samples = shown.getWaitingSamples();
    counts.producers = shown.getProducers();
    counts.consumers = shown.getConsumers();
    return counts;
  }
  throw std::runtime_error("Stats shows no buffer \"" + buffer + "\": " + reply.ToString());
}

ServerCounts ServerStatsOf(RawClient& client) {
  const RawReply reply = client.Call(StatsBytes(901));
  const auto server = reply.get().getStats().getServer();
  ServerCounts counts{server.getConnections(), server.getAcceptedConnections(), server.getMemoryUsedBytes(),
                      server.getGeneration()};
  for (const auto& buffer : reply.get().getStats().getBuffers()) {
    counts.live_bytes += buffer.getBytes();
    counts.waiting += buffer.getWaitingInserts() + buffer.getWaitingSamples();
  }
  return counts;
}

BufferCounts StatsUntil(RawClient& client, const std::function<bool(const BufferCounts&)>& done, const std::string& buffer,
                        milliseconds deadline) {
  const auto until = steady_clock::now() + deadline;
  for (;;) {
    const BufferCounts counts = StatsOf(client, buffer);
    if (done(counts) || steady_clock::now() >= until) return counts;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

}  // namespace replay::test
