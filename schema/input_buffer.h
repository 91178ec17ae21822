#pragma once
// How bytes get in from a socket, for the daemon and for the client alike.
//
// InputBuffer receives as much as fits into a leased 256 KB block, so that small pipelined requests share a system call; the
// body of a large frame is received straight into its own block, with whatever follows going into the input buffer in the same
// call. Messages are multiples of 8 bytes, and the buffer compacts to its start, so control messages stay aligned.
//
// Not thread-safe: a socket and its buffer belong to one executor.

#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <boost/asio/redirect_error.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "schema/wire.h"

namespace replay {

// The blocks of one thread's input buffers, kept for reuse up to a bound.
class InputBlockPool {
 public:
  using Block = std::unique_ptr<uint8_t[]>;
  Block Lease() {
    if (free_.empty()) return Block(new uint8_t[kInputBufferBytes]);  // not zeroed
    Block block = std::move(free_.back());
    free_.pop_back();
    return block;
  }
  void Return(Block block) {
    if (free_.size() < kKept) free_.push_back(std::move(block));
  }

 private:
  static constexpr size_t kKept = 16;
  std::vector<Block> free_;
};

enum class Received { kSome, kNothing, kClosed };

// Bytes received and not yet consumed. Holds a 256 KB block only between a readable socket and the next wait.
class InputBuffer {
 public:
  explicit InputBuffer(InputBlockPool& pool) : pool_(pool) {}
  InputBuffer(const InputBuffer&) = delete;
  InputBuffer& operator=(const InputBuffer&) = delete;
  ~InputBuffer() {
    if (block_) pool_.Return(std::move(block_));
  }

  std::span<const uint8_t> available() const { return {base() + begin_, end_ - begin_}; }
  void Consume(size_t count) { begin_ += count; }
  uint64_t received_bytes() const { return received_bytes_; }  // ever

  // Receives once without waiting; not at all where the last receive is known to have taken everything. Invalidates
  // `available()`. kClosed: the peer closed, or an error (`error`, empty on an orderly close). `alone`: this thread has nobody
  // else to serve, and may let others have the core first.
  Received FillNow(int fd, boost::system::error_code& error, bool alone = false) {
    const bool guess = drained_;
    if (guess && !guesses_.Try(alone)) return Received::kNothing;
    MakeRoom();
    iovec piece{block_.get() + end_, kInputBufferBytes - end_};
    if (std::exchange(after_large_body_, false)) piece.iov_len = std::min(piece.iov_len, kBytesBeyondLargeBody);
    const ssize_t got = Receive(fd, &piece, 1, error);
    if (guess) guesses_.Learn(got >= 0);
    if (got < 0 && !error) return Received::kNothing;
    if (got <= 0) return Received::kClosed;
    end_ += static_cast<size_t>(got);
    return Received::kSome;
  }

  // Moves the next bytes of a body of `size` to `destination`, receiving directly there, and counts them in `done`.
  // kSome: all have arrived.
  Received ReadBodyNow(int fd, uint8_t* destination, uint64_t size, uint64_t* done, boost::system::error_code& error) {
    const uint64_t ready = std::min<uint64_t>(size - *done, end_ - begin_);
    if (ready > 0) std::memcpy(destination + *done, base() + begin_, ready);  // base() is null for an empty buffer
    begin_ += ready;
    *done += ready;
    while (*done < size) {  // The buffer is empty here.
      if (drained_) return Received::kNothing;
      MakeRoom();
      // What follows a large body is likely the next one: only its head goes through the buffer, the rest straight to its place.
      after_large_body_ = size >= kLargeBodyBytes;
      const size_t beyond = after_large_body_ ? kBytesBeyondLargeBody : kInputBufferBytes;
      iovec pieces[2] = {{destination + *done, size - *done}, {block_.get(), beyond}};
      const ssize_t got = Receive(fd, pieces, 2, error);
      if (got < 0 && !error) return Received::kNothing;
      if (got <= 0) return Received::kClosed;
      const uint64_t direct = std::min<uint64_t>(static_cast<uint64_t>(got), size - *done);
      *done += direct;
      end_ = static_cast<size_t>(static_cast<uint64_t>(got) - direct);
    }
    return Received::kSome;
  }

