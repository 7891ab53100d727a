// Whether the nodes of a cluster accept each other: asked before a daemon joins, since the registry
// takes in whoever knows it.
#pragma once

#include <string>

#include "base/status.hpp"
#include "runtime/cluster/registry_client.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::runtime {

// "secret", "certificates", or "user": Unix sockets of one user of one machine. Nodes that differ
// in this never reach each other.
std::string trust_of(const NodeConfig& node);

// Compares that with the cluster's daemons, and connects to some of them. Who cannot be reached, or
// does not say how it does, is no obstacle. Errors: INVALID_OPTION, naming a daemon and what to do;
// those of list_nodes and of make_transport.
Status check_trust(const NodeConfig& own, const RegistryAccess& registry);

}  // namespace vmem::runtime
