#include "server/peer_watch.h"

#include <sys/epoll.h>

#include <system_error>

#include "server/check.h"

namespace replay::server {
namespace {

int CreateEpoll() {
  const int fd = epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::system_category(), "epoll_create1");
  return fd;
}

}  // namespace

PeerWatch::PeerWatch(asio::io_context& context) : epoll_(context.get_executor(), CreateEpoll()) {}

void PeerWatch::Add(int fd, Listener* listener) {
  const bool added = listeners_.emplace(fd, listener).second;
  CHECK(added) << "fd " << fd << " is already watched";
  epoll_event event{};
  event.events = EPOLLRDHUP | EPOLLONESHOT;  // EPOLLHUP and EPOLLERR come unasked
  event.data.fd = fd;
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, fd, &event);
  if (!armed_) Arm();
}

void PeerWatch::Remove(int fd) {
  if (listeners_.erase(fd) == 0) return;
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
  if (listeners_.empty() && armed_) {
    boost::system::error_code ignored;
    epoll_.cancel(ignored);  // Lets the io_context run out of work.
  }
}

void PeerWatch::Arm() {
  armed_ = true;
  epoll_.async_wait(asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
    armed_ = false;
    if (!error) Dispatch();
    if (!listeners_.empty() && !armed_) Arm();
  });
}

void PeerWatch::Dispatch() {
  epoll_event events[64];
  const int count = epoll_wait(epoll_.native_handle(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    // An earlier listener may have removed this one.
    const auto found = listeners_.find(events[i].data.fd);
    if (found != listeners_.end()) found->second->OnPeerGone();
  }
}

}  // namespace replay::server
