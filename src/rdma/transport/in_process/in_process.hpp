// A network of nodes inside one process, for tests and simulations. Deterministic, on a clock that
// advances only on request; a node's deadlines may be on a clock of its own. A message arrives
// `latency` after it was sent, when the receiver progresses. Payloads use rendezvous: announced,
// claimed, read from the sender's memory, acknowledged. So a payload to a silent node is never
// sent; a message without one always is.
#pragma once

#include <memory>
#include <string>

#include "base/clock.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class FabricState;

class Fabric {
 public:
  explicit Fabric(const Clock& clock);  // must outlive all nodes
  // Addresses of the node: "node:ID", and "node:ID/PATH" with a number for each further path to it.
  // The nodes keep the fabric's state alive.
  std::unique_ptr<Transport> node(NodeIdentity self, Receiver& receiver);
  // `clock`: of the node's deadlines; outlives the node.
  std::unique_ptr<Transport> node(NodeIdentity self, Receiver& receiver, const Clock& clock);

  void set_latency(std::uint64_t us);
  // Drops all packets between the two nodes, without telling either.
  void set_partition(NodeId a, NodeId b, bool apart);
  // Drops all packets from the first node to the second.
  void set_one_way_cut(NodeId from, NodeId to, bool cut);
  // Drops all packets of connections that were made, or are tried, over this path to the node; 0:
  // that of "node:ID".
  void set_cut(NodeId node, std::uint64_t path, bool cut);
  // Stops the process: its progress() does nothing.
  void set_silence(NodeId node, bool silent);
  // Ends the process: its progress() does nothing, for good, and its peers are told.
  void kill(NodeId node);
  // The address refuses connections, as behind a firewall; the node lives on.
  void set_refusing(NodeId node, bool refusing);
  // Nodes that connect from now on watch each other's process, as over Unix sockets. A node's
  // process ends with kill() or with its transport.
  void share_machine();
  // Nodes send from GPU memory from now on: that of an emulated GPU, which is host memory.
  void send_gpu_memory();
  // The node says from now on that it receives nothing that is sent from there.
  void take_no_gpu_memory(NodeId node);

 private:
  std::shared_ptr<FabricState> state_;
};

}  // namespace vmem::rdma
