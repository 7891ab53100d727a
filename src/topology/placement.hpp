// What placement asks of the topology. Pure; ordinals are the driver's.
//
// Rates are of both ways at once, the slower one: for every page that leaves a device another one comes. Rates within 5 % of
// the best are alike (two measurements of one link differ by as much), and then what is structural decides. Where rates are not
// known, structure alone does: the driver's ranks, the number of links on the way.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "topology/paths.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// The NUMA node for pinned memory that all of these devices use: the one that is best for the device it is worst for; of nodes
// alike the nearest. No value: no NUMA node is known.
std::optional<int> host_node(const Topology& topology, std::span<const int> devices);

struct Peer {
  int device = 0;
  std::optional<double> bytes_per_s;
  bool nvlink = false;            // all the way
  bool shares_host_path = false;  // copies to and from it slow down those between the device and its host memory
};

// Where a device's pages may go instead of host memory: the devices whose memory it can load and store, the best first. Among
// peers alike each device begins with the next ordinal after its own, so that not all choose the same one.
std::vector<Peer> peers(const Topology& topology, int device);
std::vector<int> peers_by_rate(const Topology& topology, int device);

struct Place {
  NodeId memory;
  std::optional<double> fetch_bytes_per_s, store_bytes_per_s;  // to the device, and from it
  std::optional<double> bytes_per_s() const;                   // the slower; no value if either is unknown
};

// Every memory that holds pages of this device, its own first, then by rate. If a rate is unknown, by kind (peers, host, disks,
// network) and by rate within each. Peers out of the device's reach are not in it.
std::vector<Place> places_by_rate(const Topology& topology, int device);

// One device's overflow, and the memories that have room for it.
struct Overflow {
  int device = 0;
  std::vector<NodeId> places;
};

struct Assignment {
  std::vector<std::optional<NodeId>> places;  // of each overflow; none: no place of it is joined to the device
  double slowest_bytes_per_s = 0;             // infinite where no rate is known
  double sum_bytes_per_s = 0;
  bool exact =
      true;  // nothing better exists; false: the search was given up, and this is the best of what was looked at
};

// Where the overflows of several devices go that run at the same time, sharing switches, sockets and links: the slowest device as
// fast as can be, and then all together.
Assignment choose_places(const Topology& topology, std::span<const Overflow> overflows);

}  // namespace vmem::topology
