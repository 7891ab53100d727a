// Channels over socket pairs, on a lane that the test runs.
#include "rdma/transport/stream/channel.hpp"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace vmem::rdma::stream {
namespace {

constexpr const char* kNeedsRoot = "a socket buffer this large needs root";

class Reports final : public ChannelOwner {
 public:
  void report(ChannelId, Report report) override { all.push_back(std::move(report)); }
  template <class Kind>
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(all, [](const Report& each) { return std::holds_alternative<Kind>(each); }));
  }
  std::vector<Report> all;
};

class ChannelReads : public testing::Test {
 protected:
  ChannelReads() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = FileDescriptor(ends[1]);
    channel_ = std::make_shared<Channel>(lane_, reports_, ChannelId{}, ByteStream(FileDescriptor(ends[0])));
    channel_->start();
  }
  ~ChannelReads() override {
    channel_->close("");
    run();
  }
  // Number of handlers that ran.
  std::size_t run() {
    lane_.restart();
    return lane_.poll();
  }
  void say(const void* bytes, std::size_t count) const {
    EXPECT_EQ(::send(peer_.get(), bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
  }
  // Writes a whole payload of this size into the socket. Returns false if the socket cannot hold
  // it.
  bool announce(std::size_t payload_bytes) {
    const int room = 64 << 20;
    if (::setsockopt(peer_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) != 0) return false;
    const Frame frame{.payload_bytes = payload_bytes};
    say(&frame, sizeof(frame));
    run();
    EXPECT_EQ(reports_.count<Announced>(), 1u);
    const std::vector<char> bytes(64 << 10);
    for (std::size_t sent = 0; sent < payload_bytes; sent += bytes.size()) say(bytes.data(), bytes.size());
    return true;
  }
  void pause_and_resume(int times) {
    for (int i = 0; i < times; ++i) {
      channel_->pause();
      channel_->resume();
    }
  }

  boost::asio::io_context lane_{1};
  Reports reports_;
  FileDescriptor peer_;
  std::shared_ptr<Channel> channel_;
};

TEST_F(ChannelReads, AnIdleChannelWaitsOnceHoweverOftenItIsPaused) {
  pause_and_resume(1000);
  EXPECT_EQ(run(), 0u) << "nothing has arrived";
  const Frame frame;
  say(&frame, 1);
  EXPECT_EQ(run(), 1u) << "handlers that waited for one byte";
  say(reinterpret_cast<const char*>(&frame) + 1, sizeof(frame) - 1);
  EXPECT_EQ(run(), 1u);
  EXPECT_EQ(reports_.count<Arrived>(), 1u);
}

TEST_F(ChannelReads, AMessageThatArrivesDuringAPauseIsReportedAfterIt) {
  const Frame frame;
  channel_->pause();
  say(&frame, sizeof(frame));
  EXPECT_EQ(run(), 1u) << "the wait from before the pause";
  EXPECT_EQ(reports_.count<Arrived>(), 0u);
  channel_->resume();
  EXPECT_EQ(reports_.count<Arrived>(), 1u);
  say(&frame, sizeof(frame));
  EXPECT_EQ(run(), 1u) << "it waits again";
  EXPECT_EQ(reports_.count<Arrived>(), 2u);
}

TEST_F(ChannelReads, ASkippedPayloadIsReadInTurns) {
  if (!announce(16 << 20)) GTEST_SKIP() << kNeedsRoot;
  channel_->skip();
  EXPECT_GE(run(), 3u) << "turns after the first, with room for other channels between them";
}

TEST_F(ChannelReads, ALargePayloadIsTakenInTurns) {
  constexpr std::size_t kBytes = 16 << 20;
  if (!announce(kBytes)) GTEST_SKIP() << kNeedsRoot;
  std::vector<std::byte> memory(kBytes);
  channel_->take(memory);
  EXPECT_GE(run(), 3u) << "turns after the first";
  EXPECT_EQ(reports_.count<Landed>(), 1u);
}

// The socket holds the bytes of several turns.
TEST_F(ChannelReads, ABusyChannelHasOneTurnPostedHoweverOftenItIsPaused) {
  if (!announce(16 << 20)) GTEST_SKIP() << kNeedsRoot;
  channel_->skip();
  pause_and_resume(2);
  channel_->pause();
  EXPECT_EQ(run(), 1u);
}

TEST_F(ChannelReads, ABlockedWriterWaitsOnceHoweverMuchIsSent) {
  const std::vector<std::byte> payload(1 << 20);
  for (std::uint64_t id = 1; id <= 100; ++id) channel_->send({.id = SendId{id}, .header = {}, .payload = {payload}});
  EXPECT_EQ(run(), 0u);
  std::vector<char> taken(64 << 10);
  while (::recv(peer_.get(), taken.data(), taken.size(), 0) > 0) {
  }
  EXPECT_EQ(run(), 1u);
}

// Two channels of one lane, whose sockets take all that is sent. One has a long message to send.
class ChannelTurns : public testing::Test {
 protected:
  static constexpr std::size_t kMiB = 1 << 20;
  struct End {
    Reports reports;
    FileDescriptor peer;
    std::shared_ptr<Channel> channel;
  };

  void SetUp() override {
    for (End* const end : {&busy_, &other_}) {
      int ends[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
      end->peer = FileDescriptor(ends[1]);
      const int room = 128 << 20;
      const bool has_room = ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) == 0;
      end->channel = std::make_shared<Channel>(lane_, end->reports, ChannelId{}, ByteStream(FileDescriptor(ends[0])));
      end->channel->start();
      if (!has_room) GTEST_SKIP() << kNeedsRoot;
    }
    busy_.channel->send({.id = SendId{1}, .header = {}, .payload = std::vector<ConstBytes>(32, page_)});
  }
  ~ChannelTurns() override {
    for (const End* const end : {&busy_, &other_})
      if (end->channel) end->channel->close("");
    lane_.restart();
    lane_.poll();
  }
  // As the transport sends: after what the lane has to do already. Returns the bytes that the busy
  // channel wrote before it.
  std::size_t busy_bytes_before(std::uint64_t id, std::size_t bytes) {
    const std::size_t before = written(busy_), sent = other_.reports.count<Written>();
    boost::asio::post(lane_, [this, id, bytes] {
      other_.channel->send({.id = SendId{id}, .header = {}, .payload = {ConstBytes(page_).first(bytes)}});
    });
    while (other_.reports.count<Written>() == sent && lane_.poll_one() != 0) {
    }
    EXPECT_EQ(other_.reports.count<Written>(), sent + 1);
    return written(busy_) - before;
  }
  static std::size_t written(const End& end) {
    int bytes = 0;
    EXPECT_EQ(::ioctl(end.peer.get(), FIONREAD, &bytes), 0);
    return static_cast<std::size_t>(bytes);
  }

  boost::asio::io_context lane_{1};
  const std::vector<std::byte> page_ = std::vector<std::byte>(kMiB);
  End busy_, other_;
};

TEST_F(ChannelTurns, AShortMessageWaitsForAPartOfALongOne) {
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_LE(busy_bytes_before(id, kMiB / 8), kMiB / 2);
  EXPECT_EQ(busy_.reports.count<Written>(), 0u);
}

TEST_F(ChannelTurns, AChannelThatWasIdleSendsAPageAtOnce) { EXPECT_LE(busy_bytes_before(1, kMiB), kMiB / 2); }

}  // namespace
}  // namespace vmem::rdma::stream
