// One connection between two nodes that trust each other, as frames: a small header and, if there is
// one, a payload. Bytes go from where they lie to the socket, and from the socket to where the
// receiver wants them; TLS copies once more on each side.
//
// A Channel lives on one io_context (its lane) and is used from there only. What happened goes to
// ChannelOwner::post, which hands it to the transport's own thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/stream/byte_stream.hpp"
#include "rdma/transport.hpp"

namespace vmem::rdma::stream {

// What stands before every message; little-endian.
struct Frame {
  enum class Kind : std::uint16_t { message = 1, farewell = 2 };
  Kind kind = Kind::message;
  std::uint16_t header_bytes = 0;   // that follow
  std::uint32_t reserved = 0;       // 0
  std::uint64_t payload_bytes = 0;  // that follow the header
};
static_assert(sizeof(Frame) == 16);
inline constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 30;

struct Outgoing {
  SendId id{};
  Frame::Kind kind = Frame::Kind::message;
  std::vector<std::byte> header;
  std::vector<ConstBytes> payload;
};

// Reports, in the order in which they happened on this channel.
struct Announced {  // answered by Channel::take or Channel::skip
  std::vector<std::byte> header;
  std::uint64_t payload_bytes = 0;
};
struct Landed {};  // the payload of the last Announced, if it was taken
struct Arrived {   // a message without a payload
  std::vector<std::byte> header;
};
struct Farewell {  // the peer closes, and says why
  std::string why;
};
struct Written {
  SendId id{};
};
struct Broken {  // the last report but Closed
  Error error;
};
struct Closed {};  // the last report: nothing of this channel touches memory any more
using Report = std::variant<Announced, Landed, Arrived, Farewell, Written, Broken, Closed>;

struct ChannelId {
  PeerId peer{};
  std::uint32_t index = 0;
};

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual void report(ChannelId channel, Report report) = 0;  // any lane
};

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(boost::asio::io_context& lane, ChannelOwner& owner, ChannelId id, ByteStream stream);

  // Thread: the lane's, through post().
  void start();
  void send(Outgoing outgoing);
  void take(Bytes destination);  // answers Announced
  void skip();                   // answers Announced: the payload is read and dropped
  // Nothing more is read until resume().
  void pause() { paused_ = true; }
  void resume();
  // By force; Closed follows. What is queued is dropped, but for a farewell that the socket takes at once.
  void close(std::string farewell);

  boost::asio::io_context& lane() noexcept { return lane_; }

 private:
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
  boost::asio::posix::stream_descriptor descriptor_;  // waits only; the stream owns the socket

  Stage stage_ = Stage::frame;
  Frame frame_;
  std::vector<std::byte> header_;
  Bytes target_;  // what is still to be read of this stage
  std::uint64_t to_skip_ = 0;
  std::vector<std::byte> dropped_;  // where skipped bytes go
  bool paused_ = false, reading_ = false;
  bool awaits_bytes_ = false, turn_posted_ = false;  // a handler that will call read()

  std::deque<Outgoing> queue_;
  std::vector<std::byte> prefix_;   // frame and header of the first of queue_
  std::vector<ConstBytes> pieces_;  // what is still to be written of it
  bool writing_ = false;            // or write() is posted, or waits
  bool broken_ = false, closed_ = false;
};

}  // namespace vmem::rdma::stream
