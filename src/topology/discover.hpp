// Discovers the topology from the driver, NVML and hwloc. Only the driver is required.
#pragma once

#include <string>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

struct Sources {
  bool nvml = true;  // NVLinks; where devices meet on PCIe
  // NUMA nodes, the PCIe tree, disks, network cards; unused on an emulated machine
  bool hwloc = true;
};

// Takes no context, measures nothing. Errors: DRIVER.
Result<Topology> discover(const gpu::Driver& driver, const Sources& sources = {});
// The same for a machine without a driver or a GPU: NUMA nodes, disks and network cards. `why` says
// in `unknown` why there is no GPU.
Topology discover_host(const std::string& why);

}  // namespace vmem::topology
