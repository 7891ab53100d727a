// The topology at program start: measured by `vmem topo`, or reported by the driver.
#pragma once

#include <string>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// `option` as Options::topology. An unusable file is no error: placement then uses structure alone.
// The failure is logged, as a warning if the user named the file or it is damaged. NVML and hwloc
// are not queried: they would slow the program's start. Errors: DRIVER.
Result<Topology> known_topology(const gpu::Driver& driver, const std::string& option);

}  // namespace vmem::topology
