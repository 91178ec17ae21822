#pragma once
// The HTTP port: /metrics for Prometheus, /livez and /readyz for probes. GET and HEAD only, no bodies, headers up to 8 KB, one
// request within 5 s, no keep-alive, 64 connections, of which the oldest goes when one more comes: nothing a slow or hostile client
// does there holds anything up.

#include <boost/asio/ip/tcp.hpp>

#include <list>
#include <string>

#include "schema/wire.h"
#include "server/io_thread.h"
#include "server/replay_service.h"

namespace replay::server {

class HttpServer {
 public:
  using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;
  // Lives on `thread`.
  HttpServer(IoThread& thread, ReplayService& service);

  // "" or the error. `bound` is the address with the port that was chosen for 0.
  std::string Listen(const Address& address, std::string* bound);
  void Start();
  void Stop();

 private:
  using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
  struct Open {
    int fd;
    bool ending = false;
  };

  Awaitable<void> Accept();
  Awaitable<void> Serve(Socket socket);

  IoThread& thread_;
  ReplayService& service_;
  Acceptor acceptor_;
  std::list<Open> open_;  // oldest first
};

}  // namespace replay::server
