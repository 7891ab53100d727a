// One connection between two proved nodes, as a sequence of frames: a small header and an optional
// payload. Payloads move between the socket and the owner's memory without a copy; TLS adds one on
// each side.
//
// A Channel belongs to one io_context (its lane) and is used only from there. It passes its reports
// to ChannelOwner::report, which forwards them to the transport's own thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/trust/byte_stream.hpp"

namespace vmem::rdma::stream {

// Precedes every message; little-endian.
struct Frame {
  enum class Kind : std::uint16_t { message = 1, farewell = 2 };
  Kind kind = Kind::message;
  std::uint16_t header_bytes = 0;   // after this frame
  std::uint32_t reserved = 0;       // must be 0
  std::uint64_t payload_bytes = 0;  // after the header
};
static_assert(sizeof(Frame) == 16);
inline constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 30;

struct Outgoing {
  SendId id{};
  Frame::Kind kind = Frame::Kind::message;
  std::vector<std::byte> header;
  std::vector<ConstBytes> payload;
};

// Reports of one channel arrive in the order of their events.
struct Announced {  // the owner answers with Channel::take or Channel::skip
  std::vector<std::byte> header;
  std::uint64_t payload_bytes = 0;
};
struct Landed {};  // the payload of the last Announced is complete, after take()
struct Arrived {   // a message without a payload
  std::vector<std::byte> header;
};
struct Farewell {  // the peer closes, with its reason
  std::string why;
};
struct Written {
  SendId id{};
};
struct Broken {  // only Closed follows
  Error error;
};
struct Closed {};  // the last report: the channel no longer accesses payload memory
using Report = std::variant<Announced, Landed, Arrived, Farewell, Written, Broken, Closed>;

struct ChannelId {
  PeerId peer{};
  std::uint32_t index = 0;
};

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual void report(ChannelId channel, Report report) = 0;  // called on any lane
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(boost::asio::io_context& lane, ChannelOwner& owner, ChannelId id, ByteStream stream);

  // Thread: the lane's, through asio::post().
  void start();
  void send(Outgoing outgoing);
  void take(Bytes destination);  // answers Announced
  void skip();                   // answers Announced: reads and drops the payload
  // Stops reading until resume().
  void pause() { paused_ = true; }
  void resume();
  // Forced: drops the queue and reports Closed. Sends a non-empty farewell if no message is partly
  // sent, as far as the socket takes it at once.
  void close(std::string farewell);

  boost::asio::io_context& lane() noexcept { return lane_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : std::uint8_t { frame, header, waiting, payload, skipping };
  enum class Step : std::uint8_t { went_on, blocked, stopped };

  void read();
  Step read_some(std::size_t& turn);
  Step on_frame();
  Step on_header();
  void expect(Stage stage, Bytes target);
  void wait_readable();
  void post_turn();
  void write();
  Result<bool> write_some();
  void wait_writable();
  void begin(const Outgoing& outgoing);
  void fail(Error error);
  void report(Report report) { owner_.report(id_, std::move(report)); }

  boost::asio::io_context& lane_;
  ChannelOwner& owner_;
  const ChannelId id_;
  ByteStream stream_;
  boost::asio::posix::stream_descriptor descriptor_;  // for async_wait; stream_ owns the socket

  Stage stage_ = Stage::frame;
  Frame frame_;
  std::vector<std::byte> header_;
  Bytes target_;  // unread rest of this stage
  std::uint64_t to_skip_ = 0;
  std::vector<std::byte> dropped_;  // scratch for skipped bytes
  bool paused_ = false, reading_ = false;
  bool awaits_bytes_ = false, turn_posted_ = false;  // a handler is pending that calls read()

  std::deque<Outgoing> queue_;
  std::vector<std::byte> prefix_;   // frame and header of queue_.front()
  std::vector<ConstBytes> pieces_;  // unwritten rest of queue_.front()
  std::size_t turn_bytes_;          // of the next turn
  Clock::time_point last_send_{};   // when the last message was written
  bool writing_ = false;            // write() runs, is posted or waits
  bool broken_ = false, closed_ = false;
};

}  // namespace vmem::rdma::stream
