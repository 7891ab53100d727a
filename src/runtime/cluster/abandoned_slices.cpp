#include "runtime/cluster/abandoned_slices.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "cluster/directory/region_record.hpp"
#include "cluster/enrollment/slice_desk.hpp"
#include "runtime/cluster/node_list.hpp"
#include "runtime/cluster/registry_client.hpp"

namespace vmem::runtime {
namespace {

using cluster::Slice;
namespace directory = cluster::directory;

struct Region {
  directory::RegionRecord record;
  cluster::Revision modified{};
  std::set<Slice> slices;
};

// Of a region without a participant that is a member nobody has a page, or the addresses.
bool is_alive(const directory::RegionRecord& region, const std::set<NodeId>& members) {
  return std::ranges::any_of(region.participants, [&](const auto& each) { return members.contains(each.node); });
}

// A record that cannot be read may be of a region anywhere.
Result<std::vector<Region>> regions_in(const std::vector<cluster::Record>& records,
                                       const cluster::ClusterParameters& parameters) {
  std::vector<Region> regions;
  const std::uint64_t granules = parameters.slice_bytes / parameters.granule_bytes;
  for (const cluster::Record& each : records) {
    VMEM_ASSIGN(directory::RegionRecord record, directory::parse_region(each.key, each.value));
    Region& region = regions.emplace_back(Region{.record = std::move(record), .modified = each.modified, .slices = {}});
    const std::uint64_t last = (region.record.first_granule + region.record.granules - 1) / granules;
    for (std::uint64_t slice = region.record.first_granule / granules; slice <= last; ++slice)
      region.slices.insert(Slice(slice));
  }
  return regions;
}

// Of nodes that are not members, by slice.
std::map<Slice, NodeId> left_behind(std::vector<cluster::Record> slices, const std::set<NodeId>& members) {
  std::map<Slice, NodeId> left;
  for (const auto& [slice, entry] : cluster::SliceTable::from({std::move(slices)}).taken)
    if (entry.node != NodeId{} && !members.contains(entry.node)) left.emplace(slice, entry.node);
  return left;
}

// Erases the region's record, and its name unless that is a later version's or cannot be read.
// False: somebody has changed one of them meanwhile, and nothing was erased.
Result<bool> end_region(RegistryClient& registry, const Region& region) {
  const std::string key = directory::region_key(region.record.serial), name = directory::name_key(region.record.name);
  cluster::Commit commit{.conditions = {{.key = key, .modified = region.modified}},
                         .edits = {{.key = key, .value = std::nullopt, .lease = {}}}};
  VMEM_ASSIGN(const auto names, registry.read(name));
  for (const cluster::Record& each : names) {
    if (each.key != name) continue;  // a longer one
    const auto named = directory::parse_name(each.key, each.value);
    if (!named || named->serial != region.record.serial) continue;
    commit.conditions.push_back({.key = name, .modified = each.modified});
    commit.edits.push_back({.key = name, .value = std::nullopt, .lease = {}});
  }
  VMEM_ASSIGN(const bool ended, registry.commit(std::move(commit)));
  if (ended)
    VMEM_LOG_INFO(
        "region '{}' (version {}) has ended: no node that had its pages is in the cluster, and its addresses "
        "are needed",
        region.record.name, region.record.version);
  return ended;
}

}  // namespace

// The order of the readings matters: slices, then members, then regions; then those who have become
// members meanwhile, and may have opened some.
Result<std::vector<AbandonedSlice>> clear_abandoned_slices(const RegistryAccess& access,
                                                           const cluster::ClusterParameters& parameters,
                                                           std::uint64_t most_us) {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(access, most_us));
  VMEM_ASSIGN(auto slices, registry->read(std::string(cluster::kSlicesPrefix)));
  VMEM_ASSIGN(const auto nodes, registry->read(std::string(cluster::kNodesPrefix)));
  VMEM_ASSIGN(const auto records, registry->read(std::string(directory::kRegionsPrefix)));
  VMEM_ASSIGN(const auto later, registry->read(std::string(cluster::kNodesPrefix)));
  const std::set<NodeId> members = members_of(nodes);
  std::set<NodeId> ever = members_of(later);
  ever.insert(members.begin(), members.end());
  VMEM_ASSIGN(const std::vector<Region> regions, regions_in(records, parameters));
  std::map<Slice, NodeId> left = left_behind(std::move(slices), members);
  const auto occupy = [&](const Region& region) {
    for (const Slice slice : region.slices) left.erase(slice);
  };
  for (const Region& region : regions)
    if (is_alive(region.record, ever)) occupy(region);
  Status failed;
  for (const Region& region : regions) {
    if (std::ranges::none_of(region.slices, [&](Slice slice) { return left.contains(slice); })) continue;
    const Result<bool> ended = end_region(*registry, region);
    if (!ended) {
      failed = std::unexpected(ended.error());
      VMEM_LOG_WARN("region '{}', whose nodes have left, keeps its addresses: {}", region.record.name,
                    ended.error().message);
    }
    if (!ended || !*ended) occupy(region);
  }
  if (left.empty() && !failed) return std::unexpected(failed.error());
  std::vector<AbandonedSlice> abandoned;
  for (const auto& [slice, from] : left) abandoned.push_back({slice, from});
  return abandoned;
}

}  // namespace vmem::runtime
