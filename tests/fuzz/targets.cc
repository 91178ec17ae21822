#include "tests/fuzz/targets.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <capnp/dynamic.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>

#include "client/column.h"
#include "schema/column.h"
#include "schema/protocol.capnp.h"
#include "schema/validate.h"
#include "server/config.h"
#include "server/session.h"
#include "tests/support/make_column.h"
#include "tests/support/make_trajectory.h"
#include "tests/support/mutate.h"
#include "tests/support/raw_client.h"

namespace replay::test {
namespace {

// A finding that no sanitizer would see.
void Require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "fuzz target: " << what << std::endl;
  std::abort();
}

// The input as words; a rest that fills no word is cut off.
std::vector<uint64_t> AsWords(std::span<const uint8_t> input) {
  std::vector<uint64_t> words(input.size() / 8);
  if (!words.empty()) std::memcpy(words.data(), input.data(), words.size() * 8);
  return words;
}

Bytes AsBytes(const std::vector<uint64_t>& words) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  return Bytes(bytes, bytes + words.size() * 8);
}

// --- frame ---------------------------------------------------------------------------------------------------------------------

void RunFrame(std::span<const uint8_t> input) {
  const Frame frame = Frame::CopyOf(input);  // A block of its own: AddressSanitizer sees a read beyond it.
  TrajectoryFacts facts[2];
  bool checksum_error = false;
  const std::string strict = ValidateTrajectory(frame.bytes(), {}, &facts[0], &checksum_error);
  const std::string error = ValidateTrajectory(frame.bytes(), {.check_checksum = false}, &facts[0]);
  Require(!strict.empty() || error.empty(), "valid with its checksum but not without");
  Require(!checksum_error || !strict.empty(), "a checksum error without an error");
  if (!error.empty()) return;
  Require(facts[0].token_count > 0 && facts[0].token_count <= input.size() / 4, "more tokens than bytes");
  Require(facts[0].min_version <= facts[0].max_version, "versions out of order");
  Require(facts[0].group == Key128{} || facts[0].index_in_group < facts[0].group_size, "an index outside its group");
  ReadWholeTrajectory(frame, kReadPasses);  // Throws if what was let through cannot be read.
  facts[1] = facts[0];
  GroupScratch scratch;
  ValidateGroups({facts, 1}, &scratch);
  Require(!ValidateGroups(facts, &scratch).empty(), "one trajectory twice in a request was accepted");
}

std::vector<Bytes> FrameSeeds() {
  std::vector<Bytes> seeds;
  for (const TrajectoryOptions& options :
       {TrajectoryOptions{.length = 1}, TrajectoryOptions{.length = 40, .versions = {1, 2}, .rich = true},
        TrajectoryOptions{.group = "g", .group_size = 2, .length = 7, .rich = true}}) {
    const Frame frame = MakeTrajectory(options);
    seeds.emplace_back(frame.bytes().begin(), frame.bytes().end());
  }
  return seeds;
}

void MutateFrame(Bytes* input, std::mt19937_64& random) {
  if (input->size() < kMinFrameBytes || random() % 64 == 0) {
    if (!input->empty()) (*input)[random() % input->size()] ^= static_cast<uint8_t>(1u << random() % 8);
    return;
  }
  std::vector<uint64_t> words = AsWords(std::span(*input).subspan(kFrameTableBytes, input->size() - kMinFrameBytes + 8));
  MutateWords(&words, random);
  const Frame sealed = SealWords(words);
  input->assign(sealed.bytes().begin(), sealed.bytes().end());
}

// --- column --------------------------------------------------------------------------------------------------------------------

template <typename T>
bool IsInside(std::span<const T> part, std::span<const uint8_t> frame) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(part.data());
  return part.empty() || (begin >= frame.data() && begin + part.size_bytes() <= frame.data() + frame.size());
}

// Values of a type that is not the column's are none; of its own they are all of its bytes, and can be read.
template <typename T>
uint64_t VisitValues(const ColumnView& column) {
  const std::span<const T> values = column.values<T>();
  const bool of_type = column.type() == ColumnTypeOf<T>();
  Require(values.size_bytes() == (of_type ? column.bytes().size() : 0), "values that are not the bytes");
  Require(IsInside(values, column.bytes()), "values outside the bytes");
  uint64_t zeros = 0;
  for (const T value : values) zeros += value == T(0);
  return zeros;
}