  // Waits until there is something to receive, or the end. False: the wait failed.
  Awaitable<bool> Wait(Socket& socket, boost::system::error_code& error) {
    GiveBack();
    co_await socket.async_wait(Socket::wait_read, asio::redirect_error(kUseAwaitable, error));
    drained_ = false;
    co_return !error;
  }

  // The same two, waiting as long as it takes. False: closed.
  Awaitable<bool> Fill(Socket& socket, boost::system::error_code& error) {
    for (;;) {
      const Received received = FillNow(socket.native_handle(), error);
      if (received == Received::kSome) co_return true;
      if (received == Received::kClosed || !co_await Wait(socket, error)) co_return false;
    }
  }
  Awaitable<bool> ReadBody(Socket& socket, uint8_t* destination, uint64_t size, boost::system::error_code& error) {
    uint64_t done = 0;
    for (;;) {
      const Received received = ReadBodyNow(socket.native_handle(), destination, size, &done, error);
      if (received == Received::kSome) co_return true;
      if (received == Received::kClosed || !co_await Wait(socket, error)) co_return false;
    }
  }

  // Returns the block, keeping unread bytes in memory of just their size. Called before any wait that is not for input.
  void GiveBack() {
    if (!block_) return;
    const size_t left = end_ - begin_;
    if (left > 0) {
      leftover_.reset(new uint8_t[left]);
      std::memcpy(leftover_.get(), block_.get() + begin_, left);
    }
    begin_ = 0;
    end_ = left;
    pool_.Return(std::move(block_));
  }

 private:
  const uint8_t* base() const { return block_ ? block_.get() : leftover_.get(); }

  void MakeRoom() {
    const size_t left = end_ - begin_;
    if (!block_) {
      block_ = pool_.Lease();
      if (left > 0) std::memcpy(block_.get(), leftover_.get() + begin_, left);
      leftover_.reset();
    } else if (begin_ > 0 && left > 0) {
      std::memmove(block_.get(), block_.get() + begin_, left);
    }
    begin_ = 0;
    end_ = left;
  }

  // > 0: bytes; 0: closed; -1 without error: would block.
  ssize_t Receive(int fd, iovec* pieces, size_t count, boost::system::error_code& error) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    ssize_t got;
    do {
      got = count == 1 ? recv(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT) : recvmsg(fd, &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    size_t asked = 0;
    for (size_t i = 0; i < count; ++i) asked += pieces[i].iov_len;
    drained_ = got < static_cast<ssize_t>(asked);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) error.assign(errno, boost::system::system_category());
    if (got > 0) received_bytes_ += static_cast<uint64_t>(got);
    return got;
  }

  // Whether to try a receive where the last one took all there was. A peer on the same core often runs, and asks again, within our
  // send, and nearly always if we let it have the core: then the wait between, two of four system calls, is saved. Otherwise the
  // try is for nothing, so it is made less and less often while it fails, and hardly ever where the core comes back late: then it
  // is contended, and who sleeps is woken sooner than who has yielded.
  class Guesses {
   public:
    bool Try(bool yield) {
      if (skip_ > 0) {
        --skip_;
        return false;
      }
      late_ = false;
      if (!yield) return true;
      const auto begin = std::chrono::steady_clock::now();
      sched_yield();
      late_ = std::chrono::steady_clock::now() - begin > kLate;
      return true;
    }
    void Learn(bool hit) {
      misses_ = hit ? 0 : std::min(misses_ + 1, 6);
      skip_ = late_ ? kSkipAfterLate : misses_ == 0 ? 0 : (1 << (misses_ - 1)) - 1;
    }

   private:
    static constexpr auto kLate = std::chrono::microseconds(100);  // A peer's turn takes 5 to 10.
    static constexpr int kSkipAfterLate = 1000;

    int misses_ = 0;  // tries in a row that failed
    int skip_ = 0;    // waits still to come without a try: after the second miss 1, then 3, 7, 15, 31
    bool late_ = false;
  };

  static constexpr uint64_t kLargeBodyBytes = 32 << 10;
  static constexpr size_t kBytesBeyondLargeBody = 8 << 10;

  InputBlockPool& pool_;
  InputBlockPool::Block block_;
  std::unique_ptr<uint8_t[]> leftover_;
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t received_bytes_ = 0;
  bool drained_ = true;  // The last receive took all there was: wait before the next.
  bool after_large_body_ = false;
  Guesses guesses_;
};

}  // namespace replay
