#include "tests/bench/systems.h"

#include <nlohmann/json.hpp>

#include "schema/protocol.capnp.h"

namespace replay::bench {
namespace {

std::vector<std::string> Command(const DaemonOptions& options, const std::string& config) {
  std::vector<std::string> command = options.wrapper;
  command.insert(command.end(), {options.binary, "--config", config});
  return command;
}

std::string WriteConfig(const DaemonOptions& options, const Endpoint& endpoint, const ScratchDirectory& scratch) {
  const nlohmann::json config = {
      {"server",
       {{"listen", {"127.0.0.1:" + std::to_string(endpoint.tcp_port), "unix:" + endpoint.unix_path}}, {"metrics_listen", ""}}},
      {"memory", {{"limit", options.memory_limit}}},
      {"limits", {{"in_flight_bytes", options.in_flight}, {"verify_checksums", options.verify_checksums}}},
      {"log", {{"level", "warning"}}}};
  WriteFile(scratch.File("replayd.json"), config.dump(2));
  return scratch.File("replayd.json");
}

Stream ConnectOrShowLog(const Endpoint& endpoint, Process& process, const std::string& log) {
  try {
    return Greet(endpoint, Transport::kUnix);
  } catch (const std::exception& error) {
    Fail(std::string(error.what()) + (process.Running() ? "" : "; the server has ended") + "; it said:\n" + ReadFile(log));
  }
}

}  // namespace

Daemon::Daemon(const DaemonOptions& options, const ScratchDirectory& scratch)
    : endpoint_{scratch.File("replayd.sock"), FreePort()},
      process_(
          Process::Exec(Command(options, WriteConfig(options, endpoint_, scratch)), options.core, scratch.File("replayd.log"))),
      control_(ConnectOrShowLog(endpoint_, process_, scratch.File("replayd.log"))) {}

void Daemon::CreateBuffer(const BufferSpec& spec) { Call(control_, CreateBufferRequest(spec)); }

void Daemon::DropBuffer(const std::string& name) { Call(control_, DropBufferRequest(name)); }

Daemon::BufferCounts Daemon::Stats(const std::string& buffer) {
  const ControlReply reply = Call(control_, StatsRequest(buffer));
  ControlReader reader(reply.words.data(), static_cast<uint32_t>(reply.words.size()));
  const auto buffers = reader.Root<schema::Reply>().getStats().getBuffers();
  if (buffers.size() != 1) Fail("Stats did not answer with the one buffer it was asked for");
  return {buffers[0].getItems(), buffers[0].getBytes(), buffers[0].getIndexBytes(), buffers[0].getWaitingSamples()};
}

void Daemon::Stop() {
  control_ = Stream();
  if (const int status = process_.Stop(std::chrono::seconds(60)); status != 0)
    Fail("replayd ended with status " + std::to_string(status) + " on SIGTERM");
}

RedisServer::RedisServer(const ScratchDirectory& scratch)
    : endpoint_{scratch.File("redis.sock"), 0},
      process_(Process::Exec({"redis-server", "--port", "0", "--unixsocket", endpoint_.unix_path, "--save", "", "--appendonly",
                              "no", "--dir", scratch.File("")},
                             kServerCore, scratch.File("redis.log"))) {
  FlushAll();  // waits until it listens
}

void RedisServer::FlushAll() {
  Stream stream = Stream::Connect(endpoint_, Transport::kUnix);
  const std::string command = "*1\r\n$8\r\nFLUSHALL\r\n";
  stream.Send({reinterpret_cast<const uint8_t*>(command.data()), command.size()});
  uint8_t reply[5];
  stream.ReceiveAll(reply);
}

}  // namespace replay::bench
