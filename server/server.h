#pragma once
// Server: the threads, the listening sockets and the sessions; start and stop.
//
// Start binds everything and declares the buffers before it returns, so that whoever started the daemon learns of a bad address
// or configuration at once. The main thread runs threads[0], the control thread. Stop: stop accepting, wake every waiter with
// `draining`, give replies under way `drain_timeout` to leave, close what is left, join.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/config.h"
#include "server/heap.h"
#include "server/http.h"
#include "server/io_thread.h"
#include "server/replay_service.h"
#include "server/storage_thread.h"

namespace replay::server {

class Server {
 public:
  explicit Server(const ServerConfig& config);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Before Start: opens the data folder and loads what is there.
  StorageError OpenStorage() { return storage_.Open(config_, &budget_); }
  // "" or the error.
  std::string Start();
  // Serves until Stop; runs the control thread on the caller's.
  void Run();
  // Safe from any thread, once.
  void Stop();

  const std::vector<std::string>& addresses() const { return bound_; }  // with the ports that were chosen for 0

 private:
  using Timer = asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, Executor>;
  struct Listener {
    Acceptor acceptor;
    Address address;
  };

  std::string Listen(const std::string& text);
  Awaitable<void> Accept(Listener& listener);
  Awaitable<void> Sweep(IoThread& thread, Timer& timer);
  Awaitable<void> Shutdown();

  const ServerConfig config_;
  MemoryBudget budget_;
  HeapWatch heap_watch_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  StorageThread storage_;
  ReplayService service_;
  HttpServer http_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::string> bound_;
  std::vector<std::unique_ptr<Timer>> sweep_timers_;  // one a thread
  std::vector<asio::executor_work_guard<Executor>> work_;
  size_t next_thread_ = 0;
  std::atomic<bool> stopping_{false};
};

}  // namespace replay::server
