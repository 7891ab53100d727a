#include "gpu/device_info.hpp"

#include <fmt/format.h>

#include <cstring>

#include "gpu/handles.hpp"

namespace vmem::gpu {
namespace {

Result<int> attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute"));
  return value;
}

// For attributes unknown to older drivers. An error counts as false.
bool ability(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  const auto value = attribute(driver, device, which);
  return value && *value != 0;
}

Result<std::size_t> granularity(const Driver& driver, const CUmemAllocationProp& properties) {
  std::size_t bytes = 0;
  VMEM_TRY(
      driver.check(driver->cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                   "cuMemGetAllocationGranularity"));
  return bytes;
}

Status query_identity(const Driver& driver, CUdevice device, DeviceInfo& info) {
  char name[256] = {};
  VMEM_TRY(driver.check(driver->cuDeviceGetName(name, sizeof name - 1, device), "cuDeviceGetName"));
  info.name = name;
  CUuuid uuid{};
  VMEM_TRY(driver.check(driver->cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  std::memcpy(info.uuid.data(), uuid.bytes, info.uuid.size());
  char bus_id[32] = {};
  if (driver->cuDeviceGetPCIBusId && driver->cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device) == CUDA_SUCCESS)
    info.pci_bus_id = bus_id;
  return {};
}

Status query_memory(const Driver& driver, CUdevice device, DeviceInfo& info) {
  VMEM_TRY(driver.check(driver->cuDeviceTotalMem(&info.memory_bytes, device), "cuDeviceTotalMem"));
  VMEM_ASSIGN(info.multiprocessors, attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  info.vmm = ability(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  info.host_vmm =
      info.vmm && ability(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  info.posix_fd = ability(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  // -1 on systems without NUMA.
  const auto node = attribute(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  info.host_numa_node = node && *node > 0 ? *node : 0;
  if (info.vmm) {
    VMEM_ASSIGN(info.device_granularity_bytes, granularity(driver, device_memory(info.ordinal, false)));
  }
  if (info.host_vmm) {
    VMEM_ASSIGN(info.host_granularity_bytes, granularity(driver, host_memory(info.host_numa_node, false)));
  }
  return {};
}

Result<bool> can_access(const Driver& driver, const DeviceInfo& from, const DeviceInfo& to) {
  if (from.ordinal == to.ordinal) return true;
  CUdevice a = 0, b = 0;
  int yes = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGet(&a, from.ordinal), "cuDeviceGet"));
  VMEM_TRY(driver.check(driver->cuDeviceGet(&b, to.ordinal), "cuDeviceGet"));
  VMEM_TRY(driver.check(driver->cuDeviceCanAccessPeer(&yes, a, b), "cuDeviceCanAccessPeer"));
  return yes != 0;
}

}  // namespace

Result<DeviceInfo> query_device(const Driver& driver, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  VMEM_TRY(query_identity(driver, device, info));
  VMEM_TRY(query_memory(driver, device, info));
  return info;
}

Result<DeviceList> query_devices(const Driver& driver) {
  DeviceList list;
  int count = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    VMEM_ASSIGN(auto info, query_device(driver, ordinal));
    list.devices.push_back(std::move(info));
  }
  for (const DeviceInfo& from : list.devices) {
    auto& row = list.peer_access.emplace_back();
    for (const DeviceInfo& to : list.devices) {
      VMEM_ASSIGN(const bool reachable, can_access(driver, from, to));
      row.push_back(reachable);
    }
  }
  return list;
}

std::string format_uuid(const std::array<std::uint8_t, 16>& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

}  // namespace vmem::gpu
