// From what the sources say to the topology. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/nvml.hpp"
#include "topology/host_tree.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

struct DeviceFacts {
  std::string name;
  std::string pci_bus_id;  // empty: not known
  std::uint64_t bytes = 0;
  std::optional<int> numa_node;
  std::vector<gpu::NvLink> nvlinks;     // those that NVML lists
  std::optional<gpu::Nvml::Pcie> pcie;  // at its best
};

// Of one device, about another.
struct PairFacts {
  PeerAccess access;
  bool native_atomics = false;              // which peers have over NVLink only
  std::optional<bool> nvlink;               // as NVML says
  std::optional<gpu::PcieMeeting> meeting;  // as NVML says
};

struct Facts {
  std::vector<DeviceFacts> devices;           // by ordinal
  std::vector<std::vector<PairFacts>> pairs;  // by ordinals
  bool nvml = false;
  std::optional<HostTree> host;
  std::vector<std::string> unknown;
  bool emulated = false;
};

Topology assemble(const Facts& facts);

}  // namespace vmem::topology
