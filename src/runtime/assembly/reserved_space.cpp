#include "runtime/assembly/reserved_space.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::runtime {

using Own = pagetable::AddressSpace::Own;

Result<std::unique_ptr<ReservedSpace>> ReservedSpace::reserve(const std::shared_ptr<const gpu::Driver>& driver,
                                                              const Options& options) {
  std::unique_ptr<ReservedSpace> reserved(new ReservedSpace(driver));
  const std::uint64_t align = std::uint64_t{256} << 20;
  const CUresult result = (*driver)->cuMemAddressReserve(&reserved->base_, options.space_bytes, align, options.base, 0);
  if (auto checked = driver->check(result, "cuMemAddressReserve"); !checked) {
    if (checked.error().status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(std::move(checked).error());
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("cannot reserve {} of addresses: {}; lower --space, or choose another --base",
                            format_bytes(options.space_bytes), checked.error().message),
                result);
  }
  reserved->bytes_ = options.space_bytes;
  const bool joint = !options.cluster.empty();
  if (joint && reserved->base_ != options.base) {
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("the cluster's address space of {} begins at {:#x} on every node, and something else is "
                            "there in this process: choose another --base and --space, the same on all nodes",
                            format_bytes(options.space_bytes), options.base));
  }
  if (reserved->base_ != options.base) {
    VMEM_LOG_INFO("the address space is at {:#x}, not at {:#x}: something else is there", reserved->base_,
                  options.base);
  }
  VMEM_ASSIGN(reserved->space_,
              pagetable::AddressSpace::create(reserved->base_, reserved->bytes_, joint ? Own::nothing : Own::all));
  return reserved;
}

ReservedSpace::~ReservedSpace() {
  if (bytes_ != 0) (void)(*driver_)->cuMemAddressFree(base_, bytes_);
}

void ReservedSpace::unmap_pages() {
  for (pagetable::RegionId id{1}; pagetable::Region* region = space_->find(id); ++id.value) {
    for (std::uint32_t i = 0; region->pages && i < region->page_count; ++i) {
      if (region->pages[i].mapped == pagetable::Mapped::nothing) continue;
      (void)(*driver_)->cuMemUnmap(space_->address_of(region->granule_of(i)), region->page_bytes());
    }
  }
}

}  // namespace vmem::runtime
