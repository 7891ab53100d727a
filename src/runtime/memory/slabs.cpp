#include "runtime/memory/slabs.hpp"

#include <algorithm>
#include <utility>

#include "runtime/memory/addresses.hpp"

namespace vmem::runtime {

using pagetable::Region;

Result<std::uintptr_t> Slabs::allocate_slabs(int device, std::size_t bytes) {
  auto region = regions_.allocate(bytes, device, RegionKind::slab);
  if (!region && region.error().status == VMEM_ERROR_OUT_OF_MEMORY && freed_.clear() && arena_.trim())
    region = regions_.allocate(bytes, device, RegionKind::slab);
  if (!region) return std::unexpected(std::move(region).error());
  return space_.address_of((*region)->first.index);
}

// Programs free and reallocate blocks within one step, so some slabs stay. Only a small part of
// HBM: spare slabs serve nothing else.
std::size_t Slabs::spare_bytes(int device) const {
  constexpr std::uint64_t kLeast = 16 << 20, kMost = 256 << 20;
  return std::clamp(mover_.hbm_bytes(device) / 64, kLeast, kMost);
}

// No stream is named, since the blocks' own marks are complete.
Status Slabs::free_slabs(std::uintptr_t address) {
  if (ended_) return {};
  VMEM_ASSIGN(Region* const region, live_region(space_, address));
  VMEM_ASSIGN(const auto drained, gate_.drain());
  return regions_.free_unused(*region, space_.granule_at(address));
}

}  // namespace vmem::runtime
