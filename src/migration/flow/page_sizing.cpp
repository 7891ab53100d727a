#include "migration/flow/page_sizing.hpp"

#include <algorithm>
#include <bit>

namespace vmem::migration {

using pagetable::kGranuleShift;

namespace {

// Pages of a mapped file that host memory can hold, at least.
constexpr std::uint64_t kFilePagesInHost = 16;
// HBM and host memory hold at least this many pages of a size chosen here: some are in transit
// while others are used.
constexpr std::uint64_t kPagesInHbm = 16;
constexpr std::uint64_t kPagesInHost = 8;
// Of regions that may overflow to disks or other nodes. A quarter of HBM is for pages on their way
// (PrefetchPlan), and a network is busy with eight pages or more: two for each channel.
constexpr std::uint64_t kPagesInHbmAboveOthers = 64;
// At least so many pages that blocks share; of those larger than kSharedPageBytes, so many. A copy
// of 32 MiB over PCIe takes three times as long as its calls: larger pages save little, and hold
// more that is not used (docs/decisions/0111).
constexpr std::uint64_t kSharedPagesInHbm = 40, kLargeSharedPagesInHbm = 128;
constexpr std::uint64_t kSharedPageBytes = std::uint64_t{32} << 20;

}  // namespace

std::uint32_t PageSizing::shift_for(const Device& device, std::uint64_t bytes, RegionKind kind) const {
  if (kind == RegionKind::slab) return 0;
  if (kind == RegionKind::shared) return shared_shift(device);
  const bool undeclared = kind == RegionKind::undeclared;
  if (core_.config.page_bytes) return std::uint32_t(std::countr_zero(*core_.config.page_bytes >> kGranuleShift));
  const std::uint64_t most = most_page_bytes(undeclared ? device.config.hbm_bytes : device.hbm.budget_bytes());
  // An undeclared region is used as a whole: take the largest pages that waste at most an eighth,
  // but none larger than those that blocks share, so that frames have one size.
  if (undeclared) {
    for (std::uint32_t shift = core_.config.shares_pages ? shared_shift(device) : kLargestShift; shift > 0; --shift) {
      const std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
      const std::uint64_t wasted = -bytes & (page_bytes - 1);
      if (wasted <= bytes / 8 && page_bytes <= most) return shift;
    }
    return 0;
  }
  // A remap costs about 45 µs for any size (32 MiB: 7 % of its copy, 2 MiB: all of it; from a
  // peer's HBM, seven times as fast, 32 MiB: half), so large regions get large pages. At least
  // eight pages per region, so that a part of it can stay resident.
  const bool overflows = core_.config.spill != nullptr;
  const std::uint64_t largest = overflows ? std::min(most, device.hbm.budget_bytes() / kPagesInHbmAboveOthers) : most;
  std::uint32_t shift = 0;
  for (const std::uint32_t larger : {2u, 4u, kLargestShift}) {
    if (larger == kLargestShift && device.config.lenders.empty()) continue;
    const std::uint64_t page_bytes = pagetable::kGranuleBytes << larger;
    if (bytes / page_bytes >= 8 && page_bytes <= largest) shift = larger;
  }
  return shift;
}

std::uint32_t PageSizing::file_shift_for(const Device& device, std::uint64_t bytes) const {
  std::uint32_t shift = shift_for(device, bytes, RegionKind::declared);
  if (core_.config.page_bytes) return shift;
  const std::uint64_t host = core_.config.backing->usage().budget_bytes;
  while (shift > 0 && (pagetable::kGranuleBytes << shift) > host / kFilePagesInHost) --shift;
  return shift;
}

// Every launch needs all that it names at once, and a page holds more than what is named: so pages
// are a small part of HBM.
std::uint32_t PageSizing::shared_shift(const Device& device) const {
  const auto shift_of = [](std::uint64_t bytes) { return std::uint32_t(std::bit_width(bytes >> kGranuleShift) - 1); };
  if (core_.config.page_bytes) return shift_of(*core_.config.page_bytes);
  const std::uint64_t hbm = device.config.hbm_bytes;
  std::uint64_t bytes = std::min(hbm / kSharedPagesInHbm, most_page_bytes(hbm));
  const bool over_pcie = device.config.lenders.empty();
  if (over_pcie) bytes = std::min(bytes, std::max(kSharedPageBytes, hbm / kLargeSharedPagesInHbm));
  return std::min(shift_of(std::max(bytes, pagetable::kGranuleBytes)), kLargestShift);
}

std::uint64_t PageSizing::shared_page_bytes(int device) const {
  return core_.config.shares_pages ? pagetable::kGranuleBytes << shared_shift(devices_[device]) : 0;
}

std::uint64_t PageSizing::most_page_bytes(std::uint64_t hbm_bytes) const {
  return std::min(hbm_bytes / kPagesInHbm, core_.config.backing->usage().budget_bytes / kPagesInHost);
}

// Repeats until stable: rounding up can make larger pages worthwhile, which round up further.
std::uint64_t PageSizing::bytes_in_pages(int device, std::uint64_t bytes) const {
  for (;;) {
    const std::uint64_t page_bytes = pagetable::kGranuleBytes
                                     << shift_for(devices_[device], bytes, RegionKind::undeclared);
    const std::uint64_t wasted = -bytes & (page_bytes - 1);
    if (wasted == 0) return bytes;
    bytes += wasted;
  }
}

}  // namespace vmem::migration
