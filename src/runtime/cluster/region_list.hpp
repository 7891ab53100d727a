// The published regions of a cluster, for a process that is no member of it.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/directory/region_record.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/cluster/registry_client.hpp"

namespace vmem::runtime {

struct ListedRegion {
  cluster::directory::RegionRecord record;
  std::uint32_t members = 0;  // of the cluster that take part: with 0 nobody has a page
  bool home_is_member = false;
};

// By name, then by version. Errors: TIMEOUT and others, with what the registry's servers said.
Result<std::vector<ListedRegion>> list_regions(RegistryClient& registry);
// The same over a connection of its own, for at most most_us. Errors, too: those of open_registry.
Result<std::vector<ListedRegion>> list_regions(const RegistryAccess& access, std::uint64_t most_us);

}  // namespace vmem::runtime
