#include "tests/bench/requests.h"

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "schema/protocol.capnp.h"
#include "schema/trajectory.capnp.h"
#include "tests/bench/process.h"

namespace replay::bench {
namespace {

constexpr char kIdMarker[] = "id-0000000000000000";  // the digits are replaced
constexpr size_t kIdDigits = 16;

void FillTrajectory(schema::Trajectory::Builder trajectory, uint32_t tokens, uint64_t opaque_bytes) {
  std::mt19937 random(tokens);
  trajectory.setTrajectoryId(kIdMarker);
  trajectory.setRunId("bench");
  auto ids = trajectory.initTokenIds(tokens);
  auto mask = trajectory.initLossMask(tokens);
  auto logprobs = trajectory.initBehaviourLogprobs(tokens);
  const uint32_t prompt = tokens / 4;
  for (uint32_t i = 0; i < tokens; ++i) {
    ids.set(i, static_cast<int32_t>(random() % 128'256));
    mask.set(i, i >= prompt);
    logprobs.set(i, i >= prompt ? -static_cast<float>(random() % 4096) / 1024 : std::numeric_limits<float>::quiet_NaN());
  }
  trajectory.setPromptLength(prompt);
  auto version = trajectory.initVersionSegments(1)[0];
  version.setBegin(prompt);
  version.setEnd(tokens);
  version.setVersion(1);
  trajectory.setReward(1);
  trajectory.setCorrect(schema::Correctness::YES);
  trajectory.setSource("gsm8k");
  trajectory.setCreatedAtUnixNs(1'700'000'000'000'000'000);
  if (opaque_bytes > 0) trajectory.initOpaque(static_cast<uint32_t>(opaque_bytes));
}

uint64_t WordsOf(uint32_t tokens) {
  capnp::MallocMessageBuilder message(tokens * 2 + 1024);
  FillTrajectory(message.initRoot<schema::Trajectory>(), tokens, 0);
  return message.getSegmentsForOutput()[0].size();
}

template <typename Fill>
Bytes BuildRequest(uint64_t payload_bytes, const Fill& fill) {
  ControlBuilder builder(4096);
  fill(builder.Start<schema::Request>(4096));
  const auto bytes = builder.Finish(payload_bytes);
  return Bytes(bytes.begin(), bytes.end());
}

size_t FindOnce(std::span<const uint8_t> bytes, std::span<const uint8_t> what) {
  const auto at = std::search(bytes.begin(), bytes.end(), what.begin(), what.end());
  if (at == bytes.end() || std::search(at + 1, bytes.end(), what.begin(), what.end()) != bytes.end())
    Fail("a marker does not stand exactly once in the bytes it was built into");
  return static_cast<size_t>(at - bytes.begin());
}

}  // namespace

FrameTemplate::FrameTemplate(uint32_t bytes) : frame_(bytes) {
  const uint64_t words = (bytes - kFrameTableBytes - kChecksumBytes) / 8;
  uint32_t tokens = (bytes - 400) / 9;  // an id, a mask byte and a log-prob each
  while (WordsOf(tokens) > words) --tokens;
  const uint64_t opaque_bytes = (words - WordsOf(tokens)) * 8;
  std::vector<capnp::word> segment(words);
  capnp::FlatMessageBuilder builder(kj::arrayPtr(segment.data(), segment.size()));
  FillTrajectory(builder.initRoot<schema::Trajectory>(), tokens, opaque_bytes);
  const uint32_t table[2] = {0, static_cast<uint32_t>(words)};
  std::memcpy(frame_.data(), table, sizeof table);
  std::memcpy(frame_.data() + kFrameTableBytes, segment.data(), words * 8);
  SealFrame(frame_);
  const auto* marker = reinterpret_cast<const uint8_t*>(kIdMarker);
  id_offset_ = FindOnce(frame_, {marker, sizeof kIdMarker - 1}) + sizeof kIdMarker - 1 - kIdDigits;
}

void FrameTemplate::Write(uint64_t id, uint8_t* destination) const {
  std::memcpy(destination, frame_.data(), frame_.size());
  char digits[kIdDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(id));
  std::memcpy(destination + id_offset_, digits, kIdDigits);
  SealFrame({destination, frame_.size()});
}

RequestRing::RequestRing(uint32_t count, uint32_t request_bytes)
    : bytes_(new uint8_t[uint64_t{count} * request_bytes]), count_(count), request_bytes_(request_bytes) {}

RequestRing::Run RequestRing::Take(uint32_t most) {
  const uint32_t count = std::min(most, count_ - next_);
  const Run run{{bytes_.get() + uint64_t{next_} * request_bytes_, uint64_t{count} * request_bytes_}, count};
  if (sequence_offset_ > 0) {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t numbers[2] = {++sequence_, acknowledged_};
      std::memcpy(request(next_ + i).data() + sequence_offset_, numbers, sizeof numbers);
    }
  }
  next_ = (next_ + count) % count_;
  return run;
}

RequestRing MakeInsertRing(const InsertRingOptions& options) {
  constexpr uint64_t kMarker = 0x5eed'1234'abcd'9876;  // until the first Take
  static std::mt19937_64 random{std::random_device{}()};
  const FrameTemplate frame(options.payload_bytes);
  const uint32_t sizes[] = {frame.bytes()};
  const Bytes control = options.receipts ? InsertRequest(options.buffer, random() | 1, kMarker, sizes)
                                         : InsertRequest(options.buffer, 0, 0, sizes);
  RequestRing ring(options.count, static_cast<uint32_t>(control.size()) + frame.bytes());
  for (uint32_t i = 0; i < options.count; ++i) {
    std::memcpy(ring.request(i).data(), control.data(), control.size());
    frame.Write(options.first_id + i, ring.request(i).data() + control.size());
  }
  if (options.receipts) ring.PatchSequenceAt(FindOnce(control, {reinterpret_cast<const uint8_t*>(&kMarker), sizeof kMarker}));
  return ring;
}

std::string RedisKey(uint64_t index) {
  char key[16];
  std::snprintf(key, sizeof key, "k%09llu", static_cast<unsigned long long>(index));
  return key;
}

RequestRing MakeRedisSetRing(uint32_t payload_bytes, uint32_t count, uint32_t key_count, uint64_t first_key) {
  const FrameTemplate frame(payload_bytes);
  const auto head = [&](uint32_t i) {
    return "*3\r\n$3\r\nSET\r\n$10\r\n" + RedisKey(first_key + i % key_count) + "\r\n$" + std::to_string(payload_bytes) +
           "\r\n";
  };
  const size_t head_bytes = head(0).size();
  RequestRing ring(count, static_cast<uint32_t>(head_bytes) + payload_bytes + 2);
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* at = ring.request(i).data();
    std::memcpy(at, head(i).data(), head_bytes);
    frame.Write(i, at + head_bytes);
    std::memcpy(at + head_bytes + payload_bytes, "\r\n", 2);
  }
  return ring;
}

Bytes RedisMget(std::span<const uint64_t> keys) {
  std::string text = "*" + std::to_string(keys.size() + 1) + "\r\n$4\r\nMGET\r\n";
  for (uint64_t key : keys) text += "$10\r\n" + RedisKey(key) + "\r\n";
  return Bytes(text.begin(), text.end());
}

Bytes HelloRequest() {
  return BuildRequest(0, [](schema::Request::Builder request) {
    auto hello = request.initHello();
    hello.setProtocolVersion(kProtocolVersion);
    hello.setClientName("replay_bench");
  });
}

Bytes PingRequest() {
  return BuildRequest(0, [](schema::Request::Builder request) { request.setPing(); });
}

Bytes CreateBufferRequest(const BufferSpec& spec) {
  return BuildRequest(0, [&](schema::Request::Builder request) {
    auto create = request.initCreateBuffer();
    create.setName(spec.name);
    auto options = create.initOptions();
    options.setCapacityItems(spec.capacity_items);
    options.setCapacityBytes(spec.capacity_bytes);
    options.setRetention(schema::RetentionKind::FIFO);
    options.setSelector(schema::SelectorKind::UNIFORM);
    options.setMinSize(spec.min_size);
    options.setPaceDraws(true);
    options.setPaceInserts(true);
    options.setSeed(7);
    options.setHasSeed(true);
  });
}

Bytes DropBufferRequest(const std::string& name) {
  return BuildRequest(0, [&](schema::Request::Builder request) { request.initDropBuffer().setName(name); });
}

Bytes StatsRequest(const std::string& buffer) {
  return BuildRequest(0, [&](schema::Request::Builder request) { request.initStats().setBuffer(buffer); });
}

Bytes SampleRequest(const std::string& buffer, uint32_t count, uint32_t timeout_ms) {
  return BuildRequest(0, [&](schema::Request::Builder request) {
    request.setTimeoutMs(timeout_ms);
    auto sample = request.initSample();
    sample.setBuffer(buffer);
    sample.setCount(count);
  });
}

Bytes InsertRequest(const std::string& buffer, uint64_t writer, uint64_t sequence, std::span<const uint32_t> frame_bytes) {
  uint64_t payload_bytes = 0;
  for (uint32_t size : frame_bytes) payload_bytes += size;
  return BuildRequest(payload_bytes, [&](schema::Request::Builder request) {
    request.setTimeoutMs(10'000);
    auto insert = request.initInsert();
    insert.setBuffer(buffer);
    insert.setWriterHigh(writer);
    insert.setWriterLow(writer);
    insert.setSequence(sequence);
    auto sizes = insert.initFrameBytes(static_cast<uint32_t>(frame_bytes.size()));
    for (uint32_t i = 0; i < frame_bytes.size(); ++i) sizes.set(i, frame_bytes[i]);
  });
}

}  // namespace replay::bench
