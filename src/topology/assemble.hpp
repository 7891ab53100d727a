// Builds the topology from the sources' facts. Pure.
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
  std::string pci_bus_id;  // empty: unknown
  std::uint64_t bytes = 0;
  std::optional<int> numa_node;
  std::vector<gpu::NvLink> nvlinks;     // the links that NVML lists
  std::optional<gpu::Nvml::Pcie> pcie;  // maximum generation and lanes
};

// Facts about a pair of devices, as seen from the first.
struct PairFacts {
  PeerAccess access;
  bool native_atomics = false;              // peers have native atomics over NVLink only
  std::optional<bool> nvlink;               // from NVML
  std::optional<gpu::PcieMeeting> meeting;  // from NVML
};

struct Facts {
  std::vector<DeviceFacts> devices;           // by ordinal
  std::vector<std::vector<PairFacts>> pairs;  // [ordinal][ordinal]
  bool nvml = false;
  std::optional<HostTree> host;
  std::vector<std::string> unknown;
  bool emulated = false;
};

Topology assemble(const Facts& facts);

}  // namespace vmem::topology
