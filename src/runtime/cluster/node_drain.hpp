// Asks a node of a cluster to leave, to stay after all, or to lend less HBM, from a process that is
// no member.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cluster/node_list.hpp"

namespace vmem::runtime {

// Whether the other nodes can take what this one holds. Programs decide where their pages go, each
// within its own leases, so this is a bound. Errors: INVALID_OPTION, with the figures.
Status check_room_for_drain(const std::vector<ClusterNode>& nodes, NodeId node);

// For pages and for copies of published regions, on the nodes that do not drain.
struct RoomElsewhere {
  std::uint64_t pages = 0, copies = 0;  // bytes
};
RoomElsewhere room_elsewhere(const std::vector<ClusterNode>& nodes, NodeId node);

enum class RoomCheck : std::uint8_t { required, skipped };
// Puts the order, or replaces an earlier one. Errors: INVALID_OPTION for a node that is not listed
// or lends nothing, and of check_room_for_drain; those of list_nodes.
Status drain_node(RegistryClient& registry, NodeId node, const cluster::DrainOrder& order, RoomCheck check);
// Errors: INVALID_OPTION for a node that is not listed, or is not asked to leave.
Status undrain_node(RegistryClient& registry, NodeId node);

// Has the node lend at most `bytes` of HBM from now on; all that its record says: no limit. Errors:
// INVALID_OPTION for a node that is not listed or lends less, or if there is no room for the pages
// that would have to leave; those of list_nodes.
Status limit_hbm(RegistryClient& registry, NodeId node, std::uint64_t bytes, RoomCheck check);

}  // namespace vmem::runtime
