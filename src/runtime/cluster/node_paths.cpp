#include "runtime/cluster/node_paths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace vmem::runtime {

void NodePaths::close() {
  for (auto& [id, known] : nodes_) forget(known);
  nodes_.clear();
}

void NodePaths::forget(Known& known) {
  if (known.link) node_.links().remove(*std::exchange(known.link, std::nullopt));
}

void NodePaths::see(const ClusterView& view) {
  std::map<NodeId, Known> now;
  for (const ClusterNode& node : view.nodes) {
    const cluster::NodeRecord& record = node.record;
    Known known{.identity = {NodeId{record.transport}, record.incarnation},
                .addresses = record.addresses,
                .has_others_link = has_others_link(node),
                .link = {},
                .trouble = {}};
    if (const auto before = nodes_.find(node.id); before != nodes_.end()) {
      const Known& was = before->second;
      if (was.identity == known.identity && was.addresses == known.addresses && !known.has_others_link) {
        known.link = std::exchange(before->second.link, std::nullopt);
        known.trouble = was.trouble;
        known.refusals = was.refusals;
      }
    }
    now.emplace(node.id, std::move(known));
  }
  for (auto& [id, known] : nodes_) forget(known);
  nodes_ = std::move(now);
}

// The remote tier leaves a lender that drains once nothing of its own is there.
bool NodePaths::has_others_link(const ClusterNode& node) const {
  const cluster::NodeRecord::Lends& lends = node.record.lends;
  return lenders_ == Lenders::the_remote_tier && lends.pages() != 0 && !node.drain;
}

rdma::PeerId NodePaths::to(NodeId node) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return {};
  Known& known = found->second;
  if (const rdma::Peer* const peer = node_.peers().find(known.identity)) return peer->id;
  if (!known.link && !known.addresses.empty() && !known.has_others_link)
    known.link = node_.links().add(known.addresses, *this);
  return {};
}

NodeId NodePaths::of(const rdma::Peer& peer) const {
  const auto found = std::ranges::find_if(nodes_, [&](const auto& node) { return node.second.identity == peer.node; });
  return found == nodes_.end() ? NodeId{} : found->first;
}

std::optional<cluster::directory::NoPath> NodePaths::trouble(NodeId node) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.trouble.why.empty()) return std::nullopt;
  if (node_.peers().find(found->second.identity) != nullptr) return std::nullopt;
  return found->second.trouble;
}

// One address may lead to another node than the others, so that each of them has to refuse.
void NodePaths::down(rdma::LinkId link, const rdma::LinkDown& down) {
  for (auto& [id, known] : nodes_) {
    if (known.link != link) continue;
    known.refusals = down.reason == rdma::Reason::refused ? known.refusals + 1 : 0;
    known.trouble = {
        .why = down.why, .refused = known.refusals >= known.addresses.size(), .at_us = node_.clock().now_us()};
  }
}

Status NodePaths::up(rdma::LinkId link, const rdma::Connected& connected) {
  for (auto& [id, known] : nodes_) {
    if (known.link != link) continue;
    known.trouble = {};
    known.refusals = 0;
    if (known.identity == connected.node) return {};
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("another node than node {} of the cluster answers there; has its address been given to "
                            "two nodes?",
                            static_cast<std::uint64_t>(id)));
  }
  return fail(VMEM_ERROR_UNSUPPORTED, "the node is no member of the cluster any more");
}

}  // namespace vmem::runtime
