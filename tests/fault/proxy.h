#pragma once
// Between clients and the daemon: passes requests on, and replies until it cuts one.
//
//   client ──requests──► Proxy ──requests──► daemon
//   client ◄──replies──  Proxy ◄──replies──  daemon         a reply is cut: the connection closes before it, within it, or
//                                                           replies vanish for a while and the connection closes then
//
// The first reply of a connection, to Hello, always passes, so that who connects again gets on. One thread, Unix sockets.

#include <atomic>
#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <thread>

#include "tests/fault/harness.h"

namespace replay::fault {

class Proxy {
 public:
  // Listens at `path`; each connection to it becomes one to `daemon_path`. One of `odds` replies begins a cut.
  Proxy(std::string path, std::string daemon_path, uint64_t odds, uint64_t seed);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string address() const { return "unix:" + path_; }
  int64_t cut_replies() const { return cut_replies_; }
  int64_t cuts() const { return cuts_; }
  void PassEverything() { passing_ = true; }

 private:
  struct Link;
  void Run();
  void Accept();
  bool TakeRequests(Link* link);  // false: close it
  bool TakeReplies(Link* link);

  const std::string path_, daemon_path_;
  const uint64_t odds_;
  int listener_ = -1;
  std::atomic<bool> stop_{false}, passing_{false};
  std::atomic<int64_t> cut_replies_{0}, cuts_{0};
  std::mt19937_64 chance_;  // of the thread, as what follows
  std::list<Link> links_;
  std::thread thread_;
};

}  // namespace replay::fault
