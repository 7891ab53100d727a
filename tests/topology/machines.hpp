// Topologies for tests: named ones and random ones.
#pragma once

#include <random>

#include "topology/topology.hpp"

namespace vmem::topology {

constexpr double GBps = 1e9;

Rate measured(double gbps);
// Joins both directions at one rate.
Link join(NodeIndex a, NodeIndex b, LinkKind kind, double gbps);
void allow_all_peers(Topology& topology);

// `nodes` NUMA nodes with a root each, joined by sockets of `socket_gbps`.
Topology host_nodes(int nodes, double socket_gbps);
// Adds a device below a root or a switch.
NodeIndex add_device(Topology& topology, NodeIndex parent, double pcie_gbps);

// Four devices on one NUMA node; NVLinks of 100 (0-1, 2-3), 50 (0-2, 1-3) and none (0-3, 1-2).
Topology uneven_nvlinks();
// Devices 0 and 1 below a switch with an uplink as fast as one device, device 2 on its own; no
// NVLinks.
Topology shared_switch();
// Devices 0 and 1 on NUMA node 0, 2 and 3 on node 1, and a slow path between the nodes.
Topology two_numa_nodes();

// Up to `devices` devices on up to 3 NUMA nodes, with random switches, NVLinks and unknown rates.
Topology random_machine(std::mt19937_64& random, int devices);

}  // namespace vmem::topology
