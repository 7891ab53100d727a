// Nodes whose process is known to have ended: this node watched a pidfd of the process, or another
// node did and reported it. A broken connection proves nothing: the node may come back.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class DeadNodes {
 public:
  // Watches until forget(), or until find() reports the node.
  void watch(NodeIdentity node, ProcessRef process);
  void forget(NodeId node);
  // Returns the nodes that have ended since watch(), and stops watching them.
  std::vector<NodeIdentity> find();
  // Another node reports this end. Earlier messages of the ended node may still arrive.
  void reported(NodeIdentity node);
  bool ended(NodeIdentity node) const;

 private:
  static constexpr std::size_t kMostReported = 4096;  // the oldest is forgotten beyond that
  std::map<NodeId, std::pair<Incarnation, ProcessRef>> watched_;
  std::map<NodeId, Incarnation> reported_;
  std::deque<NodeId> eldest_;  // keys of reported_, in report order
};

}  // namespace vmem::rdma
