// Device properties.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

constexpr std::uint8_t uuid_prefix[7] = {'v', 'm', 'e', 'm', 'e', 'm', 'u'};

// The attributes with a meaning on the emulated machine. Unlisted attributes are 0: the feature is
// absent.
int attribute_value(CUdevice_attribute attribute, const Device& device) {
  const Config& config = machine().config();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return int(Device::multiprocessors);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return int(Device::threads_per_multiprocessor);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return int(Device::blocks_per_multiprocessor);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device.ordinal + 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return config.vmm;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return config.vmm && config.host_vmm;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return config.numa_node(device.ordinal);
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
      return -1;  // device memory is not a NUMA node of the system
    default:
      return 0;
  }
}

}  // namespace

CUresult cuDriverGetVersion(int* version) try {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = machine().config().version;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGet(CUdevice* device, int ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!machine().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetCount(int* count) try {
  VMEM_EMU_TRY(enter());
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = machine().config().devices;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!machine().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "vmem emulated GPU");
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!machine().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, uuid_prefix, sizeof uuid_prefix);
  const std::uint64_t identity = machine().config().identity;
  std::memcpy(uuid->bytes + sizeof uuid_prefix, &identity, sizeof identity);
  uuid->bytes[15] = static_cast<char>(ordinal);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!id || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!machine().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", ordinal + 1);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_value(attribute, *device);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = device->memory->capacity_bytes();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice ordinal, CUdevice peer) try {
  VMEM_EMU_TRY(enter());
  if (!can_access) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = machine().device(ordinal);
  if (!device || !machine().device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can_access = device->to_peer[static_cast<std::size_t>(peer)] != nullptr;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) try {
  VMEM_EMU_TRY(enter());
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (source == target) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      return cuDeviceCanAccessPeer(value, source, target);
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      VMEM_EMU_TRY(cuDeviceCanAccessPeer(value, source, target));
      *value = *value != 0 && machine().config().nvlink;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: {
      VMEM_EMU_TRY(cuDeviceCanAccessPeer(value, source, target));
      *value = 0;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
VMEM_EMU_CATCH
