#include "server/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>

#include <chrono>
#include <utility>

#include "server/check.h"
#include "server/log.h"
#include "server/session.h"

namespace replay::server {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kSweepInterval{250};

std::vector<std::unique_ptr<IoThread>> MakeThreads(int count) {
  std::vector<std::unique_ptr<IoThread>> threads;
  for (int i = 0; i < count; ++i) threads.push_back(std::make_unique<IoThread>(i));
  return threads;
}

// A Unix socket's file left over by a daemon that died is removed; one that answers is not.
std::string PrepareUnixPath(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return "";
  if (!S_ISSOCK(status.st_mode)) return "unix:" + path + " exists and is not a socket";
  asio::io_context context;
  asio::local::stream_protocol::socket probe(context);
  boost::system::error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) return "unix:" + path + " is in use by a running process";
  ::unlink(path.c_str());
  return "";
}

std::string PeerName(const Address& local, Socket& socket) {
  if (local.is_unix()) return "unix:" + local.unix_path;
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  asio::ip::tcp::endpoint tcp;
  if (endpoint.size() > tcp.capacity()) return "unknown";
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return Address{tcp.address().to_string(), tcp.port(), ""}.ToString();
}

}  // namespace

Server::Server(const ServerConfig& config)
    : config_(config),
      budget_(static_cast<int64_t>(config.memory_limit_bytes)),
      heap_watch_(config_.memory_limit_bytes),
      threads_(MakeThreads(config.io_threads)),
      service_(config_, threads_, budget_, storage_),
      http_(*threads_[0], service_) {
  for (auto& thread : threads_) sweep_timers_.push_back(std::make_unique<Timer>(thread->executor()));
}

Server::~Server() {
  for (const auto& listener : listeners_) {
    if (listener->address.is_unix()) ::unlink(listener->address.unix_path.c_str());
  }
}

std::string Server::Start() {
  if (std::string error = service_.DeclareBuffers(); !error.empty()) return error;
  for (const std::string& text : config_.listen) {
    if (std::string error = Listen(text); !error.empty()) return error;
  }
  if (!config_.metrics_listen.empty()) {
    Address address;
    std::string error = ParseAddress(config_.metrics_listen, &address);
    std::string bound;
    if (error.empty()) error = http_.Listen(address, &bound);
    if (!error.empty()) return "server.metrics_listen: " + error;
    Log(LogLevel::kInfo, "metrics listening", {{"address", bound}});
  }
  for (const std::string& address : bound_) Log(LogLevel::kInfo, "listening", {{"address", address}});
  return "";
}

std::string Server::Listen(const std::string& text) {
  Address address;
  if (std::string error = ParseAddress(text, &address); !error.empty()) return "server.listen: " + error;
  boost::system::error_code error;
  asio::generic::stream_protocol::endpoint endpoint;
  if (address.is_unix()) {
    if (std::string problem = PrepareUnixPath(address.unix_path); !problem.empty()) return "server.listen: " + problem;
    endpoint = asio::local::stream_protocol::endpoint(address.unix_path);
  } else {
    asio::ip::basic_resolver<asio::ip::tcp, Executor> resolver(threads_[0]->executor());
    const auto results = resolver.resolve(address.host, std::to_string(address.port), asio::ip::resolver_base::passive, error);
    if (error || results.empty()) return "server.listen: cannot resolve " + text + ": " + error.message();
    endpoint = results.begin()->endpoint();
  }
  auto listener = std::make_unique<Listener>(Listener{Acceptor(threads_[0]->executor()), address});
  Acceptor& acceptor = listener->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error && !address.is_unix()) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1024, error);
  if (error) return "server.listen: cannot listen on " + text + ": " + error.message();
  if (!address.is_unix()) {
    const auto local = acceptor.local_endpoint(error);
    asio::ip::tcp::endpoint tcp;
    std::memcpy(tcp.data(), local.data(), local.size());
    address.port = tcp.port();
  }
  bound_.push_back(address.ToString());
  listeners_.push_back(std::move(listener));
  return "";
}

void Server::Run() {
  storage_.Start();
  for (auto& thread : threads_) work_.emplace_back(thread->executor());
  for (auto& listener : listeners_) asio::co_spawn(threads_[0]->executor(), Accept(*listener), asio::detached);
  http_.Start();
  for (size_t i = 0; i < threads_.size(); ++i)
    asio::co_spawn(threads_[i]->executor(), Sweep(*threads_[i], *sweep_timers_[i]), asio::detached);
  for (size_t i = 1; i < threads_.size(); ++i)
    threads_[i]->runner = std::thread([thread = threads_[i].get()] { thread->context.run(); });
  threads_[0]->context.run();
  for (size_t i = 1; i < threads_.size(); ++i) threads_[i]->runner.join();
  storage_.Stop();
}

