#include "server/http.h"

#include <sys/socket.h>

#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "server/log.h"
#include "server/metrics.h"

namespace replay::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Stream = beast::basic_stream<Tcp, Executor>;
using Response = http::response<http::string_body>;

constexpr int kMaxHttpConnections = 64;  // so that none of them takes the descriptors of the replay port
constexpr uint32_t kHeaderLimitBytes = 8 << 10;
constexpr std::chrono::seconds kTimeout{5};

Response MakeResponse(http::status status, std::string body, std::string_view type = "text/plain; charset=utf-8") {
  Response response(status, 11);
  response.set(http::field::content_type, beast::string_view(type.data(), type.size()));
  response.keep_alive(false);
  response.body() = std::move(body);
  return response;
}

Awaitable<Response> Route(IoThread& thread, ReplayService& service, const http::request<http::empty_body>& request) {
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    Response refused = MakeResponse(http::status::method_not_allowed, "only GET and HEAD\n");
    refused.set(http::field::allow, "GET, HEAD");
    co_return refused;
  }
  const beast::string_view target = request.target();
  const std::string path(target.substr(0, target.find('?')));
  if (path == "/metrics") {
    ServerStats stats;
    co_await service.Stats(thread, "", stats);
    std::string text = RenderMetrics(stats);
    co_return MakeResponse(http::status::ok, std::move(text), "text/plain; version=0.0.4; charset=utf-8");
  }
  if (path == "/livez") co_return MakeResponse(http::status::ok, "alive\n");
  if (path == "/readyz") {
    if (thread.draining) co_return MakeResponse(http::status::service_unavailable, "draining\n");
    co_return MakeResponse(http::status::ok, "ready\n");
  }
  co_return MakeResponse(http::status::not_found, "there are /metrics, /livez and /readyz\n");
}

Awaitable<void> Answer(IoThread& thread, ReplayService& service, Stream& stream) {
  boost::system::error_code error;
  beast::flat_buffer buffer(kHeaderLimitBytes);
  http::request_parser<http::empty_body> parser;
  parser.header_limit(kHeaderLimitBytes);
  parser.body_limit(0);
  stream.expires_after(kTimeout);
  co_await http::async_read(stream, buffer, parser, asio::redirect_error(kUseAwaitable, error));
  if (error == beast::error::timeout || error == http::error::end_of_stream) co_return;
  Response response;
  if (error) {
    response = MakeResponse(http::status::bad_request, "not a request this port takes: " + error.message() + "\n");
  } else {
    response = co_await Route(thread, service, parser.get());
  }
  response.prepare_payload();
  if (!error && parser.get().method() == http::verb::head) response.body().clear();  // Content-Length stays.
  stream.expires_after(kTimeout);
  co_await http::async_write(stream, response, asio::redirect_error(kUseAwaitable, error));
  boost::system::error_code ignored;
  stream.socket().shutdown(Tcp::socket::shutdown_both, ignored);
}

}  // namespace

HttpServer::HttpServer(IoThread& thread, ReplayService& service)
    : thread_(thread), service_(service), acceptor_(thread.executor()) {}

std::string HttpServer::Listen(const Address& address, std::string* bound) {
  if (address.is_unix()) return "the metrics port is TCP: host:port";
  boost::system::error_code error;
  asio::ip::basic_resolver<Tcp, Executor> resolver(thread_.executor());
  const auto results = resolver.resolve(address.host, std::to_string(address.port), asio::ip::resolver_base::passive, error);
  if (error || results.empty()) return "cannot resolve " + address.ToString() + ": " + error.message();
  const Tcp::endpoint endpoint = results.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(128, error);
  if (error) return "cannot listen on " + address.ToString() + ": " + error.message();
  Address local = address;
  local.port = acceptor_.local_endpoint(error).port();
  *bound = local.ToString();
  return "";
}

void HttpServer::Start() {
  if (acceptor_.is_open()) asio::co_spawn(thread_.executor(), Accept(), asio::detached);
}

void HttpServer::Stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

Awaitable<void> HttpServer::Serve(Socket socket) {
  Stream stream(std::move(socket));
  const auto place = open_.insert(open_.end(), {stream.socket().native_handle()});
  const auto stays = [](const Open& open) { return !open.ending; };
  if (std::count_if(open_.begin(), open_.end(), stays) > kMaxHttpConnections) {
    Open& oldest = *std::find_if(open_.begin(), open_.end(), stays);
    oldest.ending = true;
    ::shutdown(oldest.fd, SHUT_RDWR);
  }
  try {
    co_await Answer(thread_, service_, stream);
  } catch (const std::exception& error) {
    Log(LogLevel::kError, "metrics request failed", {{"error", error.what()}});
  }
  open_.erase(place);
}

Awaitable<void> HttpServer::Accept() {
  while (acceptor_.is_open()) {
    boost::system::error_code error;
    asio::basic_stream_socket<Tcp, Executor> socket(thread_.executor());
    co_await acceptor_.async_accept(socket, asio::redirect_error(kUseAwaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // Out of descriptors: a short rest, not a spin.
      asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor> rest(
          thread_.executor(), std::chrono::milliseconds(100));
      co_await rest.async_wait(asio::redirect_error(kUseAwaitable, error));
      continue;
    }
    Awaitable<void> serve = Serve(std::move(socket));
    asio::co_spawn(thread_.executor(), std::move(serve), asio::detached);
  }
}

}  // namespace replay::server
