#include "tests/fault/proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "schema/message.h"

namespace replay::fault {
namespace {

constexpr int kTickMs = 2;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) Fail("the path of the socket is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

int ConnectTo(const std::string& path) {
  const sockaddr_un to = AddressOf(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
  close(fd);
  return -1;
}

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace

struct Proxy::Link {
  int client = -1, daemon = -1;
  std::string replies;               // received, not yet whole
  uint64_t passed = 0;               // whole ones
  bool swallows = false;             // and what comes next as well
  steady_clock::time_point until{};  // then it closes
  pollfd *client_poll = nullptr, *daemon_poll = nullptr;

  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() {
    close(client);
    if (daemon >= 0) close(daemon);
  }
  // Bytes of the reply that `replies` begins with from `at` on; 0: not all there.
  size_t WholeReply(size_t at) const {
    Preamble preamble;
    if (replies.size() - at < sizeof preamble) return 0;
    std::memcpy(&preamble, replies.data() + at, sizeof preamble);
    const size_t bytes = sizeof preamble + preamble.control_words * size_t{8} + preamble.payload_bytes;
    return replies.size() - at < bytes ? 0 : bytes;
  }
};

Proxy::Proxy(std::string path, std::string daemon_path, uint64_t odds, uint64_t seed)
    : path_(std::move(path)), daemon_path_(std::move(daemon_path)), odds_(odds), chance_(seed) {
  const sockaddr_un address = AddressOf(path_);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(listener_, 64) != 0)
    FailErrno("cannot listen at " + path_);
  thread_ = std::thread([this] { Run(); });
}

Proxy::~Proxy() {
  stop_ = true;
  thread_.join();
  close(listener_);
}

void Proxy::Run() {
  std::vector<pollfd> polls;
  while (!stop_) {
    polls.assign(1, {listener_, POLLIN, 0});
    polls.reserve(1 + 2 * links_.size());
    for (Link& link : links_) {
      link.client_poll = &polls.emplace_back(pollfd{link.client, POLLIN, 0});
      link.daemon_poll = &polls.emplace_back(pollfd{link.daemon, POLLIN, 0});
    }
    poll(polls.data(), polls.size(), kTickMs);
    const auto now = steady_clock::now();
    links_.remove_if([&](Link& link) {
      if (link.client_poll->revents != 0 && !TakeRequests(&link)) return true;
      if (link.daemon_poll->revents != 0 && !TakeReplies(&link)) return true;
      return link.swallows && now >= link.until;
    });
    if (polls[0].revents != 0) Accept();
  }
  links_.clear();
}

void Proxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  Link& link = links_.emplace_back();
  link.client = client;
  link.daemon = ConnectTo(daemon_path_);
  if (link.daemon < 0) links_.pop_back();  // It is down.
}

bool Proxy::TakeRequests(Link* link) {
  char bytes[64 << 10];
  const ssize_t got = recv(link->client, bytes, sizeof bytes, 0);
  return got > 0 && SendAll(link->daemon, {bytes, static_cast<size_t>(got)});
}

bool Proxy::TakeReplies(Link* link) {
  char bytes[64 << 10];
  const ssize_t got = recv(link->daemon, bytes, sizeof bytes, 0);
  if (got <= 0) return false;
  link->replies.append(bytes, static_cast<size_t>(got));
  size_t passes = 0, at = 0;  // bytes
  for (size_t size; (size = link->WholeReply(at)) > 0; at += size) {
    if (!link->swallows && link->passed > 0 && !passing_ && chance_() % odds_ == 0) {
      ++cuts_;
      link->swallows = true;
      const bool closes = chance_() % 2 == 0;
      link->until = steady_clock::now() + milliseconds(closes ? 0 : 1 + chance_() % 10);
      if (closes && chance_() % 2 == 0) passes += chance_() % size;  // within it
    }
    if (link->swallows) {
      ++cut_replies_;
    } else {
      ++link->passed;
      passes += size;
    }
  }
  if (passes > 0 && !SendAll(link->client, std::string_view(link->replies).substr(0, passes))) return false;
  link->replies.erase(0, at);
  return true;
}

}  // namespace replay::fault
