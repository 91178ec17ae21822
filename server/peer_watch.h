#pragma once
// PeerWatch tells when the peer of a connection that is waiting for something else goes away, also while bytes it sent ahead
// are still unread (Asio's wait_error never fires for that). One epoll descriptor of its own for each I/O thread, watched through
// Asio like any other descriptor; a half-closed connection (shutdown for writing) counts as gone.
//
// Belongs to one I/O thread. A watched socket may belong to a session of another thread: only its number is used, and the
// session keeps it open until its call has returned.

#include <boost/asio/posix/basic_stream_descriptor.hpp>

#include <unordered_map>

#include "schema/wire.h"

namespace replay::server {

class PeerWatch {
 public:
  class Listener {
   public:
    virtual void OnPeerGone() = 0;

   protected:
    ~Listener() = default;
  };

  explicit PeerWatch(asio::io_context& context);

  // From now until Remove, `listener` hears once if the peer goes away. O(1).
  void Add(int fd, Listener* listener);
  void Remove(int fd);

 private:
  void Arm();
  void Dispatch();

  asio::posix::basic_stream_descriptor<Executor> epoll_;
  std::unordered_map<int, Listener*> listeners_;
  bool armed_ = false;
};

}  // namespace replay::server
