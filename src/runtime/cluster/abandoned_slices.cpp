#include "runtime/cluster/abandoned_slices.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "base/log.hpp"
#include "cluster/directory/region_record.hpp"
#include "cluster/enrollment/slice_desk.hpp"
#include "runtime/cluster/node_list.hpp"
#include "runtime/cluster/registry_client.hpp"

namespace vmem::runtime {
namespace {

using cluster::Slice;
namespace directory = cluster::directory;

// Of a region without a participant that is a member nobody has a page, or the addresses. It may
// still have a home.
bool is_alive(const directory::RegionRecord& region, const std::set<NodeId>& members) {
  return std::ranges::any_of(region.participants, [&](const auto& each) { return members.contains(each.node); });
}

// A record that cannot be read may be of a region anywhere.
Result<std::set<Slice>> slices_of_regions(const std::vector<cluster::Record>& records, const std::set<NodeId>& members,
                                          const cluster::ClusterParameters& parameters) {
  std::set<Slice> slices;
  const std::uint64_t granules = parameters.slice_bytes / parameters.granule_bytes;
  for (const cluster::Record& record : records) {
    VMEM_ASSIGN(const directory::RegionRecord region, directory::parse_region(record.key, record.value));
    if (!is_alive(region, members)) continue;
    const std::uint64_t last = (region.first_granule + region.granules - 1) / granules;
    for (std::uint64_t slice = region.first_granule / granules; slice <= last; ++slice) slices.insert(Slice(slice));
  }
  return slices;
}

}  // namespace

// The order of the readings matters: slices, then members, then regions; then those who have become
// members meanwhile, and may have opened some.
Result<std::vector<AbandonedSlice>> abandoned_slices(const RegistryAccess& access,
                                                     const cluster::ClusterParameters& parameters,
                                                     std::uint64_t most_us) {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(access, most_us));
  VMEM_ASSIGN(auto slices, registry->read(std::string(cluster::kSlicesPrefix)));
  VMEM_ASSIGN(const auto nodes, registry->read(std::string(cluster::kNodesPrefix)));
  VMEM_ASSIGN(const auto regions, registry->read(std::string(directory::kRegionsPrefix)));
  VMEM_ASSIGN(const auto later, registry->read(std::string(cluster::kNodesPrefix)));
  const std::set<NodeId> members = members_of(nodes);
  std::set<NodeId> ever = members_of(later);
  ever.insert(members.begin(), members.end());
  VMEM_ASSIGN(const std::set<Slice> lived_in, slices_of_regions(regions, ever, parameters));
  std::vector<AbandonedSlice> abandoned;
  for (const auto& [slice, entry] : cluster::SliceTable::from({std::move(slices)}).taken)
    if (entry.node != NodeId{} && !members.contains(entry.node) && !lived_in.contains(slice))
      abandoned.push_back({slice, entry.node});
  return abandoned;
}

}  // namespace vmem::runtime
