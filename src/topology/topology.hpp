// The machine as placement sees it: memories, the links between them, and rates. A plain value:
// discovery makes it (discover.hpp), measuring fills in rates (measure.hpp), a file keeps it
// (cache.hpp), and pure functions answer questions about it (paths.hpp, placement.hpp). Unknown
// facts stay unknown and are listed in `unknown`; nothing is assumed instead.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vmem::topology {

enum class NodeKind : std::uint8_t {
  device,         // a GPU and its HBM; number: the CUDA ordinal
  host,           // the memory of a NUMA node; number: the system's
  root,           // the PCIe root of a NUMA node; number: the NUMA node's
  pcie_switch,    // numbered from 0, as are the kinds below
  nvlink_switch,  // one node for all NVSwitches that GPUs reach: one fabric
  disk,
  network,  // a network card
  fabric,   // the network beyond the cards
};
std::string_view kind_name(NodeKind kind);

// Of a node of this graph; vmem::NodeId names machines of a cluster.
struct NodeIndex {
  std::uint32_t value = 0;
  auto operator<=>(const NodeIndex&) const = default;
};

struct Node {
  NodeKind kind = NodeKind::device;
  int number = 0;
  std::string name;         // "NVIDIA H200", "nvme0n1", "eth0", a directory
  std::string address;      // on the PCI bus, "0000:01:00.0"; empty: none, or unknown
  std::uint64_t bytes = 0;  // of memory; 0: none, or unknown
  bool operator==(const Node&) const = default;
};

enum class LinkKind : std::uint8_t { nvlink, pcie, socket, memory, network };
std::string_view kind_name(LinkKind kind);

enum class Origin : std::uint8_t { unknown, nominal, measured };
std::string_view origin_name(Origin origin);

struct Rate {
  double bytes_per_s = 0;  // 0: unknown
  Origin origin = Origin::unknown;
  bool known() const { return origin != Origin::unknown; }
  bool operator==(const Rate&) const = default;
};

// Full duplex, unless `both` limits the sum of the two directions.
struct Link {
  NodeIndex a, b;
  LinkKind kind = LinkKind::pcie;
  Rate forward, backward;  // from a to b, and from b to a
  Rate both;
  int lanes = 0;  // parallel NVLinks, or PCIe lanes; 0: unknown
  bool operator==(const Link&) const = default;
};

// The measured rate of a single copy between two memories on an idle machine.
struct Copy {
  NodeIndex from, to;
  Rate rate;
  bool operator==(const Copy&) const = default;
};

struct PeerAccess {
  bool reachable = false;  // by loads and stores
  int rank = 0;            // the driver's order of preference: lower is faster
  bool operator==(const PeerAccess&) const = default;
};

struct Topology {
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::vector<Copy> copies;                    // at most one for each pair
  std::vector<std::vector<PeerAccess>> peers;  // [i][j]: device i's access to device j's memory
  std::vector<std::string> unknown;            // sentences: what could not be determined, and why
  bool emulated = false;

  bool operator==(const Topology&) const = default;

  const Node& operator[](NodeIndex id) const { return nodes[id.value]; }
  NodeIndex add(Node node);
  std::optional<NodeIndex> find(NodeKind kind, int number) const;
  std::vector<NodeIndex> all(NodeKind kind) const;  // by number
  const Copy* copy(NodeIndex from, NodeIndex to) const;
  void set_copy(NodeIndex from, NodeIndex to, Rate rate);
};

// Memories hold pages. A path begins and ends at a memory, and passes through none.
bool is_memory(NodeKind kind);

// "device 0", "host node 1", "PCIe switch 0", "disk nvme0n1".
std::string describe(const Node& node);

}  // namespace vmem::topology
