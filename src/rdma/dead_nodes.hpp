// Which nodes are dead for certain, because somebody saw their process end: this node, by a descriptor of the process
// (pidfd), or another one that did and says so. A connection that breaks proves nothing: the node may come back.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/node.hpp"

namespace vmem::rdma {

using ProcessRef = std::shared_ptr<const FileDescriptor>;  // readable once the process has ended; null: not known

class DeadNodes {
 public:
  // From now on, until it is forgotten or found.
  void watch(NodeIdentity node, ProcessRef process);
  void forget(NodeId node);
  // Those that have ended since they were watched; they are watched no longer.
  std::vector<NodeIdentity> find();
  // Somebody says that it ended. What it sent before may still arrive.
  void reported(NodeIdentity node);
  bool ended(NodeIdentity node) const;

 private:
  static constexpr std::size_t kMostReported = 4096;  // the eldest is forgotten then
  std::map<NodeId, std::pair<Incarnation, ProcessRef>> watched_;
  std::map<NodeId, Incarnation> reported_;
  std::deque<NodeId> eldest_;  // of reported_, in the order of the reports
};

}  // namespace vmem::rdma
