#include "server/peer_watch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>

namespace replay::server {
namespace {

struct Flag : PeerWatch::Listener {
  void OnPeerGone() override { ++gone; }
  int gone = 0;
};

class PeerWatchTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds_)); }
  void TearDown() override {
    for (int fd : fds_) {
      if (fd >= 0) close(fd);
    }
  }
  void RunBriefly() {
    context_.restart();
    context_.run_for(std::chrono::milliseconds(200));
  }

  asio::io_context context_;
  PeerWatch watch_{context_};
  Flag flag_;
  int fds_[2] = {-1, -1};
};

TEST_F(PeerWatchTest, HearsThatThePeerClosed) {
  watch_.Add(fds_[0], &flag_);
  close(std::exchange(fds_[1], -1));
  RunBriefly();
  EXPECT_EQ(1, flag_.gone);
  watch_.Remove(fds_[0]);
}

TEST_F(PeerWatchTest, HearsItAlsoWithUnreadBytesInTheSocket) {
  ASSERT_EQ(5, write(fds_[1], "ahead", 5));
  watch_.Add(fds_[0], &flag_);
  close(std::exchange(fds_[1], -1));
  RunBriefly();
  EXPECT_EQ(1, flag_.gone);
  watch_.Remove(fds_[0]);
}

TEST_F(PeerWatchTest, HearsAHalfClose) {
  watch_.Add(fds_[0], &flag_);
  shutdown(fds_[1], SHUT_WR);
  RunBriefly();
  EXPECT_EQ(1, flag_.gone);
  watch_.Remove(fds_[0]);
}

TEST_F(PeerWatchTest, SaysNothingWhileThePeerIsThere) {
  watch_.Add(fds_[0], &flag_);
  ASSERT_EQ(5, write(fds_[1], "ahead", 5));
  RunBriefly();
  EXPECT_EQ(0, flag_.gone);
  watch_.Remove(fds_[0]);
}

TEST_F(PeerWatchTest, SaysNothingAfterRemoveAndLetsTheContextEnd) {
  watch_.Add(fds_[0], &flag_);
  watch_.Remove(fds_[0]);
  close(std::exchange(fds_[1], -1));
  context_.restart();
  const auto start = std::chrono::steady_clock::now();
  context_.run_for(std::chrono::seconds(10));  // Runs out of work at once.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(0, flag_.gone);
}

TEST_F(PeerWatchTest, CanWatchTheSameSocketAgain) {
  for (int round = 0; round < 3; ++round) {
    watch_.Add(fds_[0], &flag_);
    RunBriefly();
    watch_.Remove(fds_[0]);
    RunBriefly();
  }
  watch_.Add(fds_[0], &flag_);
  close(std::exchange(fds_[1], -1));
  RunBriefly();
  EXPECT_EQ(1, flag_.gone);
  watch_.Remove(fds_[0]);
}

}  // namespace
}  // namespace replay::server
