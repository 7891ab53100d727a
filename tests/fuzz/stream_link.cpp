// A node's stream transport and peers that send anything: connections, introductions and frames in
// any order. Uses this user's local sockets, on which the bytes after the handshake are plain.
#include <array>
#include <map>
#include <vector>

#include "base/log.hpp"
#include "fuzz/socket_pair.hpp"
#include "rdma/transport/stream/channel.hpp"
#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/trust/local_socket.hpp"

namespace vmem::rdma {
namespace {

using fuzz::Input;
using fuzz::require;
using stream::Frame;

constexpr ClusterParameters kParameters{0x7d0000000000, std::uint64_t{1} << 40, std::uint64_t{2} << 20};
constexpr std::size_t kClaimBytes = 4096;

class Claims final : public Receiver {
 public:
  std::optional<Claim> claim(PeerId, ConstBytes header, std::uint64_t payload_bytes) override {
    require(header.size() <= kMostHeaderBytes && payload_bytes != 0, "an announced payload is one");
    if (payload_bytes > kClaimBytes || refuses) return std::nullopt;
    auto& memory = open[++last_];
    memory.resize(payload_bytes);
    return Claim{memory, last_, deadline_us};
  }
  std::map<std::uint64_t, std::vector<std::byte>> open;  // by token
  std::uint64_t deadline_us = 0;
  bool refuses = false;

 private:
  std::uint64_t last_ = 0;
};

struct Stranger {
  FileDescriptor socket;
  std::uint64_t link = 0;  // from the node's Hello
  std::vector<std::byte> heard;
};

class Script {
 public:
  explicit Script(Input& input) : input_(input) {
    auto made = stream::StreamTransport::create({.self = {NodeId{1}, Incarnation{1}},
                                                 .parameters = kParameters,
                                                 .listen = "127.0.0.1:0",
                                                 .clock = &clock_,
                                                 .receiver = &claims_,
                                                 .channels = 2,
                                                 .channel_threads = false});
    require(made.has_value(), "a node can listen");
    node_ = *std::move(made);
    slab_ = *node_->register_slab(memory_);
  }

  void run() {
    for (int i = 0; i < 64 && !input_.empty(); ++i) {
      act();
      step();
    }
    for (const auto& [peer, sends] : peers_) node_->close(peer);
    for (int i = 0; i < 16 && !peers_.empty(); ++i) step();
    require(peers_.empty(), "a peer that is closed is gone");
    require(claims_.open.empty(), "every claim is answered");
  }

 private:
  void act() {
    Stranger& stranger = strangers_[input_.below(strangers_.size())];
    switch (input_.below(9)) {
      case 0:
        return connect(stranger);
      case 1:
        return introduce(stranger);
      case 2:
        return say_frame(stranger);
      case 3:
        return say(stranger, input_.bytes(input_.below(128)));
      case 4:
        return stranger.socket.reset();
      case 5:
        return clock_.advance(input_.take<std::uint32_t>() % 8'000'000);
      case 6:
        claims_.refuses = !claims_.refuses;
        return;
      case 7:
        return send();
      default:
        if (!peers_.empty()) node_->close(peers_.begin()->first);
    }
  }

