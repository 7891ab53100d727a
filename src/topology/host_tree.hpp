// The host side of the machine from hwloc: NUMA nodes, the PCIe tree, disks and network cards.
// hwloc is loaded at run time, without its GPU components: the driver describes GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace vmem::topology {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  auto operator<=>(const PciAddress&) const = default;
  // "0000:01:00.0", or with a domain of eight digits.
  static std::optional<PciAddress> parse(const std::string& text);
  std::string text() const;
};

struct HostTree {
  struct NumaNode {
    int number = 0;
    std::uint64_t bytes = 0;
  };
  struct Pci {
    PciAddress address;
    std::optional<std::size_t> parent;  // index in `pci` of the bridge above; none: a host bridge
    std::optional<int> numa_node;
    bool bridge = false;
  };
  struct Drive {
    std::string name;  // "nvme0n1"
    std::size_t pci = 0;
  };
  struct Card {
    std::string name;  // "eth0"
    std::size_t pci = 0;
    std::optional<double> bytes_per_s;  // the negotiated link speed
  };
  std::vector<NumaNode> numa_nodes;  // by number
  std::vector<Pci> pci;
  std::vector<Drive> drives;
  std::vector<Card> cards;

  std::optional<std::size_t> find(const PciAddress& address) const;
};

// Of this machine, or of the machine in `xml` (a file written by lstopo). Errors: UNSUPPORTED,
// naming what is missing.
Result<HostTree> read_host_tree(const std::string& xml = "");

}  // namespace vmem::topology