Awaitable<void> Server::Accept(Listener& listener) {
  while (listener.acceptor.is_open()) {
    boost::system::error_code error;
    // The session's thread is chosen now: a socket stays with the io_context it was made for.
    IoThread& thread = *threads_[next_thread_++ % threads_.size()];
    Socket socket(thread.executor());
    co_await listener.acceptor.async_accept(socket, asio::redirect_error(kUseAwaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // Out of descriptors, most likely: rest instead of spinning.
      Log(LogLevel::kWarning, "accept failed", {{"error", error.message()}});
      Timer rest(threads_[0]->executor(), milliseconds(100));
      co_await rest.async_wait(asio::redirect_error(kUseAwaitable, error));
      continue;
    }
    service_.accepted_connections.fetch_add(1, std::memory_order_relaxed);
    // Counted here, not by the session, which may start later: a burst must not pass the limit.
    if (service_.connections.fetch_add(1, std::memory_order_relaxed) >= config_.max_connections) {
      service_.connections.fetch_sub(1, std::memory_order_relaxed);
      Log(LogLevel::kWarning, "connection refused", {{"reason", "server.max_connections"}});
      continue;  // Closes it.
    }
    ConfigureSocket(socket.native_handle());
    if (!listener.address.is_unix()) ConfigureKeepalive(socket.native_handle(), milliseconds(config_.send_timeout_ms));
    std::string peer = PeerName(listener.address, socket);
    asio::post(thread.executor(), [this, &thread, moved = std::move(socket), name = std::move(peer)]() mutable {
      auto session = std::make_unique<Session>(thread, service_, std::move(moved), std::move(name));
      asio::co_spawn(thread.executor(), Session::Run(std::move(session)), asio::detached);
    });
  }
}

// Ends connections whose peer holds them up, without a timer for each.
Awaitable<void> Server::Sweep(IoThread& thread, Timer& timer) {
  for (;;) {
    timer.expires_after(kSweepInterval);
    boost::system::error_code error;
    co_await timer.async_wait(asio::redirect_error(kUseAwaitable, error));
    if (stopping_.load()) co_return;
    const auto now = steady_clock::now();
    if (&thread == threads_[0].get()) {
      const uint64_t given_back = heap_watch_.Check(now);
      if (given_back > 0) Log(LogLevel::kInfo, "free memory given back", {{"bytes", std::to_string(given_back)}});
    }
    service_.OnTime(thread, now);
    for (Session* session : thread.sessions) {
      const char* why = nullptr;
      if (!session->IsStuck(now, &why)) continue;
      Log(LogLevel::kInfo, "connection ended", {{"peer", session->peer()}, {"reason", why}});
      session->Shutdown();
    }
  }
}

void Server::Stop() {
  if (stopping_.exchange(true)) return;
  asio::post(threads_[0]->executor(), [this] { asio::co_spawn(threads_[0]->executor(), Shutdown(), asio::detached); });
}

namespace {

Awaitable<void> DrainThread(IoThread& thread, ReplayService& service) {
  service.Drain(thread);
  co_return;
}

Awaitable<void> SaveBuffers(IoThread& thread, ReplayService& service) {
  service.SaveAll(thread);
  co_return;
}

Awaitable<void> CloseSessions(IoThread& thread, ReplayService& service) {
  service.GiveUpKeeping(thread);
  for (Session* session : thread.sessions) session->Shutdown();
  co_return;
}

}  // namespace

Awaitable<void> Server::Shutdown() {
  Log(LogLevel::kInfo, "draining");
  for (auto& listener : listeners_) {
    boost::system::error_code ignored;
    listener->acceptor.close(ignored);
  }
  for (auto& thread : threads_) {
    Awaitable<void> drain = DrainThread(*thread, service_);
    co_await RunOn(*thread, *threads_[0], std::move(drain));
  }
  // Replies that say so are on their way; a moment for them, less if everybody leaves by themselves.
  const auto give_up = steady_clock::now() + milliseconds(std::min<int64_t>(config_.drain_timeout_ms, 250));
  while (service_.connections.load() > 0 && steady_clock::now() < give_up) {
    Timer pause(threads_[0]->executor(), milliseconds(10));
    boost::system::error_code ignored;
    co_await pause.async_wait(asio::redirect_error(kUseAwaitable, ignored));
  }
  // Whoever is left is closed, at least once, whatever the timeout: an idle session would keep its thread.
  const auto close_by = steady_clock::now() + milliseconds(config_.drain_timeout_ms);
  for (bool first = true; service_.connections.load() > 0 && (first || steady_clock::now() < close_by); first = false) {
    for (auto& thread : threads_) {
      Awaitable<void> close = CloseSessions(*thread, service_);
      co_await RunOn(*thread, *threads_[0], std::move(close));
    }
    Timer pause(threads_[0]->executor(), milliseconds(20));
    boost::system::error_code ignored;
    co_await pause.async_wait(asio::redirect_error(kUseAwaitable, ignored));
  }
  for (auto& thread : threads_) {
    Awaitable<void> save = SaveBuffers(*thread, service_);
    co_await RunOn(*thread, *threads_[0], std::move(save));
  }
  http_.Stop();
  Log(LogLevel::kInfo, "stopped", {{"connections_cut", std::to_string(service_.connections.load())}});
  for (auto& timer : sweep_timers_) {
    asio::post(timer->get_executor(), [&timer = *timer] { timer.cancel(); });
  }
  for (auto& guard : work_) guard.reset();
}

}  // namespace replay::server