void RunColumn(std::span<const uint8_t> input) {
  const Frame frame = Frame::CopyOf(input);  // A block of its own: AddressSanitizer sees a read beyond it.
  FrameColumn parsed;
  bool checksum_error = false;
  const std::string strict = ReadColumn(frame.bytes(), /*check_checksum=*/true, &parsed, &checksum_error);
  const std::string error = ReadColumn(frame.bytes(), /*check_checksum=*/false, &parsed);
  Require(!strict.empty() || error.empty(), "valid with its checksum but not without");
  Require(!checksum_error || !strict.empty(), "a checksum error without an error");
  const Result<ColumnView> view = ViewColumn(frame);
  Require(bool{view} == error.empty(), "server and client disagree");
  if (!error.empty()) return;

  const std::span<const uint8_t> all = frame.bytes();
  Require(IsInside(std::span(view->name()), all) && IsInside(view->shape(), all) && IsInside(view->offsets(), all) &&
              IsInside(view->bytes(), all),
          "a part lies outside the frame");
  uint64_t values = 1;
  for (const int64_t size : view->shape()) values *= static_cast<uint64_t>(size);
  Require(values * WidthOf(parsed.type) == view->bytes().size(), "shape and bytes disagree");
  for (size_t token = 1; token < view->offsets().size(); ++token)
    Require(view->offsets()[token - 1] <= view->offsets()[token] && view->offsets()[token] <= view->shape()[0],
            "a token's rows lie outside the first dimension");
  const uint64_t zeros = VisitValues<uint8_t>(*view) + VisitValues<int8_t>(*view) + VisitValues<uint16_t>(*view) +
                         VisitValues<int16_t>(*view) + VisitValues<int32_t>(*view) + VisitValues<int64_t>(*view) +
                         VisitValues<float>(*view) + VisitValues<double>(*view);
  Require(zeros <= values, "more values than the shape has");

  // Whole and copied out, it is built to the same bytes again, but for a checksum that was not compared.
  const Column copy = view->ToColumn();
  FrameColumn again = parsed;
  again.name = copy.name;
  again.shape = copy.shape;
  again.offsets = copy.offsets;
  again.data = copy.bytes;
  Frame built;
  Require(BuildColumn(again, &built).empty(), "what was read cannot be built");
  const size_t same = strict.empty() ? all.size() : all.size() - kChecksumBytes;
  Require(built.size() == all.size() && std::memcmp(built.data(), all.data(), same) == 0, "it is built to other bytes");
}

std::vector<Bytes> ColumnSeeds() {
  using Type = FrameColumn::Type;
  using Alignment = FrameColumn::Alignment;
  std::vector<Bytes> seeds;
  for (const ColumnOptions& options :
       {ColumnOptions{.length = 1}, ColumnOptions{.name = "experts", .type = Type::kU8, .length = 5, .more = {4, 8}},
        ColumnOptions{.name = "image", .type = Type::kBf16, .alignment = Alignment::kRow, .length = 3, .more = {7, 0, 2}},
        ColumnOptions{.type = Type::kBool, .alignment = Alignment::kRagged, .length = 4, .offsets = {0, 0, 3, 3, 9}},
        ColumnOptions{.type = Type::kI64, .alignment = Alignment::kRagged, .length = 2, .more = {2}, .offsets = {0, 1, 2}}}) {
    const Frame frame = MakeColumn(options);
    seeds.emplace_back(frame.bytes().begin(), frame.bytes().end());
  }
  return seeds;
}

void MutateColumn(Bytes* input, std::mt19937_64& random) {
  std::vector<uint64_t> words = AsWords(*input);
  if (words.size() * 8 >= kMinColumnBytes && random() % 2 == 0) {
    // Type, alignment, rank or length of the name, or the number of tokens: what decides where the parts lie.
    auto* const header = reinterpret_cast<uint8_t*>(words.data());
    header[random() % 2 == 0 ? 4 + random() % 4 : 24] = static_cast<uint8_t>(random() % 16);
  } else {
    MutateWords(&words, random);
  }
  *input = AsBytes(words);
  if (input->size() >= kChecksumBytes && random() % 8 > 0) SealFrame(*input);
}

// --- request and reply -----------------------------------------------------------------------------------------------------------

