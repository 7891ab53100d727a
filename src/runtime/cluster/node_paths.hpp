// Connections to the nodes of a cluster, by their ids there. A node that already has a connection
// to this one, whichever made it, gets no second one.
//
// Thread: the node's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/directory/directory_config.hpp"
#include "rdma/node/node.hpp"
#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

class NodePaths final : public rdma::LinkUser {
 public:
  // Who else of this process keeps up connections to the nodes that lend.
  enum class Lenders : std::uint8_t { nobody, the_remote_tier };

  NodePaths(rdma::Node& node, Lenders lenders) : node_(node), lenders_(lenders) {}
  // Closes the connections that it made. Only destruction may follow.
  void close();

  void see(const ClusterView& view);
  // 0: there is none now; one is being made, unless the node has no address.
  rdma::PeerId to(NodeId node);
  // 0: no member that this node knows
  NodeId of(const rdma::Peer& peer) const;
  // Of the connections that are made here.
  std::optional<cluster::directory::NoPath> trouble(NodeId node) const;

  Status up(rdma::LinkId link, const rdma::Connected& connected) override;
  void down(rdma::LinkId link, const rdma::LinkDown& down) override;

 private:
  struct Known {
    NodeIdentity identity;  // on connections
    std::vector<std::string> addresses;
    bool has_others_link = false;
    std::optional<rdma::LinkId> link;
    cluster::directory::NoPath trouble;  // of the last attempt; "": it has not failed
    std::size_t refusals = 0;            // one after the other
  };
  void forget(Known& known);
  bool has_others_link(const ClusterNode& node) const;

  rdma::Node& node_;
  const Lenders lenders_;
  std::map<NodeId, Known> nodes_;
};

}  // namespace vmem::runtime
