// The Transport over byte streams: Unix sockets on one machine, TLS 1.3 over TCP between machines.
//
// A peer is one link of several connections (channels), each with both ends authenticated. Channel
// 0 carries messages without a payload, and the farewell: the reason why an end closes. The others
// carry payloads, so that a small message never waits behind a page. A payload goes over the
// channel with the fewest bytes queued.
//
// Channels move bytes; the thread that calls progress() keeps all other state. With several payload
// channels, each channel index has a thread, its lane. The lane runs the channels of that index of
// all links, and posts their reports to the progressing thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <unordered_map>

#include "rdma/transport/deadlines.hpp"
#include "rdma/transport/event_queue.hpp"
#include "rdma/transport/slab_map.hpp"
#include "rdma/transport/stream/channel.hpp"
#include "rdma/transport/stream/stream_lanes.hpp"
#include "rdma/transport/stream/stream_peers.hpp"
#include "rdma/transport/stream/wake_signal.hpp"
#include "rdma/trust/admission.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostStreamChannels = 8;
// Limit of incoming links of one identity that still lack connections; equal to
// Admission::Config::most_pending.
inline constexpr std::size_t kMostHalfMadeLinks = 64;

struct StreamConfig {
  NodeIdentity self;
  ClusterParameters parameters;
  std::string listen;            // "127.0.0.1:0"; "": no listener
  KeyringRef keyring;            // TLS with pre-shared keys
  CertificatesRef certificates;  // TLS with certificates; with neither: this user's Unix sockets
  const Clock* clock = nullptr;  // outlives the transport, as `receiver` does
  Receiver* receiver = nullptr;
  std::uint64_t handshake_us = 5'000'000;  // limit for incoming connections
  std::uint32_t channels = 1;              // payload channels; a link has the lesser of both ends'
  std::uint16_t version = kProtocolVersion;
  bool channel_threads = true;  // for 2 or more channels; otherwise progress() runs them
  std::uint64_t tls_records_per_key = TlsContext::kRecordsPerKey;
  HandshakeLimits handshake_limits;
};

// Errors: INVALID_OPTION for invalid or contradictory options; INTERNAL for system failures.
Result<std::unique_ptr<Transport>> create_stream_transport(StreamConfig config);

namespace stream {

class StreamTransport final : public Transport, private ChannelOwner {
 public:
  static Result<std::unique_ptr<StreamTransport>> create(StreamConfig config);
  ~StreamTransport() override;

  const std::string& address() const noexcept override { return admission_->address(); }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override;
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override;
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override;
  void poll(std::vector<Event>& events) override;
  bool wait(std::uint64_t most_us) override { return events_.wait(most_us); }
  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override { wake_.post(main_); }

 private:
  using Context = boost::asio::io_context;
  struct Sending {
    std::uint64_t deadline_us = 0;
    std::uint64_t bytes = 0;
    std::size_t channel = 0;
  };
  struct Posted {  // by send()
    PeerId to{};
    std::uint64_t deadline_us = 0;
    Outgoing message;
    StreamPeerRef peer;  // null: it is gone
  };
  struct Landing {
    std::vector<std::byte> header;
    Claim claim;
  };
  // One channel of a link, as the progressing thread sees it.
  struct LinkChannel {
    std::shared_ptr<Channel> channel;
    std::uint64_t queued_bytes = 0;
    std::optional<Landing> landing;
    bool closed = false;
  };
  struct Failure {
    Reason reason = Reason::lost;
    Error error;
  };
  struct Link {
    StreamPeerRef peer;
    bool by_us = false;
    bool connected = false;
    bool paused = false;                   // its channels do not read until poll()
    std::optional<SocketAddress> address;  // set if by_us
    std::string name;                      // of the peer, for logs and errors
    TlsPeer proved;                        // by the first connection
    std::uint64_t token = 0;
    NodeIdentity node;
    std::uint16_t version = kProtocolVersion;
    ProcessRef process;
    std::uint64_t deadline_us = 0;      // for setting up all connections
    std::vector<LinkChannel> channels;  // by channel index
    std::unordered_map<SendId, Sending> sends;
    std::vector<Posted> held;  // sends, until the link is connected
    std::optional<Failure> failure;
    std::optional<Error> suspicion;  // a payload channel broke; a farewell may follow on channel 0
  };

  explicit StreamTransport(StreamConfig config) : config_(std::move(config)) {}
  Status start();
  void report(ChannelId channel, Report report) override;
  template <class Work>
  void on_main(Work work);
  template <class Work>
  static void on_lane(const std::shared_ptr<Channel>& channel, Work work);

  // Thread: the progressing one.
  void begin(PeerId id, const SocketAddress& address, std::uint64_t deadline_us);
  void admitted(Admission::SetUp outcome);
  void joined(PeerId id, Link& link, Admission::SetUp outcome);
  Link* link_of(Admission::SetUp& outcome, PeerId& id);
  void make_room(const std::string& identity);
  void established(PeerId id, Link& link);
  void run(std::vector<Posted> sends);
  void dispatch(Link& link, Posted send);
  void refuse(const Posted& send, const Failure& failure);
  void handle(ChannelId id, Announced& announced);
  void handle(ChannelId id, Landed& landed);
  void handle(ChannelId id, Arrived& arrived);
  void handle(ChannelId id, Farewell& farewell);
  void handle(ChannelId id, Written& written);
  void handle(ChannelId id, Broken& broken);
  void handle(ChannelId id, Closed& closed);
  void suspect(PeerId id, Link& link, Error error);
  void fail_link(PeerId id, Reason reason, Error error);
  void forget(PeerId id);
  void hold_back(Link& link);
  bool expire();
  bool refresh_trust();
  Link* find(PeerId id);

  // Constant after start().
  const StreamConfig config_;
  CryptoRef crypto_;
  std::shared_ptr<TlsContext> tls_;  // null: Unix sockets
  Context main_{1};
  boost::asio::executor_work_guard<Context::executor_type> main_work_{main_.get_executor()};
  StreamLanes lanes_;  // of the payload channels; none: main_ runs them

  // Thread: any.
  WakeSignal wake_;
  SlabMap slabs_;
  EventQueue events_;
  StreamPeers peers_;
  std::atomic<bool> held_back_ = false;  // some links are paused until poll()

  // Thread: the progressing one.
  std::unique_ptr<Admission> admission_;
  std::unordered_map<PeerId, std::unique_ptr<Link>> links_;
  Deadlines deadlines_;
  std::uint64_t next_refresh_us_ = 0;  // of the secret or certificate files
  std::uint64_t refused_ = 0;          // incoming connections and half-made links
  std::uint64_t told_ = 0;             // events_.pushed() at the last progress()
};

}  // namespace stream
}  // namespace vmem::rdma
