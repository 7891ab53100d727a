#include "runtime/memory/addresses.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"

namespace vmem::runtime {

using pagetable::PageState;
using pagetable::Region;
using pagetable::RegionState;

namespace {

std::unexpected<Error> no_live_allocation(std::uintptr_t address) {
  return fail(VMEM_ERROR_INVALID_POINTER,
              fmt::format("{:#x} is in no live allocation: it was freed, or never allocated", address));
}

}  // namespace

Result<Region*> live_region(const pagetable::AddressSpace& space, std::uintptr_t address) {
  if (!space.contains(address)) {
    return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} is not vmem memory, which lies from {:#x} to {:#x}",
                                                        address, space.base(), space.base() + space.bytes()));
  }
  Region* const region = space.region_at(space.granule_at(address));
  if (region == nullptr || region->state.load(std::memory_order_seq_cst) != RegionState::live)
    return no_live_allocation(address);
  return region;
}

// The allocation of the region at the address. Nothing: no live block is there.
std::optional<AddressResolver::Block> AddressResolver::block_at(const Region& region, std::uintptr_t address) const {
  if (const auto* const sharing = region.extent.sharing.load(std::memory_order_relaxed); sharing != nullptr) {
    const pagetable::Span block = sharing->block_at(space_.granule_at(address));
    if (block.empty()) return std::nullopt;
    return Block{space_.address_of(block.first()), std::uint64_t{block.count()} << pagetable::kGranuleShift};
  }
  if (!region.slab) return Block{base_of(space_, region), region.bytes};
  const auto small = small_.find(address);
  if (!small) return std::nullopt;
  return Block{small->base, small->bytes};
}

Result<PageRun> AddressResolver::locate(const void* pointer, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(space_, address));
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a range of 0 bytes at {:#x}", address));
  const auto block = block_at(*region, address);
  if (!block) return no_live_allocation(address);
  const auto [base, size] = *block;
  const std::uint64_t offset = address - base;
  if (address < base) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is before the mapping of {} bytes at {:#x}", address, size, base));
  }
  if (offset >= size) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is past the end of the allocation of {} bytes at {:#x}", address, size, base));
  }
  if (bytes > size - offset) {
    return fail(VMEM_ERROR_INVALID_RANGE,
                fmt::format("{} bytes at {:#x} leave the allocation of {} bytes at {:#x}", bytes, address, size, base));
  }
  const std::uint32_t first = region->page_at(space_.granule_at(address));
  const std::uint32_t last = region->page_at(space_.granule_at(address + bytes - 1));
  return PageRun{region, first, last - first + 1};
}

std::optional<Allocation> AddressResolver::allocation_at(std::uintptr_t address) const {
  const auto region = live_region(space_, address);
  if (!region || (*region)->dead.load()) return std::nullopt;
  const auto block = block_at(**region, address);
  if (!block) return std::nullopt;
  return Allocation{block->base, block->bytes, devices_[std::size_t((*region)->device)].ordinal};
}

std::vector<std::uintptr_t> AddressResolver::allocations_among(std::span<const std::uintptr_t> words) const {
  std::vector<std::uintptr_t> bases;
  for (const std::uintptr_t word : words) {
    if (const auto found = space_.contains(word) ? allocation_at(word) : std::nullopt) bases.push_back(found->base);
  }
  std::ranges::sort(bases);
  const auto repeated = std::ranges::unique(bases);
  bases.erase(repeated.begin(), repeated.end());
  return bases;
}

Result<PageRun> AddressResolver::pages_of(std::uintptr_t address) const {
  VMEM_ASSIGN(Region* const region, live_region(space_, address));
  const auto block = region->has_strangers() ? block_at(*region, address) : std::nullopt;
  if (!block && region->shares()) return no_live_allocation(address);
  if (!block) return PageRun{region, 0, region->page_count};
  const std::uint32_t first = region->page_at(space_.granule_at(block->base));
  const std::uint32_t last = region->page_at(space_.granule_at(block->base + block->bytes - 1));
  return PageRun{region, first, last - first + 1};
}

bool AddressResolver::is_small(std::uintptr_t address) const {
  const Region* const region = space_.region_at(space_.granule_at(address));
  return region != nullptr && region->slab;
}

bool AddressResolver::in_place(std::uintptr_t address) const {
  const std::uint32_t granule = space_.granule_at(address);
  const Region* const region = space_.region_at(granule);
  if (region == nullptr) return false;
  const pagetable::Page& page = region->pages[region->page_at(granule)];
  return PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kInPlace);
}

std::string AddressResolver::describe(std::uintptr_t address) const {
  const std::uint32_t granule = space_.granule_at(address);
  const Region* const region = space_.region_at(granule);
  if (region == nullptr || region->state.load() != RegionState::live) return "no allocation of vmem lies there";
  const auto found = block_at(*region, address);
  const Block block = found.value_or(Block{base_of(space_, *region), region->bytes});
  if (region->shares() && !found) return "no allocation of vmem lies there: what did was freed";
  const PageState state(region->pages[region->page_at(granule)].state.load());
  const char* place = state.access() == pagetable::Access::none ? "is not accessible now"
                      : state.has(PageState::kInPlace)          ? "is accessible, in host memory or another GPU's"
                                                                : "is accessible, in HBM";
  return fmt::format("in the allocation of {} bytes at {:#x}{}, offset {}; its page of {} {}", block.bytes, block.base,
                     region->dead.load() ? " (freed)" : "", address - block.base, format_bytes(region->page_bytes()),
                     place);
}

}  // namespace vmem::runtime