// Visits every field of every struct and every entry of every list. The reader's limits bound it.
uint64_t VisitAll(capnp::DynamicValue::Reader value) {
  switch (value.getType()) {
    case capnp::DynamicValue::TEXT:
      return value.as<capnp::Text>().size();
    case capnp::DynamicValue::DATA:
      return value.as<capnp::Data>().size();
    case capnp::DynamicValue::LIST: {
      uint64_t sum = 0;
      for (const auto entry : value.as<capnp::DynamicList>()) sum += 1 + VisitAll(entry);
      return sum;
    }
    case capnp::DynamicValue::STRUCT: {
      const auto reader = value.as<capnp::DynamicStruct>();
      uint64_t sum = 0;
      for (const auto field : reader.getSchema().getNonUnionFields()) sum += 1 + VisitAll(reader.get(field));
      KJ_IF_MAYBE (chosen, reader.which()) sum += 1 + VisitAll(reader.get(*chosen));
      return sum;
    }
    default:
      return 1;
  }
}

template <typename T>
void RunControl(std::span<const uint8_t> input) {
  const std::vector<uint64_t> words = AsWords(input);
  const std::unique_ptr<uint64_t[]> exact(new uint64_t[words.size()]);
  std::copy(words.begin(), words.end(), exact.get());
  try {
    ControlReader reader(exact.get(), static_cast<uint32_t>(words.size()));
    const uint64_t visited = VisitAll(capnp::DynamicStruct::Reader(reader.Root<T>()));
    // A word of the traversal limit buys at most 64 bits of a list, or one empty struct of some 70 fields, each counted twice.
    Require(visited <= 256 * kReadPasses * (words.size() + 256), "more was read than the limits allow");
  } catch (const kj::Exception&) {
  }
}

void RunRequest(std::span<const uint8_t> input) {
  RunControl<schema::Request>(input);
  const std::vector<uint64_t> words = AsWords(input);
  const std::unique_ptr<uint64_t[]> exact(new uint64_t[words.size()]);
  std::copy(words.begin(), words.end(), exact.get());
  static server::Request request;  // Reused as a session does it.
  const auto failure = server::DecodeRequest(exact.get(), static_cast<uint32_t>(words.size()), &request);
  if (!failure)
    Require(request.buffer.size() <= kMaxBufferNameBytes && request.ids.size() <= kMaxIdsPerRequest, "a limit was passed");
}

// A control message without its preamble.
Bytes ControlOf(const Bytes& message) {
  Preamble preamble;
  std::memcpy(&preamble, message.data(), sizeof preamble);
  return Bytes(message.begin() + sizeof preamble, message.begin() + sizeof preamble + preamble.control_words * 8);
}

constexpr const char* kColumnId = "with-column";

// A trajectory that comes with a column, which is replaced later.
Bytes ColumnInsertBytes(uint64_t id) {
  const Frame core = MakeTrajectory(
      {.id = kColumnId, .length = 4, .edit = [](auto trajectory) { trajectory.initColumnNames(1).set(0, "c"); }});
  const Frame column = MakeColumn({.id = kColumnId, .length = 4});
  return RequestBytes(id, 0,
                      [&](auto request) {
                        auto insert = request.initInsert();
                        insert.setBuffer("rollouts");
                        insert.initFrameBytes(1).set(0, static_cast<uint32_t>(core.size()));
                        insert.initColumns(1)[0].setBytes(static_cast<uint32_t>(column.size()));
                      },
                      {core, column});
}

Bytes ColumnUpdateBytes(uint64_t id) {
  const Frame column = MakeColumn({.id = kColumnId, .type = FrameColumn::Type::kI8, .length = 4, .more = {3}});
  return RequestBytes(id, 0,
                      [&](auto request) {
                        auto update = request.initUpdate();
                        update.setBuffer("rollouts");
                        update.initUpdates(1)[0].setId(kColumnId);
                        update.initColumns(1)[0].setBytes(static_cast<uint32_t>(column.size()));
                      },
                      {column});
}

