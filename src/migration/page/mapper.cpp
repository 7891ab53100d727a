#include "migration/page/mapper.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/memory_location.hpp"

namespace vmem::migration {

Status Mapper::map(PageRef ref, CUmemGenericAllocationHandle handle, Access access) {
  const auto& driver = *core_.config.driver;
  const CUdeviceptr address = core_.address_of(ref);
  VMEM_TRY(driver.check(driver->cuMemMap(address, ref.bytes(), 0, handle, 0), "cuMemMap"));
  ++core_.counters.maps;
  core_.worked = true;
  auto accessible = set_access(ref, access);
  if (accessible) return {};
  // If this fails too, the context is or soon will be lost; report the first failure.
  (void)driver->cuMemUnmap(address, ref.bytes());
  return accessible;
}

Status Mapper::unmap(PageRef ref) {
  const auto& driver = *core_.config.driver;
  VMEM_TRY(driver.check(driver->cuMemUnmap(core_.address_of(ref), ref.bytes()), "cuMemUnmap"));
  core_.note(ref, Happened::unmapped);
  ++core_.counters.unmaps;
  core_.worked = true;
  return {};
}

Status Mapper::set_access(PageRef ref, Access access) {
  const Access allowed = write_protected(*ref.region) ? access : Access::write;
  std::array<CUmemAccessDesc, 32> wanted{};
  std::size_t count = 0;
  const std::uint32_t mask = ref.region->mapping_devices;
  for (std::size_t i = 0; i < core_.config.devices.size(); ++i) {
    if ((mask >> i & 1) == 0) continue;
    wanted[count].location = gpu::on_device(core_.config.devices[i].ordinal);
    wanted[count++].flags =
        allowed == Access::write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  }
  const auto& driver = *core_.config.driver;
  return driver.check(driver->cuMemSetAccess(core_.address_of(ref), ref.bytes(), wanted.data(), count),
                      "cuMemSetAccess");
}

}  // namespace vmem::migration
