// The Transport over byte streams: Unix sockets on one machine, TLS 1.3 over TCP between machines.
//
// A peer is one link of several connections (channels), each between proved ends. Channel 0 carries
// messages without a payload, and the farewell; the others carry payloads, so that a small message
// never waits behind a page. A message goes over the channel with the fewest bytes queued.
//
// Channels move bytes; all books are kept by the thread that calls progress(). With several payload
// channels each has a thread of its own (lane), and hands what happened to that thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "rdma/deadlines.hpp"
#include "rdma/event_queue.hpp"
#include "rdma/slab_map.hpp"
#include "rdma/stream/admission.hpp"
#include "rdma/stream/channel.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostStreamChannels = 8;
// The most incoming links of one identity that still lack connections; equal to the limit on
// unproved connections.
inline constexpr std::size_t kMostHalfMadeLinks = 64;

struct StreamConfig {
  NodeIdentity self;
  ClusterParameters parameters;
  std::string listen;            // "127.0.0.1:0"; "": nobody can connect to this node
  KeyringRef keyring;            // TLS with pre-shared keys; or
  CertificatesRef certificates;  // with certificates. Neither: Unix sockets of this user on this machine
  const Clock* clock = nullptr;  // outlives the transport, as does
  Receiver* receiver = nullptr;
  std::uint64_t handshake_us = 5'000'000;  // for nodes that connect to this one
  std::uint32_t channels = 1;              // for payloads; two nodes use as many as both have
  bool channel_threads = true;             // from two channels on; else progress() does all
  std::uint64_t tls_records_per_key = TlsContext::kRecordsPerKey;
  stream::HandshakeLimits handshake_limits;
};

// Errors: INVALID_OPTION for addresses and channels that cannot be; INTERNAL for what the system refuses.
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
  void wake() noexcept override;

 private:
  using Context = boost::asio::io_context;
  // What any thread knows of a peer that is not gone.
  struct Peer {
    std::atomic<std::size_t> outstanding = 0;
  };
  using PeerRef = std::shared_ptr<Peer>;
  struct Sending {
    std::uint64_t deadline_us = 0;
    std::uint64_t bytes = 0;
    std::size_t channel = 0;
  };
  struct Posted {  // by send()
    PeerId to{};
    std::uint64_t deadline_us = 0;
    Outgoing message;
    PeerRef peer;
  };
  struct Landing {
    std::vector<std::byte> header;
    Claim claim;
  };
  struct Lane {
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
    PeerRef peer;
    bool by_us = false;
    bool connected = false;
    bool paused = false;                   // its channels, until events were taken
    std::optional<SocketAddress> address;  // that was connected to
    std::string name;                      // of the peer, for messages
    TlsPeer proved;                        // by its first connection
    std::uint64_t token = 0;
    NodeIdentity node;
    ProcessRef process;
    std::uint64_t deadline_us = 0;  // to be connected by
    std::vector<Lane> lanes;        // by channel
    std::unordered_map<SendId, Sending> sends;
    std::vector<Posted> held;  // until it is connected
    std::optional<Failure> failure;
    std::optional<Error> suspicion;  // a channel broke; the farewell may still come over the first
  };

  explicit StreamTransport(StreamConfig config) : config_(std::move(config)) {}
  Status start();
  void report(ChannelId channel, Report report) override;
  template <class Work>
  void on_main(Work work);
  template <class Work>
  static void on_lane(const std::shared_ptr<Channel>& channel, Work work);

  // The progressing thread's.
  void begin(PeerId id, const SocketAddress& address, std::uint64_t deadline_us);
  void admitted(Admission::Outcome outcome);
  void joined(PeerId id, Link& link, Admission::Outcome outcome);
  Link* link_of(Admission::Outcome& outcome, PeerId& id);
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
  PeerRef add_peer(PeerId& id);

  // A handler that main_ keeps in memory of the transport's own: to post it cannot fail.
  template <class T>
  struct WakeAllocator {
    using value_type = T;
    StreamTransport* owner;
    explicit WakeAllocator(StreamTransport* of) : owner(of) {}
    template <class U>
    WakeAllocator(const WakeAllocator<U>& other) : owner(other.owner) {}
    T* allocate(std::size_t count) {
      static_assert(alignof(T) <= alignof(std::max_align_t));
      if (count * sizeof(T) > sizeof(owner->wake_memory_)) throw std::bad_alloc();
      return reinterpret_cast<T*>(owner->wake_memory_.data());
    }
    void deallocate(T*, std::size_t) noexcept {}
    bool operator==(const WakeAllocator&) const = default;
  };
  struct Wake {
    StreamTransport* owner;
    using allocator_type = WakeAllocator<void*>;
    allocator_type get_allocator() const noexcept { return allocator_type(owner); }
    void operator()() const { owner->wake_posted_.store(false); }  // main_ has let go of the memory before
  };

  // Constant after start().
  const StreamConfig config_;
  CryptoRef crypto_;
  std::shared_ptr<TlsContext> tls_;  // null: Unix sockets
  Context main_{1};
  boost::asio::executor_work_guard<Context::executor_type> main_work_{main_.get_executor()};
  std::vector<std::unique_ptr<Context>> lanes_;  // of the payload channels, where these have threads
  std::vector<std::thread> threads_;             // of lanes_
  std::atomic<bool> wake_posted_{false};
  alignas(std::max_align_t) std::array<std::byte, 256> wake_memory_;

  // With locks of their own.
  SlabMap slabs_;
  EventQueue events_;
  std::atomic<bool> held_back_ = false;  // channels wait until events were taken

  std::mutex mutex_;
  std::unordered_map<PeerId, PeerRef> peers_;    // protected by mutex_: those that are not gone
  std::uint64_t last_peer_ = 0, last_send_ = 0;  // protected by mutex_

  // The progressing thread's.
  std::unique_ptr<Admission> admission_;
  std::unordered_map<PeerId, std::unique_ptr<Link>> links_;
  Deadlines deadlines_;
  std::uint64_t next_refresh_us_ = 0;  // of the files with secrets
  std::uint64_t refused_ = 0;          // connections and half-made links that came in
  std::uint64_t told_ = 0;             // events, at the last progress()
};

}  // namespace stream
}  // namespace vmem::rdma