// Every verb once.
std::vector<Bytes> Messages() {
  return {HelloBytes(1),
          InsertBytes({.id = 3, .writer = 9, .sequence = 1}, MakeGroup(2, {.id = "g", .length = 4})),
          InsertBytes({.id = 4}, {MakeTrajectory({.id = "a", .length = 6, .versions = {1}, .rich = true})}),
          ColumnInsertBytes(19),
          ColumnUpdateBytes(20),
          SampleBytes({.id = 5, .count = 2, .step = 3}),
          GetBytes(6, "rollouts", {"a", "g-0", "none"}),
          ScanBytes(7, "rollouts", 0, 10),
          DeleteBytes(8, "rollouts", {"a"}),
          PublishBytes(9, 4, 4, 0, "run"),
          WaitVersionBytes(10, 0, 3, 0, "run"),
          StatsBytes(11),
          PingBytes(12),
          RequestBytes(13, 0, [](auto request) { request.initWaiters(); }),
          RequestBytes(14, 0, [](auto request) { request.initVersions(); }),
          RequestBytes(15, 0,
                       [](auto request) {
                         auto create = request.initCreateBuffer();
                         create.setName("new");
                         auto options = create.initOptions();
                         options.setCapacityItems(10);
                         options.setMinSize(1);
                         options.setDelta("0.25");
                         options.setRetention(schema::RetentionKind::POSITIVE_BIAS);
                       }),
          RequestBytes(16, 0,
                       [](auto request) {
                         auto alter = request.initAlterBuffer();
                         alter.setName("paced");
                         auto options = alter.initOptions();
                         options.setCapacityItems(20);
                         options.setReplayRatio(2);
                         options.setTolerance(50);
                         auto fields = alter.initFields(3);
                         fields.set(0, "capacity_items");
                         fields.set(1, "replay_ratio");
                         fields.set(2, "tolerance");
                       }),
          RequestBytes(17, 0,
                       [](auto request) {
                         auto cost = request.initReportCost();
                         cost.setBuffer("rollouts");
                         cost.setGenerationSeconds(1.5);
                         cost.setWorkers(3);
                       }),
          DropBytes(18, "new")};
}

std::vector<Bytes> RequestSeeds() {
  std::vector<Bytes> seeds;
  for (const Bytes& message : Messages()) seeds.push_back(ControlOf(message));
  return seeds;
}

std::vector<Bytes> ReplySeeds() {
  std::vector<Bytes> seeds;
  const auto add = [&](auto fill) {
    ControlBuilder builder;
    auto reply = builder.Start<schema::Reply>(4096);
    reply.setId(7);
    fill(reply);
    const std::span<const uint8_t> message = builder.Finish(0);
    seeds.push_back(ControlOf(Bytes(message.begin(), message.end())));
  };
  add([](schema::Reply::Builder reply) {
    reply.setCode(schema::ErrorCode::TIMED_OUT);
    reply.setWaitReason(schema::WaitReason::MIN_SIZE);
    reply.setMessage("12 of 64 items present");
  });
  add([](schema::Reply::Builder reply) { reply.initHello().setServerVersion("0.1.0"); });
  add([](schema::Reply::Builder reply) { reply.initInsert().setCount(3); });
  add([](schema::Reply::Builder reply) {
    auto sample = reply.initSample();
    sample.initDraws(3)[2].setProbability(0.5);
    sample.initFrameBytes(2).set(1, 4096);
  });
  add([](schema::Reply::Builder reply) {
    auto get = reply.initGet();
    get.initFound(2);
    get.initItems(2);
    get.initDrawCounts(2);
    get.initFrameBytes(2);
  });
  add([](schema::Reply::Builder reply) {
    auto stats = reply.initStats();
    stats.initServer().initRequests(1)[0].setName("Insert");
    auto buffer = stats.initBuffers(1)[0];
    buffer.setName("rollouts");
    buffer.initOptions().setDelta("0.25");
    buffer.initStaleness().initBounds(3);
    buffer.initRemoved(1)[0].setName("capacity");
  });
  add([](schema::Reply::Builder reply) { reply.initWaiters().initWaiters(1)[0].setDetail("12 of 64"); });
  add([](schema::Reply::Builder reply) { reply.initVersions().initVersions(2)[1].setUri("/weights/2"); });
  return seeds;
}

void MutateControl(Bytes* input, std::mt19937_64& random) {
  std::vector<uint64_t> words = AsWords(*input);
  MutateWords(&words, random);
  *input = AsBytes(words);
}

// --- config ----------------------------------------------------------------------------------------------------------------------

void RunConfig(std::span<const uint8_t> input) {
  const std::string text(input.begin(), input.end());
  try {
    const server::ServerConfig config = server::ParseConfig(text);
    Require(!config.listen.empty() && config.in_flight_bytes <= config.memory_limit_bytes / 2,
            "a rule between keys was passed");
  } catch (const ConfigError& error) {
    Require(std::string_view(error.what()).size() > 0, "an error without a sentence");
  }
}

