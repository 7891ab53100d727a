// The host side of the machine as hwloc sees it: NUMA nodes, the PCIe tree, disks and network cards. hwloc is loaded at run time
// and kept from looking at GPUs, which is the driver's business.
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
    std::optional<std::size_t> parent;  // the bridge above, an index of `pci`; none: a host bridge
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
    std::optional<double> bytes_per_s;  // as the link was negotiated
  };
  std::vector<NumaNode> numa_nodes;  // by number
  std::vector<Pci> pci;
  std::vector<Drive> drives;
  std::vector<Card> cards;

  std::optional<std::size_t> find(const PciAddress& address) const;
};

// Of this machine, or of the one that `xml` (a file that lstopo wrote) describes. Errors: UNSUPPORTED, saying what is missing.
Result<HostTree> read_host_tree(const std::string& xml = "");

}  // namespace vmem::topology
