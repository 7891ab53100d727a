// The nodes of a cluster, for a process that is no member of it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

// By id. Waits for the registry for at most most_us. Errors: those of open_registry; TIMEOUT and
// others, with what the registry's servers said.
Result<std::vector<ClusterNode>> list_nodes(const RegistryAccess& access, std::uint64_t most_us);

}  // namespace vmem::runtime
