#pragma once
// Sockets, for the daemon and for the client alike: addresses, options, and how bytes get out (input_buffer.h: how they get in).
//
// OutputQueue gathers small bytes and whole frames and hands them to sendmsg, up to 1,024 pieces a call. (Asio's
// composed async_write moves at most 64 KB and 16 pieces a call: 1.4-1.8 times the CPU on a 16 MB sample.)
//
// Nothing here is thread-safe: a socket and its queue belong to one executor.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/limits.h"
#include "schema/message.h"

namespace replay {

namespace asio = boost::asio;

// One executor type everywhere: no type erasure in the hot path.
using Executor = asio::io_context::executor_type;
template <typename T>
using Awaitable = asio::awaitable<T, Executor>;
inline constexpr asio::use_awaitable_t<Executor> kUseAwaitable{};
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Executor>;

// --- Addresses -----------------------------------------------------------------------------------------------------------
// "host:port", "[v6]:port" or "unix:/path".
struct Address {
  std::string host;  // empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;  // empty for TCP

  bool is_unix() const { return !unix_path.empty(); }
  std::string ToString() const {
    if (is_unix()) return "unix:" + unix_path;
    return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  }
};

// "" or what is wrong with the text.
inline std::string ParseAddress(std::string_view text, Address* address) {
  *address = {};
  if (text.starts_with("unix:")) {
    address->unix_path = text.substr(5);
    if (address->unix_path.empty()) return "address \"unix:\" names no path";
    if (address->unix_path.size() > 107) return "the path of a Unix socket has at most 107 bytes";
    return "";
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size())
    return "address \"" + std::string(text) + "\" is neither host:port nor unix:/path";
  unsigned long port = 0;
  for (char c : text.substr(colon + 1)) {
    if (c < '0' || c > '9' || (port = port * 10 + static_cast<unsigned long>(c - '0')) > 65535)
      return "port \"" + std::string(text.substr(colon + 1)) + "\" is not a number from 0 to 65535";
  }
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return "address \"" + std::string(text) + "\" names no host";
  address->host = host;
  address->port = static_cast<uint16_t>(port);
  return "";
}

// --- Socket options --------------------------------------------------------------------------------------------------------
// TCP_NODELAY always (without it one run was 20 times slower). Between loopback peers a congestion control that does not pace:
// the kernel's default may be BBR, which reaches 0.65 of cubic there; cubic needs CAP_NET_ADMIN on some kernels, reno none.
// Unix sockets: 1 MB of send buffer instead of 208 KB. Failures are harmless and ignored.
inline void ConfigureSocket(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return;
  if (peer.ss_family == AF_UNIX) {
    const int bytes = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  bool loopback = false;
  if (peer.ss_family == AF_INET) {
    loopback = ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24 == 127;
  } else if (peer.ss_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
    loopback = IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
  if (loopback && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

// A peer that vanished without a word is found after about 30 s idle. With data under way there are no keepalive probes: then
// after `unread_for`, if given. That is also what ends a peer which lives but does not read, whatever it answers to probes (Linux
// since 5.11), so a client gives none: a server that holds its inserts back does not read for as long as it takes.
inline void ConfigureKeepalive(int fd, std::chrono::milliseconds unread_for = {}) {
  const int on = 1, idle_s = 20, interval_s = 5, probes = 2;
  const auto user_timeout_ms = static_cast<unsigned>(std::min<int64_t>(unread_for.count(), INT32_MAX));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  if (user_timeout_ms > 0) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

// --- Output ----------------------------------------------------------------------------------------------------------------
// What waits to be sent. Small bytes are copied and coalesced; frames are held by reference until the last byte is accepted.
class OutputQueue {
 public:
  void AddBytes(std::span<const uint8_t> bytes) {
    if (pieces_.empty() || pieces_.back().owner) pieces_.push_back({Frame(), small_.size(), 0});
    small_.insert(small_.end(), bytes.begin(), bytes.end());
    pieces_.back().size += bytes.size();
    pending_bytes_ += bytes.size();
  }
  void AddFrame(Frame frame) {
    const uint64_t size = frame.size();
    pending_bytes_ += size;
    if (size > 0) pieces_.push_back({std::move(frame), 0, size});
  }
  uint64_t pending_bytes() const { return pending_bytes_; }
  bool empty() const { return pending_bytes_ == 0; }

  // Sends everything. False: the connection is gone (`error`). While it waits for the socket, `blocked_since` (if given)
  // holds the time the wait began, for a watcher that ends connections which do not read.
  Awaitable<bool> Flush(Socket& socket, boost::system::error_code& error,
                        std::chrono::steady_clock::time_point* blocked_since = nullptr) {
    while (!SendNow(socket.native_handle(), error)) {
      if (error) co_return false;
      if (blocked_since) *blocked_since = std::chrono::steady_clock::now();
      co_await socket.async_wait(Socket::wait_write, asio::redirect_error(kUseAwaitable, error));
      if (blocked_since) *blocked_since = {};
      if (error) co_return false;
    }
    co_return true;
  }

  // As much as the socket takes without waiting. True: everything has been sent.
  bool SendNow(int fd, boost::system::error_code& error) {
    while (!empty() && SendSome(fd, error)) {
    }
    return empty();
  }

  // One pass of sendmsg without waiting; true if it made progress. After it the queue may be empty.
  bool SendSome(int fd, boost::system::error_code& error) {
    iovec entries[kGatherEntries];
    size_t count = 0;
    for (size_t i = first_; i < pieces_.size() && count < kGatherEntries; ++i, ++count) {
      const Piece& piece = pieces_[i];
      const uint64_t skip = i == first_ ? sent_of_first_ : 0;
      const uint8_t* data = piece.owner ? piece.owner.data() : small_.data() + piece.offset;
      entries[count] = {const_cast<uint8_t*>(data) + skip, piece.size - skip};
    }
    msghdr message{};
    message.msg_iov = entries;
    message.msg_iovlen = count;
    ssize_t sent;
    do {
      sent = count == 1 ? send(fd, entries[0].iov_base, entries[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
                        : sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) error.assign(errno, boost::system::system_category());
      return false;
    }
    Advance(static_cast<uint64_t>(sent));
    return true;
  }

  // Gives memory back before a wait, but for a few replies' worth; only when empty.
  void Release() {
    if (pieces_.capacity() > kIdlePieces) std::vector<Piece>().swap(pieces_);
    if (small_.capacity() > kIdleBytes) std::vector<uint8_t>().swap(small_);
  }

  void Clear() {
    pieces_.clear();
    small_.clear();
    first_ = 0;
    sent_of_first_ = 0;
    pending_bytes_ = 0;
  }

 private:
  struct Piece {
    Frame owner;      // empty: bytes of small_
    uint64_t offset;  // into small_
    uint64_t size;
  };

  void Advance(uint64_t sent) {
    pending_bytes_ -= sent;
    while (sent > 0) {
      const uint64_t left = pieces_[first_].size - sent_of_first_;
      if (sent < left) {
        sent_of_first_ += sent;
        return;
      }
      sent -= left;
      pieces_[first_].owner = Frame();
      ++first_;
      sent_of_first_ = 0;
    }
    if (pending_bytes_ == 0) {
      pieces_.clear();
      small_.clear();
      first_ = 0;
      if (small_.capacity() > kKeptBytes) Release();
    }
  }

  static constexpr size_t kKeptBytes = 64 << 10;  // while busy
  static constexpr size_t kIdleBytes = 256;
  static constexpr size_t kIdlePieces = 4;
  std::vector<Piece> pieces_;
  std::vector<uint8_t> small_;
  size_t first_ = 0;
  uint64_t sent_of_first_ = 0;
  uint64_t pending_bytes_ = 0;
};

}  // namespace replay
