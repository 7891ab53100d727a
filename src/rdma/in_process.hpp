// A network of nodes inside one process, for tests and simulations: deterministic, with a clock that stands still until it is told
// to go on. What is sent arrives `latency` later, when the receiver progresses. Payloads go by rendezvous: announced, claimed, read
// from the sender's memory, acknowledged; so a payload to a silent node is never sent, and a message without one always is.
#pragma once

#include <memory>
#include <string>

#include "base/clock.hpp"
#include "rdma/transport.hpp"

namespace vmem::rdma {

class FabricState;

class Fabric {
 public:
  explicit Fabric(const Clock& clock);  // outlives all nodes
  // A node; its address is "node:ID". The fabric stays for as long as its nodes do.
  std::unique_ptr<Transport> node(NodeIdentity self, Receiver& receiver);

  void set_latency(std::uint64_t us);
  // Nothing passes between the two, and nobody is told.
  void set_partition(NodeId a, NodeId b, bool apart);
  // The process is stopped: its progress does nothing.
  void set_silence(NodeId node, bool silent);
  // The process has died: its progress does nothing, for good, and its peers are told.
  void kill(NodeId node);
  // Its address refuses connections, as where a firewall does, while the node lives.
  void set_refusing(NodeId node, bool refusing);
  // Nodes that connect from now on watch each other's process, as over Unix sockets. A node's process ends with kill(),
  // or with its transport.
  void share_machine();

 private:
  std::shared_ptr<FabricState> state_;
};

}  // namespace vmem::rdma
