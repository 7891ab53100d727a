// The topology that a program starts with: what `vmem topo` measured, or what the driver says.
#pragma once

#include <string>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// `option` as Options::topology. A file that cannot be used is no error: placement is then by structure. It is logged, as a warning
// where the user named the file or it is damaged. Neither NVML nor hwloc is asked, which takes long for a program's start.
// Errors: DRIVER.
Result<Topology> known_topology(const gpu::Driver& driver, const std::string& option);

}  // namespace vmem::topology
