// What there is, from the driver, NVML and hwloc. Only the driver has to be there.
#pragma once

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

struct Sources {
  bool nvml = true;   // NVLinks; where devices meet on PCIe
  bool hwloc = true;  // NUMA nodes, the PCIe tree, disks, network cards; not asked of an emulated machine
};

// Takes no context, measures nothing. Errors: DRIVER.
Result<Topology> discover(const gpu::Driver& driver, const Sources& sources = {});

}  // namespace vmem::topology
