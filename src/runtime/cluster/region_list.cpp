#include "runtime/cluster/region_list.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "base/log.hpp"
#include "runtime/cluster/node_list.hpp"

namespace vmem::runtime {

Result<std::vector<ListedRegion>> list_regions(RegistryClient& registry) {
  using namespace cluster::directory;  // NOLINT(google-build-using-namespace): its records
  VMEM_ASSIGN(const auto regions, registry.read(std::string(kRegionsPrefix)));
  VMEM_ASSIGN(const auto nodes, registry.read(std::string(cluster::kNodesPrefix)));
  const std::set<NodeId> members = members_of(nodes);
  std::vector<ListedRegion> listed;
  for (const cluster::Record& each : regions) {
    auto record = parse_region(each.key, each.value);
    if (!record) {
      VMEM_LOG_WARN("the registry's record {} is not a region's: {}", each.key, record.error().message);
      continue;
    }
    ListedRegion region{.record = *std::move(record)};
    region.home_is_member = members.contains(region.record.home);
    std::set<NodeId> part;
    for (const auto& participant : region.record.participants)
      if (members.contains(participant.node)) part.insert(participant.node);
    region.members = std::uint32_t(part.size());
    listed.push_back(std::move(region));
  }
  std::ranges::sort(listed, {}, [](const ListedRegion& region) {
    return std::tie(region.record.name, region.record.version, region.record.serial);
  });
  return listed;
}

Result<std::vector<ListedRegion>> list_regions(const RegistryAccess& access, std::uint64_t most_us) {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(access, most_us));
  return list_regions(*registry);
}

}  // namespace vmem::runtime
