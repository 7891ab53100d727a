// The nodes of a cluster, for a process that is no member of it.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "runtime/cluster/member.hpp"
#include "runtime/cluster/registry_client.hpp"

namespace vmem::runtime {

// By id. Errors: TIMEOUT and others, with what the registry's servers said.
Result<std::vector<ClusterNode>> list_nodes(RegistryClient& registry);
// The same over a connection of its own, for at most most_us. Errors, too: those of open_registry.
Result<std::vector<ClusterNode>> list_nodes(const RegistryAccess& access, std::uint64_t most_us);
// The nodes that records below kNodesPrefix are of.
std::set<NodeId> members_of(const std::vector<cluster::Record>& records);

}  // namespace vmem::runtime
