// Placement decisions from the topology. Pure; ordinals are the driver's.
//
// A rate is the slower of both directions: for each page that leaves a device another page arrives.
// Rates within 5 % of the best are alike (two measurements of one link differ by as much), and then
// structure decides. If rates are unknown, structure alone decides: the driver's ranks, the number
// of links on the path.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "topology/paths.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// The NUMA node for pinned memory that all of these devices use: the node whose slowest device is
// fastest; among nodes alike the nearest. No value: no NUMA node is known.
std::optional<int> host_node(const Topology& topology, std::span<const int> devices);

struct Peer {
  int device = 0;
  std::optional<double> bytes_per_s;
  bool nvlink = false;  // on all steps
  // copies to the peer slow down copies between the device and its host memory
  bool shares_host_path = false;
};

// Peers whose memory the device can load and store, as alternatives to host memory, best first.
// Among peers alike each device begins with the next ordinal after its own, so that devices spread
// out.
std::vector<Peer> peers(const Topology& topology, int device);
std::vector<int> peers_by_rate(const Topology& topology, int device);

// A peer's memory against that of a NUMA node, for pages of a device.
struct PeerAndHost {
  std::optional<double> peer_bytes_per_s, host_bytes_per_s;
  // False only if both rates are known and the peer's is the lower one.
  bool peer_first() const;
};
PeerAndHost peer_and_host(const Topology& topology, int device, int peer, int host);

struct Place {
  NodeIndex memory;
  std::optional<double> fetch_bytes_per_s, store_bytes_per_s;  // to the device, and from it
  // the slower; no value if either is unknown
  std::optional<double> bytes_per_s() const;
};

// Every memory that can hold pages of this device: its own first, then by rate. If a rate is
// unknown, by kind (peers, host, disks, network) and by rate within each. Excludes unreachable
// peers.
std::vector<Place> places_by_rate(const Topology& topology, int device);

}  // namespace vmem::topology
