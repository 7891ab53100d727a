// Asks a node of a cluster to leave, to stay after all, or to lend less HBM, from a process that is
// no member.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cluster/node_list.hpp"
#include "runtime/cluster/region_list.hpp"

namespace vmem::runtime {

// Whether the other nodes can take what this one holds. Programs decide where their pages go, each
// within its own leases, so this is a bound. Errors: INVALID_OPTION, with the figures.
Status check_room_for_drain(const std::vector<ClusterNode>& nodes, const std::vector<ListedRegion>& regions,
                            NodeId node);

// For pages and for copies of published regions, on the nodes that do not drain.
struct RoomElsewhere {
  std::uint64_t pages = 0, copies = 0;  // bytes
};
RoomElsewhere room_elsewhere(const std::vector<ClusterNode>& nodes, NodeId node);

// A region that a node may have copies of, and that fewer other daemons can have copies of than are
// wanted: each copy of a page is on a daemon of its own.
struct CopiesWithoutRoom {
  std::string region;
  std::uint32_t wanted = 0, takers = 0;  // copies; other daemons that have one, or room for it
  std::string words() const;
};
// The first such region that the node takes part in: what it says that it holds may be about a
// second old. With `forced`, one copy elsewhere will do.
std::optional<CopiesWithoutRoom> copies_without_room(const std::vector<ClusterNode>& nodes,
                                                     const std::vector<ListedRegion>& regions, const ClusterNode& node,
                                                     bool forced);

enum class RoomCheck : std::uint8_t { required, skipped };
// Called where the figures of the nodes leave no room: they may be about a second old. Returns when
// it is time to look again; false: there was time enough. None: the first look decides. Nodes that
// have all said anew what they hold are not waited for.
using AwaitFigures = std::function<bool()>;

// Puts the order, or replaces an earlier one. Of orders at the same time each counts those before
// it. Errors: INVALID_OPTION for a node that is not listed or lends nothing, and of
// check_room_for_drain; those of list_nodes.
Status drain_node(RegistryClient& registry, NodeId node, const cluster::DrainOrder& order, RoomCheck check,
                  const AwaitFigures& await = {});
// Errors: INVALID_OPTION for a node that is not listed, or is not asked to leave.
Status undrain_node(RegistryClient& registry, NodeId node);

// Has the node lend at most `bytes` of HBM from now on; all that its record says: no limit. Returns
// whether that is less than it lends or takes at present. Errors: INVALID_OPTION for a node that is
// not listed or lends less, or if there is no room for the pages that would have to leave; those of
// list_nodes.
Result<bool> limit_hbm(RegistryClient& registry, NodeId node, std::uint64_t bytes, RoomCheck check,
                       const AwaitFigures& await = {});

}  // namespace vmem::runtime