std::vector<Bytes> ConfigSeeds() {
  const std::string text = R"({"server": {"listen": ["127.0.0.1:7070", "unix:/run/r.sock"], "metrics_listen": "127.0.0.1:7071",
    "io_threads": 1, "max_connections": 10000, "insecure_ok": false, "handshake_timeout": "5s", "send_timeout": "30s"},
    "memory": {"limit": "4GiB"}, "limits": {"in_flight_bytes": "1GiB", "max_buffers": 64, "max_wait": "1h",
    "verify_checksums": true},
    "log": {"level": "info"}, "buffers": [{"name": "rollouts", "policy": "positive_bias", "delta": 0.25, "capacity_items": 2268,
    "capacity_bytes": "1GiB", "max_draws": 0, "replay_ratio": 2.0, "tolerance": 256, "min_size": 64,
    "max_draws_per_sample": 64, "max_insert": 8, "seed": 1, "correct_threshold": 0.5}]})";
  return {Bytes(text.begin(), text.end()), {'{', '}'}};
}

void MutateText(Bytes* input, std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 "\"",
                                                 ":",
                                                 ",",
                                                 "null",
                                                 "true",
                                                 "-",
                                                 "0",
                                                 "1e400",
                                                 ".5",
                                                 "\"64MiB\"",
                                                 "\"30s\"",
                                                 "\\u0000",
                                                 "9223372036854775808",
                                                 "\"name\":",
                                                 "//",
                                                 "/*"};
  for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    if (input->empty()) input->push_back('{');
    const auto at = static_cast<std::ptrdiff_t>(random() % input->size());
    const auto left = static_cast<std::ptrdiff_t>(input->size()) - at;
    switch (random() % 4) {
      case 0:
        (*input)[static_cast<size_t>(at)] = static_cast<uint8_t>(random());
        break;
      case 1:
        input->erase(input->begin() + at, input->begin() + at + std::min<std::ptrdiff_t>(left, 1 + random() % 12));
        break;
      case 2: {
        const std::string_view piece = kPieces[random() % std::size(kPieces)];
        input->insert(input->begin() + at, piece.begin(), piece.end());
        break;
      }
      default: {
        const Bytes piece(input->begin() + at, input->begin() + at + std::min<std::ptrdiff_t>(left, 1 + random() % 40));
        input->insert(input->begin() + static_cast<std::ptrdiff_t>(random() % input->size()), piece.begin(), piece.end());
      }
    }
  }
}

// --- session -----------------------------------------------------------------------------------------------------------------------

server::ServerConfig SessionConfig() {
  return server::ParseConfig(R"({"memory": {"limit": "64MiB"}, "limits": {"in_flight_bytes": "4MiB"},
    "buffers": [{"name": "rollouts", "capacity_items": 50, "capacity_bytes": "8MiB"},
                {"name": "paced", "capacity_items": 50, "capacity_bytes": "8MiB", "replay_ratio": 1.0, "tolerance": 4,
                 "max_draws_per_sample": 4, "max_insert": 4}]})");
}

