// Redis through hiredis, as a program would use it: the load generators of load.h that need its library.

#include <hiredis/hiredis.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "schema/wire.h"
#include "tests/bench/load.h"
#include "tests/bench/process.h"

namespace replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Redis {
  explicit Redis(const std::string& unix_path) : context(redisConnectUnix(unix_path.c_str())) {
    if (context == nullptr || context->err != 0) Fail("hiredis cannot connect to " + unix_path);
    ConfigureSocket(context->fd);  // as every client here
  }
  ~Redis() { redisFree(context); }
  Redis(const Redis&) = delete;
  Redis& operator=(const Redis&) = delete;
  redisContext* context;
};

using Reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

// The next reply if it has arrived; waits for it with `wait`.
Reply NextReply(redisContext* context, bool wait) {
  void* reply = nullptr;
  const int status = wait ? redisGetReply(context, &reply) : redisGetReplyFromReader(context, &reply);
  if (status != REDIS_OK) Fail(std::string("hiredis: ") + context->errstr);
  return Reply(static_cast<redisReply*>(reply), freeReplyObject);
}

}  // namespace

Load RunHiredisSet(const std::string& unix_path, RequestRing& values, uint32_t key_count, const PipelineOptions& options) {
  Redis redis(unix_path);
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < key_count; ++i) keys.push_back(RedisKey(i));
  uint32_t next = 0;
  const auto send = [&](uint32_t most) {
    for (uint32_t i = 0; i < most; ++i, ++next) {
      const std::span<const uint8_t> request = values.request(next % values.count());
      const std::string& key = keys[next % key_count];
      const char* arguments[] = {"SET", key.data(),
                                 reinterpret_cast<const char*>(request.data() + request.size() - options.payload_bytes)};
      const size_t sizes[] = {3, key.size(), options.payload_bytes};
      if (redisAppendCommandArgv(redis.context, 3, arguments, sizes) != REDIS_OK) Fail("hiredis cannot append a command");
    }
    for (int done = 0; done == 0;)
      if (redisBufferWrite(redis.context, &done) != REDIS_OK) Fail("hiredis cannot write");
    return most;
  };
  const auto receive = [&] {
    uint32_t replies = 0;
    for (Reply reply = NextReply(redis.context, true); reply; reply = NextReply(redis.context, false)) {
      if (reply->type != REDIS_REPLY_STATUS || std::strcmp(reply->str, "OK") != 0)
        Fail("Redis answered something else than OK");
      ++replies;
    }
    return replies;
  };
  return KeepWindow(options, send, receive);
}

Load RunHiredisMget(const std::string& unix_path, const SampleOptions& options) {
  Redis redis(unix_path);
  Load load;
  const auto begin = Clock::now();
  auto now = begin;
  while (now - begin < std::chrono::duration<double>(options.seconds)) {
    const Bytes& request = options.requests[load.operations % options.requests.size()];
    redisAppendFormattedCommand(redis.context, reinterpret_cast<const char*>(request.data()), request.size());
    const Reply reply = NextReply(redis.context, true);
    uint64_t bytes = 0;
    for (size_t i = 0; i < reply->elements; ++i) bytes += reply->element[i]->len;
    if (bytes != options.payload_bytes) Fail("Redis answered with other values than were stored");
    load.payload_bytes += bytes;
    ++load.operations;
    const auto then = std::exchange(now, Clock::now());
    load.latency.Add(std::chrono::duration<double, std::micro>(now - then).count());
  }
  load.seconds = std::chrono::duration<double>(now - begin).count();
  return load;
}

}  // namespace replay::bench
