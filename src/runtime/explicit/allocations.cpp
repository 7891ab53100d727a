#include "runtime/explicit/allocations.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/memory/addresses.hpp"
#include "runtime/memory/held_blocks.hpp"

namespace vmem::runtime {

using pagetable::Region;

Result<void*> Allocations::allocate(std::size_t bytes, int device, vmem_stream stream) {
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, "0 bytes asked for; the least is 1");
  VMEM_ASSIGN(const int index, devices_.index_of(device));
  if (bytes > space_.bytes()) {
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("{} bytes asked for, the address space has {}; raise --space", bytes, space_.bytes()));
  }
  if (bytes <= Suballocator::kLargestBytes) {
    VMEM_ASSIGN(const std::uintptr_t block, small_.allocate(index, bytes, stream));
    return reinterpret_cast<void*>(block);
  }
  auto region = regions_.allocate(bytes, index, RegionKind::declared);
  // Memory cached for reuse may suffice.
  if (!region && region.error().status == VMEM_ERROR_OUT_OF_MEMORY && freed_.clear() && arena_.trim() && small_.trim())
    region = regions_.allocate(bytes, index, RegionKind::declared);
  if (!region) return std::unexpected(std::move(region).error());
  return reinterpret_cast<void*>(space_.address_of((*region)->first.index));
}

Result<void*> Allocations::map_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes, int device) {
  VMEM_ASSIGN(const int index, devices_.index_of(device));
  VMEM_ASSIGN(auto source, files_.map(path, offset, bytes));
  VMEM_ASSIGN(const Region* const region, regions_.map(std::move(source), index));
  return reinterpret_cast<void*>(base_of(space_, *region));
}

Status Allocations::free(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(space_, address));
  if (region->slab) {
    VMEM_TRY(refuse_held_block(slots_, small_, address));
    return small_.free(address, stream);
  }
  if (region->shares()) {
    return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} was not allocated by vmem_malloc; free it with the "
                                                        "function that belongs to its allocation, such as cuMemFree",
                                                        address));
  }
  const std::uintptr_t base = base_of(space_, *region);
  if (address != base) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is inside the allocation at {:#x}; free takes the address that {} gave", address,
                            base, region->read_only ? "vmem_map_file" : "malloc"));
  }
  return regions_.free(*region, space_.granule_at(address), stream);
}

Status Allocations::free_small(std::uintptr_t address, const StreamId& stream) {
  VMEM_TRY(refuse_held_block(slots_, small_, address));
  return small_.free(address, stream);
}

}  // namespace vmem::runtime