// Everything a client sends arrives at once and its sending side closes: the session answers what it can and ends.
void RunSession(std::span<const uint8_t> input) {
  static const server::ServerConfig config = SessionConfig();
  constexpr size_t kMostBytes = 150'000;  // fits the socket's buffer, so that one thread can play both sides
  if (input.size() > kMostBytes) return;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  const int room = 1 << 20;
  setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  Require(send(ends[1], input.data(), input.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(input.size()),
          "the input did not fit");
  shutdown(ends[1], SHUT_WR);
  {
    MemoryBudget budget(static_cast<int64_t>(config.memory_limit_bytes));
    std::vector<std::unique_ptr<server::IoThread>> threads;
    threads.push_back(std::make_unique<server::IoThread>(0));
    server::StorageThread storage;
    Require(!storage.Open(config, &budget).failed(), "nothing is kept, so nothing can fail");
    server::ReplayService service(config, threads, budget, storage);
    Require(service.DeclareBuffers().empty(), "the buffers were refused");
    asio::io_context& context = threads[0]->context;
    service.connections = 1;
    auto session = std::make_unique<server::Session>(
        *threads[0], service, Socket(context.get_executor(), asio::generic::stream_protocol(AF_UNIX, 0), ends[0]), "fuzz");
    asio::co_spawn(context, server::Session::Run(std::move(session)), asio::detached);
    uint8_t sink[65'536];
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (service.connections.load() > 0) {
      context.run_for(std::chrono::milliseconds(1));
      context.restart();
      while (recv(ends[1], sink, sizeof sink, MSG_DONTWAIT) > 0) {
      }
      Require(std::chrono::steady_clock::now() < deadline, "the session did not end");
    }
    // A client that is gone has left no waiter, and no memory beyond the live items.
    int64_t live_bytes = 0;
    for (const auto& [name, host] : *threads[0]->directory) {
      Require(host->sample_waiters.empty() && host->insert_waiters.empty(), "a waiter was left behind");
      host->buffer->CheckInvariants();
      const server::BufferStats stats = host->buffer->Stats();
      live_bytes += static_cast<int64_t>(stats.bytes + stats.column_bytes);
    }
    Require(threads[0]->version_waiters.empty() && threads[0]->memory_waiters.empty(), "a waiter was left behind");
    Require(service.budget().used_bytes() == live_bytes, "memory was left behind");
  }
  close(ends[1]);
}

std::vector<Bytes> SessionSeeds() {
  Bytes all;
  std::vector<Bytes> seeds;
  for (const Bytes& message : Messages()) {
    all.insert(all.end(), message.begin(), message.end());
    if (!seeds.empty())
      seeds.push_back(Concatenate({seeds[0], message}));
    else
      seeds.push_back(message);
  }
  seeds.push_back(all);
  return seeds;
}

// The input cut into messages as its preambles say; what is not a message is the last piece.
std::vector<Bytes> SplitMessages(const Bytes& input) {
  std::vector<Bytes> messages;
  size_t at = 0;
  while (input.size() - at >= sizeof(Preamble)) {
    Preamble preamble;
    std::memcpy(&preamble, input.data() + at, sizeof preamble);
    const uint64_t size = sizeof preamble + preamble.control_words * uint64_t{8} + preamble.payload_bytes % (1 << 30);
    if (size > input.size() - at) break;
    messages.emplace_back(input.begin() + static_cast<std::ptrdiff_t>(at),
                          input.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
  }
  if (at < input.size()) messages.emplace_back(input.begin() + static_cast<std::ptrdiff_t>(at), input.end());
  return messages;
}

// Lies in one message's control words or payload, with an honest preamble mostly.
void MutateMessage(Bytes* message, std::mt19937_64& random) {
  Preamble preamble;
  if (message->size() < sizeof preamble + 8) return MutateControl(message, random);
  std::memcpy(&preamble, message->data(), sizeof preamble);
  const size_t control_end = sizeof preamble + preamble.control_words * size_t{8};
  if (control_end > message->size() || random() % 16 == 0) return MutateControl(message, random);
  Bytes control(message->begin() + sizeof preamble, message->begin() + static_cast<std::ptrdiff_t>(control_end));
  Bytes payload(message->begin() + static_cast<std::ptrdiff_t>(control_end), message->end());
  if (!payload.empty() && random() % 2 == 0) {
    if (payload.size() >= kMinFrameBytes && random() % 2 == 0)
      MutateFrame(&payload, random);
    else
      payload[random() % payload.size()] ^= static_cast<uint8_t>(random());
  } else {
    MutateControl(&control, random);
  }
  preamble.control_words = static_cast<uint32_t>(control.size() / 8);
  preamble.payload_bytes = payload.size();
  const auto* head = reinterpret_cast<const uint8_t*>(&preamble);
  *message = Concatenate({Bytes(head, head + sizeof preamble), control, payload});
}

void MutateSession(Bytes* input, std::mt19937_64& random) {
  std::vector<Bytes> messages = SplitMessages(*input);
  static const std::vector<Bytes> known = Messages();
  for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
    const size_t at = messages.empty() ? 0 : random() % messages.size();
    switch (random() % 6) {
      case 0:
        messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(at), known[random() % known.size()]);
        break;
      case 1:
        if (!messages.empty()) messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 2:
        if (!messages.empty()) std::swap(messages[at], messages[random() % messages.size()]);
        break;
      default:
        if (!messages.empty()) MutateMessage(&messages[at], random);
    }
  }
  input->clear();
  for (const Bytes& message : messages) input->insert(input->end(), message.begin(), message.end());
  if (random() % 16 == 0 && !input->empty()) input->resize(random() % input->size());
}

constexpr FuzzTarget kTargets[] = {
    {"frame", RunFrame, FrameSeeds, MutateFrame},         {"column", RunColumn, ColumnSeeds, MutateColumn},
    {"request", RunRequest, RequestSeeds, MutateControl}, {"reply", RunControl<schema::Reply>, ReplySeeds, MutateControl},
    {"config", RunConfig, ConfigSeeds, MutateText},       {"session", RunSession, SessionSeeds, MutateSession}};

}  // namespace

std::span<const FuzzTarget> FuzzTargets() { return kTargets; }

}  // namespace replay::test