  void connect(Stranger& stranger) {
    const auto address = SocketAddress::parse(node_->address());
    const auto path = socket_path(*address);
    stranger = {FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), 0, {}};
    require(::connect(stranger.socket.get(), reinterpret_cast<const sockaddr*>(&*path), sizeof(*path)) == 0,
            "a node that listens is reached");
  }
  // A correct introduction, except for the input's changes.
  void introduce(Stranger& stranger) {
    Hello hello{.channels = std::uint16_t(1 + input_.below(3)), .index = std::uint16_t(input_.below(4))};
    hello.node = 2 + input_.below(2);
    hello.incarnation = 1 + input_.below(2);
    hello.base = kParameters.base;
    hello.space_bytes = kParameters.space_bytes;
    hello.page_bytes = kParameters.page_bytes;
    if (hello.index != 0) hello.link = strangers_[input_.below(strangers_.size())].link;
    std::array<std::byte, sizeof(Hello)> bytes;
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    if (input_.below(4) == 0) bytes[input_.below(sizeof(Hello))] ^= input_.take<std::byte>();
    say(stranger, bytes);
  }
  void say_frame(Stranger& stranger) {
    const ConstBytes header = input_.bytes(input_.below(64));
    Frame frame{.kind = Frame::Kind(1 + input_.below(2)), .header_bytes = std::uint16_t(header.size())};
    frame.payload_bytes = input_.flag() ? input_.take<std::uint16_t>() % (2 * kClaimBytes) : 0;
    say(stranger, std::as_bytes(std::span(&frame, 1)));
    say(stranger, header);
    // Sends the whole payload, or half of it and lets the connection wait for the rest.
    const std::vector<std::byte> payload(input_.flag() ? frame.payload_bytes : frame.payload_bytes / 2);
    say(stranger, payload);
  }
  static void say(Stranger& stranger, ConstBytes bytes) {
    if (stranger.socket) (void)fuzz::send_all(stranger.socket.get(), bytes);
  }
  void send() {
    const ConstBytes payload[] = {ConstBytes(memory_).first(1 + input_.below(256))};
    const std::array<std::byte, 8> header{};
    if (peers_.empty()) return;
    Send send{.peer = peers_.begin()->first, .header = header, .deadline_us = clock_.now_us() + 1'000'000};
    if (input_.flag()) send.payload = payload;
    require(node_->send({&send, 1}).has_value(), "a message can be posted");
    ++peers_.begin()->second;
  }

  void step() {
    claims_.deadline_us = clock_.now_us() + 1'000'000;
    while (node_->progress()) {
    }
    std::vector<Event> events;
    node_->poll(events);
    for (Event& event : events) std::visit([&](auto& what) { handle(event.peer, what); }, event.what);
    for (Stranger& each : strangers_) listen(each);
  }
  void listen(Stranger& stranger) {
    std::array<std::byte, 4096> part;
    if (!stranger.socket) return;
    const ssize_t got = ::recv(stranger.socket.get(), part.data(), part.size(), 0);
    if (got <= 0) return;
    stranger.heard.insert(stranger.heard.end(), part.begin(), part.begin() + got);
    if (stranger.heard.size() < sizeof(Hello)) return;
    Hello hello;
    std::memcpy(&hello, stranger.heard.data(), sizeof(hello));
    require(hello.magic == Hello{}.magic && hello.role == Hello::Role::responder,
            "a node answers with its introduction");
    stranger.link = hello.link;
  }

  void handle(PeerId peer, Connected& connected) {
    require(peers_.emplace(peer, 0).second, "a peer connects once");
    require(!connected.by_us && connected.node.id != NodeId{} && connected.node.id != NodeId{1},
            "a peer has an id of its own");
  }
  void handle(PeerId peer, Message& message) {
    require(peers_.contains(peer), "messages come from peers that are there");
    require(message.header.size() <= kMostHeaderBytes, "a header has its most bytes");
    if (message.token != 0) close_claim(message.token);
  }
  void handle(PeerId peer, ReceiveFailed& failed) {
    require(peers_.contains(peer), "a claim ends before its peer is gone");
    close_claim(failed.token);
  }
  void handle(PeerId peer, Sent&) { end_send(peer); }
  void handle(PeerId peer, SendFailed&) {
    if (peers_.contains(peer)) end_send(peer);  // or it was posted too late
  }
  void handle(PeerId peer, Gone&) {
    const auto gone = peers_.extract(peer);
    require(!gone.empty() && gone.mapped() == 0, "every message ends before its peer is gone");
  }
  void end_send(PeerId peer) {
    require(peers_.contains(peer) && peers_.at(peer) != 0, "a message ends once");
    --peers_.at(peer);
  }
  void close_claim(std::uint64_t token) { require(claims_.open.erase(token) == 1, "a claim is answered once"); }

  Input& input_;
  ManualClock clock_;
  Claims claims_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  std::unique_ptr<stream::StreamTransport> node_;
  std::unique_ptr<Slab> slab_;  // destroyed before the transport
  std::array<Stranger, 4> strangers_;
  // Connected peers, and the number of sends to each that have not ended.
  std::map<PeerId, int> peers_;
};

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::log::set_level(vmem::log::Level::off);
  vmem::fuzz::Input input(data, size);
  vmem::rdma::Script(input).run();
  return 0;
}
