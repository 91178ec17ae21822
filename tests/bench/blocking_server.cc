// The blocking stand-in of systems.h. Runs in a forked child and ends with it.

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "schema/limits.h"
#include "schema/wire.h"
#include "tests/bench/systems.h"

namespace replay::bench {
namespace {

// Inserts go round in as much memory as the daemon's buffer holds in these benches.
constexpr uint64_t kInsertRingBytes = 64 << 20;

struct Pool {
  uint8_t* base;
  uint64_t bytes;
};

// Touched, so that no page is the zero page.
Pool MakePool(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) FailErrno("mmap");
  madvise(memory, bytes, MADV_NOHUGEPAGE);  // as the blocks of an allocator
  std::memset(memory, 0x5a, bytes);
  return {static_cast<uint8_t*>(memory), bytes};
}

bool ReadAll(int fd, uint8_t* into, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd, into, size, 0);
    if (got <= 0) return false;
    into += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, iovec* pieces, size_t count) {
  while (count > 0) {
    const ssize_t sent = writev(fd, pieces, static_cast<int>(std::min<size_t>(count, kGatherEntries)));
    if (sent <= 0) return false;
    auto left = static_cast<size_t>(sent);
    while (count > 0 && left >= pieces->iov_len) {
      left -= pieces->iov_len;
      ++pieces;
      --count;
    }
    if (count > 0) {
      pieces->iov_base = static_cast<uint8_t*>(pieces->iov_base) + left;
      pieces->iov_len -= left;
    }
  }
  return true;
}

class Conversation {
 public:
  Conversation(int fd, const Pool& pool) : fd_(fd), pool_(pool) {}

  void Run() {
    while (ReadAll(fd_, head_, sizeof(Preamble))) {
      uint32_t magic;
      std::memcpy(&magic, head_, sizeof magic);
      if (!(magic == Preamble::kMagic ? TakeInsert() : SendBlocks())) break;
    }
    close(fd_);
  }

 private:
  bool TakeInsert() {
    const uint64_t body = *MessageBytes({head_, sizeof(Preamble)}) - sizeof(Preamble);
    if (at_ + body > std::min(pool_.bytes, kInsertRingBytes)) at_ = 0;
    if (!ReadAll(fd_, pool_.base + at_, body)) return false;
    at_ += body;
    return send(fd_, reply_.data(), reply_.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(reply_.size());
  }

  bool SendBlocks() {
    if (!ReadAll(fd_, head_ + sizeof(Preamble), sizeof(BlockRequest) - sizeof(Preamble))) return false;
    BlockRequest request;
    std::memcpy(&request, head_, sizeof request);
    Preamble preamble;
    preamble.payload_bytes = uint64_t{request.count} * request.block_bytes;
    pieces_.clear();
    pieces_.push_back({&preamble, sizeof preamble});
    const uint64_t blocks = pool_.bytes / request.block_bytes;
    for (uint32_t i = 0; i < request.count; ++i)
      pieces_.push_back({pool_.base + (random_() % blocks) * request.block_bytes, request.block_bytes});
    return WriteAll(fd_, pieces_.data(), pieces_.size());
  }

  const int fd_;
  const Pool& pool_;
  const Bytes reply_ = CannedInsertReply();
  uint8_t head_[sizeof(BlockRequest)];
  uint64_t at_ = 0;
  std::minstd_rand random_;
  std::vector<iovec> pieces_;
};

int Listen(const Endpoint& endpoint, Transport transport) {
  sockaddr_storage storage{};
  const bool is_unix = transport == Transport::kUnix;
  const int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  if (is_unix) {
    auto& address = reinterpret_cast<sockaddr_un&>(storage);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, endpoint.unix_path.c_str(), endpoint.unix_path.size() + 1);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.tcp_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const socklen_t length = is_unix ? sizeof(sockaddr_un) : sizeof(sockaddr_in);
  if (bind(fd, reinterpret_cast<sockaddr*>(&storage), length) != 0 || listen(fd, 64) != 0) FailErrno("listen");
  return fd;
}

void Serve(int listener, const Pool& pool) {
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) FailErrno("accept");
    ConfigureSocket(fd);  // the same congestion control and send buffer as the daemon
    std::thread([fd, &pool] { Conversation(fd, pool).Run(); }).detach();
  }
}

}  // namespace

BlockingServer::BlockingServer(uint64_t pool_bytes, const ScratchDirectory& scratch)
    : endpoint_{scratch.File("blocking.sock"), FreePort()},
      process_(Process::Fork(
          [&] {
            const Pool pool = MakePool(pool_bytes);
            const int tcp = Listen(endpoint_, Transport::kTcp), local = Listen(endpoint_, Transport::kUnix);
            std::thread other([&] { Serve(tcp, pool); });
            Serve(local, pool);
          },
          kServerCore)) {
  Stream::Connect(endpoint_, Transport::kUnix);  // waits until it listens
}

}  // namespace replay::bench
