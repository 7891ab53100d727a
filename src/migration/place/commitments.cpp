#include "migration/place/commitments.hpp"

#include <algorithm>
#include <numeric>

namespace vmem::migration {
namespace {

// Room in transit that lets a full machine swap pages: in each device's HBM, and in host memory. At
// most 1 / kTransitShare of the memory.
constexpr std::uint64_t kTransitPages = 4;
constexpr std::uint64_t kTransitShare = 4;
constexpr std::size_t kDevicesInSets = 8;

std::uint64_t minus(std::uint64_t from, std::uint64_t bytes) { return from - std::min(from, bytes); }

std::uint64_t transit_bytes(std::uint64_t memory, std::uint64_t page_bytes) {
  return std::min(kTransitPages * page_bytes, memory / kTransitShare);
}

// The most that can be free in a memory without room for the largest page.
std::uint64_t waste_bytes(std::uint64_t memory, const PageSizes& pages) {
  return std::min(memory, pages.largest - pages.smallest + memory % pages.smallest);
}

// Without lent memory, the set of all devices. With it, every set, or if these are too many, each
// device alone and all together.
std::vector<std::uint64_t> sets_to_check(const Memories& memories) {
  const std::size_t count = memories.devices.size();
  const std::uint64_t all = (std::uint64_t{1} << count) - 1;
  if (memories.lent_bytes.empty()) return {all};
  std::vector<std::uint64_t> sets;
  for (std::uint64_t set = 1; count <= kDevicesInSets && set < all; ++set) sets.push_back(set);
  for (std::size_t i = 0; count > kDevicesInSets && i < count; ++i) sets.push_back(std::uint64_t{1} << i);
  sets.push_back(all);
  return sets;
}

std::uint64_t overflow_of(const CommittedDevice& device, const PageSizes& pages) {
  return minus(device.committed_bytes, usable_hbm_bytes(device.hbm_bytes, pages));
}

std::uint64_t lent_to(const Memories& memories, std::uint64_t lenders, const PageSizes& pages) {
  std::uint64_t lent = 0;
  for (std::size_t i = 0; i < memories.lent_bytes.size(); ++i) {
    const std::uint64_t bytes = memories.lent_bytes[i];
    if ((lenders >> i & 1) != 0) lent += bytes - waste_bytes(bytes, pages);
  }
  return lent;
}

}  // namespace

std::uint64_t usable_hbm_bytes(std::uint64_t hbm_bytes, const PageSizes& pages) {
  return hbm_bytes - std::max(transit_bytes(hbm_bytes, pages.wanted), waste_bytes(hbm_bytes, pages));
}

// A page below can be read back if some memory has room for it: then pages of other memories move
// there until host memory has room. Memories without room have at most their waste free, so one
// page more than the total waste suffices.
std::uint64_t usable_host_and_below_bytes(const Memories& memories, const PageSizes& pages) {
  const std::uint64_t host = memories.host_bytes;
  const std::uint64_t transit = transit_bytes(host, std::max(pages.wanted, pages.in_files));
  std::uint64_t below = 0, wasted = waste_bytes(host, pages);
  if (host >= pages.largest) {  // pages pass through host memory
    for (const std::uint64_t bytes : memories.below) {
      below += bytes;
      wasted += waste_bytes(bytes, pages);
    }
  }
  if (below != 0) wasted += pages.smallest;
  return minus(host + below, std::max(transit, wasted));
}

namespace {

// Of the set of devices.
Shortfall overflow_of_set(const Memories& memories, std::uint64_t set, const PageSizes& pages) {
  Shortfall sum;
  std::uint64_t lenders = 0;
  for (std::size_t i = 0; i < memories.devices.size(); ++i) {
    if ((set >> i & 1) == 0) continue;
    sum.overflow += overflow_of(memories.devices[i], pages);
    lenders |= memories.devices[i].lenders;
  }
  sum.lent = lent_to(memories, lenders, pages);
  return sum;
}

}  // namespace

std::optional<Shortfall> shortfall(const Memories& memories, const PageSizes& pages) {
  const std::uint64_t host_and_below = usable_host_and_below_bytes(memories, pages);
  for (const std::uint64_t set : sets_to_check(memories)) {
    Shortfall sum = overflow_of_set(memories, set, pages);
    sum.host_and_below = host_and_below;
    if (minus(sum.overflow, sum.lent) > host_and_below) return sum;
  }
  return std::nullopt;
}

std::uint64_t needed_below(const Memories& memories, const PageSizes& pages) {
  std::uint64_t overflow = 0;
  for (const std::uint64_t set : sets_to_check(memories)) {
    const Shortfall sum = overflow_of_set(memories, set, pages);
    overflow = std::max(overflow, minus(sum.overflow, sum.lent));
  }
  Memories without = memories;
  without.below.clear();
  if (overflow <= usable_host_and_below_bytes(without, pages)) return 0;
  const std::uint64_t below = std::accumulate(memories.below.begin(), memories.below.end(), std::uint64_t{0});
  const std::uint64_t margin = kTransitPages * pages.largest;
  return minus(below + overflow + margin, usable_host_and_below_bytes(memories, pages));
}

Capacity capacity(const Memories& memories, std::size_t device, const PageSizes& pages) {
  const CommittedDevice& asked = memories.devices[device];
  const std::uint64_t backed = usable_host_and_below_bytes(memories, pages) + lent_to(memories, asked.lenders, pages);
  std::uint64_t overflow = 0;
  for (const CommittedDevice& each : memories.devices) overflow += overflow_of(each, pages);
  const std::uint64_t hbm = usable_hbm_bytes(asked.hbm_bytes, pages);
  return {.total_bytes = hbm + backed, .free_bytes = minus(hbm, asked.committed_bytes) + minus(backed, overflow)};
}

}  // namespace vmem::migration
