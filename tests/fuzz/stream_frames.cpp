// One connection of an authenticated peer: compares the frames with a model that parses the same
// bytes.
#include <boost/asio/executor_work_guard.hpp>
#include <deque>

#include "base/log.hpp"
#include "fuzz/socket_pair.hpp"
#include "rdma/transport/stream/channel.hpp"

namespace vmem::rdma::stream {
namespace {

using fuzz::equal;
using fuzz::Input;
using fuzz::require;
using fuzz::SocketPair;

// Larger payloads are skipped, and so are odd ones.
constexpr std::uint64_t kMostTaken = 1024;

// Parses the frames in `bytes`, of which the last may be incomplete.
class Model {
 public:
  explicit Model(ConstBytes bytes) : rest_(bytes) {}
  struct Message {
    Frame frame;
    ConstBytes header, payload;
    bool announced = false, whole = false, refused = false;
  };
  // nullopt: no whole header follows.
  std::optional<Message> next() {
    Message message;
    if (ended_ || rest_.size() < sizeof(Frame)) return std::nullopt;
    std::memcpy(&message.frame, rest_.data(), sizeof(Frame));
    rest_ = rest_.subspan(sizeof(Frame));
    const Frame& frame = message.frame;
    const bool known = frame.kind == Frame::Kind::message || frame.kind == Frame::Kind::farewell;
    message.refused = !known || frame.header_bytes > kMostHeaderBytes || frame.payload_bytes > kMostPayloadBytes ||
                      frame.reserved != 0;
    ended_ = message.refused || frame.kind == Frame::Kind::farewell;
    if (message.refused) return message;
    if (rest_.size() < frame.header_bytes) {
      ended_ = true;
      return std::nullopt;
    }
    message.header = take(frame.header_bytes);
    message.announced = frame.kind == Frame::Kind::message && frame.payload_bytes != 0;
    message.whole = rest_.size() >= frame.payload_bytes;
    ended_ |= message.announced && !message.whole;
    if (message.announced) message.payload = take(std::min<std::uint64_t>(frame.payload_bytes, rest_.size()));
    return message;
  }

 private:
  ConstBytes take(std::size_t bytes) {
    const ConstBytes part = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return part;
  }
  ConstBytes rest_;
  bool ended_ = false;
};

bool is_taken(const Announced& announced) {
  return announced.payload_bytes <= kMostTaken && announced.payload_bytes % 2 == 0;
}

class Owner final : public ChannelOwner {
 public:
  void report(ChannelId, Report report) override {
    require(reports.empty() || !std::holds_alternative<Closed>(reports.back()), "nothing follows the end");
    reports.push_back(std::move(report));
  }
  std::deque<Report> reports;
};

void expect_header(ConstBytes header, const std::optional<Model::Message>& expected) {
  require(expected && !expected->refused && equal(header, expected->header), "a header arrives as it was sent");
}

void run(Input& input) {
  SocketPair sockets;
  const int peer = sockets.theirs.get();
  boost::asio::io_context context;
  const auto work = boost::asio::make_work_guard(context);
  Owner owner;
  const auto channel =
      std::make_shared<Channel>(context, owner, ChannelId{PeerId{1}, 1}, ByteStream(std::move(sockets.ours)));
  channel->start();
  const std::size_t piece = std::size_t{1} << input.below(14);
  const ConstBytes all = input.rest();
  Model model(all);
  std::vector<std::byte> destination;
  ConstBytes landing;
  bool over = false;
  const auto read_reports = [&] {
    while (!owner.reports.empty()) {
      const Report report = std::move(owner.reports.front());
      owner.reports.pop_front();
      require(!over, "nothing follows a broken connection");
      if (const auto* announced = std::get_if<Announced>(&report)) {
        const auto expected = model.next();
        expect_header(announced->header, expected);
        require(announced->payload_bytes == expected->frame.payload_bytes, "a payload is announced as it was sent");
        landing = expected->whole ? expected->payload : ConstBytes{};
        if (is_taken(*announced)) {
          destination.assign(announced->payload_bytes, {});
          channel->take(destination);
        } else {
          channel->skip();
        }
      } else if (const auto* arrived = std::get_if<Arrived>(&report)) {
        expect_header(arrived->header, model.next());
      } else if (std::holds_alternative<Landed>(report)) {
        require(equal(destination, landing), "a payload lands as it was sent");
      } else if (const auto* farewell = std::get_if<Farewell>(&report)) {
        expect_header(std::as_bytes(std::span(farewell->why)), model.next());
        over = true;
      } else if (std::holds_alternative<Broken>(report)) {
        const auto expected = model.next();
        require(expected && expected->refused, "only what cannot be is refused");
        over = true;
      }
    }
  };
  for (ConstBytes rest = all; !rest.empty() && !over;) {
    const ConstBytes part = rest.first(std::min(piece, rest.size()));
    if (!fuzz::send_all(peer, part)) break;
    rest = rest.subspan(part.size());
    do {
      read_reports();
    } while (context.poll() != 0 || !owner.reports.empty());
  }
  require(!model.next(), "everything that was sent has arrived");
  channel->close("");
  require(!owner.reports.empty() && std::holds_alternative<Closed>(owner.reports.back()),
          "a channel that ends says so");
  context.poll();  // runs the channel's pending handlers, which hold it
}

}  // namespace
}  // namespace vmem::rdma::stream

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::log::set_level(vmem::log::Level::off);
  vmem::fuzz::Input input(data, size);
  vmem::rdma::stream::run(input);
  return 0;
}
