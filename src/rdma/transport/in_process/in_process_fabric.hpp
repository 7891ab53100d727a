// State shared by the nodes of a Fabric, and the packets between them.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "rdma/transport/deadlines.hpp"
#include "rdma/transport/event_queue.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "rdma/transport/slab_map.hpp"

namespace vmem::rdma {

// One of the paths to a node: that of an address.
struct FabricPath {
  NodeId node{};
  std::uint64_t number = 0;
  auto operator<=>(const FabricPath&) const = default;
};

struct Packet {
  enum class Kind : std::uint8_t { connect, accept, refuse, message, announce, clear, data, taken, bye, dead };
  Kind kind = Kind::message;
  NodeIdentity from;
  PeerId from_peer{}, to_peer{};
  std::vector<std::byte> bytes;  // header; of `data`: the payload
  std::uint64_t payload_bytes = 0;
  SendId send{};                 // of announce and its answers
  Reason reason = Reason::lost;  // bye
  FabricPath path;               // of the connection
};

class FabricNode;

class FabricState {
 public:
  explicit FabricState(const Clock& fabric_clock) : clock(fabric_clock) {}
  void deliver(NodeId from, NodeId to, Packet packet);

  const Clock& clock;
  // One for the whole fabric; recursive, because Receiver::claim may post.
  std::recursive_mutex mutex;
  std::condition_variable_any changed;
  // All protected by mutex.
  std::unordered_map<NodeId, FabricNode*> nodes;
  std::set<std::pair<NodeId, NodeId>> ways_cut;  // from the first to the second
  std::set<FabricPath> cuts;
  std::set<NodeId> silent, dead, refusing;
  std::set<NodeId> without_gpu_memory;  // receive nothing that is sent from there
  bool one_machine = false;
  std::atomic<bool> gpu_memory = false;  // the only one that needs no mutex
  std::uint64_t latency_us = 0;
  std::uint64_t packets = 0;
};

class FabricNode final : public Transport {
 public:
  FabricNode(std::shared_ptr<FabricState> fabric, NodeIdentity self, Receiver& receiver, const Clock& clock);
  ~FabricNode() override;

  const std::string& address() const noexcept override { return address_; }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override;
  bool sends_gpu_memory() const noexcept override { return fabric_->gpu_memory.load(); }
  Result<std::unique_ptr<Slab>> register_gpu_slab(Bytes memory) override {
    return sends_gpu_memory() ? register_slab(memory) : Transport::register_gpu_slab(memory);
  }
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override;
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override;
  void poll(std::vector<Event>& events) override { events_.take(events); }
  bool wait(std::uint64_t most_us) override { return events_.wait(most_us); }
  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override;

  // Called by the fabric with its mutex held.
  void arrive(std::uint64_t due_us, std::uint64_t order, Packet packet);
  void peer_died(NodeId node);
  void end_process() noexcept;

 private:
  struct Sending {
    std::vector<std::byte> header;
    std::vector<ConstBytes> payload;
    std::uint64_t deadline_us = 0;
  };
  struct Receiving {
    std::vector<std::byte> header;
    Claim claim;
  };
  struct Link {
    NodeIdentity node;
    FabricPath path;
    PeerId remote{};
    bool by_us = false;
    bool connected = false;
    std::uint64_t deadline_us = 0;
    std::map<SendId, Sending> sends;
    std::map<SendId, Receiving> receives;  // by the sender's id
  };
  using Inbox = std::map<std::pair<std::uint64_t, std::uint64_t>, Packet>;

  Status post(Send& send);
  void transmit(Link& link, PeerId peer, SendId id);
  void dispatch(const Link& link, PeerId peer, Packet packet);
  void handle(Packet packet);
  void on_connect(const Packet& packet);
  void on_accept(Link& link, const Packet& packet);
  void on_announce(Link& link, Packet packet);
  void on_clear(Link& link, const Packet& packet);
  void on_data(Link& link, Packet packet);
  void on_taken(Link& link, const Packet& packet);
  void drop(PeerId peer, Reason reason, Error error);
  bool expire();
  bool stopped() const;
  ProcessRef process_of(NodeId node) const;
  void tell_connected(PeerId peer, const Link& link);

  const std::shared_ptr<FabricState> fabric_;
  const NodeIdentity self_;
  Receiver& receiver_;
  const Clock& clock_;  // of deadlines
  const std::string address_;
  SlabMap slabs_;
  EventQueue events_;
  const ProcessRef process_;  // an eventfd, readable once this node's process has ended
  // Protected by the fabric's mutex.
  std::map<PeerId, Link> links_;
  Deadlines deadlines_;
  Inbox inbox_;  // by due time, then by send order
  std::uint64_t last_peer_ = 0, last_send_ = 0;
  bool woken_ = false;
};

}  // namespace vmem::rdma
