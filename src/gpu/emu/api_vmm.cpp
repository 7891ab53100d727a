// Virtual memory management: reserve, create, map, access, export.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

bool whole_granules(std::uint64_t value) { return value % granule_bytes == 0; }

bool is_host(const CUmemLocation& location) { return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA; }

// Whether memory can be created at the location.
CUresult check_location(const CUmemLocation& location) {
  const Config& config = machine().config();
  if (!config.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return machine().device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  if (!is_host(location)) return CUDA_ERROR_INVALID_VALUE;
  if (!config.host_vmm) return CUDA_ERROR_NOT_SUPPORTED;
  return location.id >= 0 && location.id < config.numa_nodes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_properties(const CUmemAllocationProp* properties) {
  if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const auto types = static_cast<unsigned>(properties->requestedHandleTypes);
  if (types & ~static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return CUDA_ERROR_NOT_SUPPORTED;
  return check_location(properties->location);
}

// Checks flags and locations only; check_reach checks whether the devices reach the memory.
CUresult check_descs(const CUmemAccessDesc* descs, std::size_t count) {
  if (!descs || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [location, flags] = descs[i];
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_HOST) continue;
    VMEM_EMU_TRY(check_location(location));
  }
  return CUDA_SUCCESS;
}

// A device can reach its own memory, a connected peer's, and host memory. Checks every frame of the
// range for the devices named.
CUresult check_reach(std::uint64_t begin, std::size_t bytes, const CUmemAccessDesc* descs, std::size_t count) {
  std::uint64_t position = begin;
  while (position < begin + bytes) {
    const auto mapping = machine().addresses().find(position);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    const Location home = mapping->frame->location();
    for (std::size_t i = 0; i < count; ++i) {
      if (descs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || home.host || home.id == descs[i].location.id)
        continue;
      const Device* device = machine().device(descs[i].location.id);
      // Memory imported from a process whose machine has more devices counts as connected.
      if (machine().device(home.id) && !device->to_peer[static_cast<std::size_t>(home.id)])
        return CUDA_ERROR_INVALID_DEVICE;
    }
    position = mapping->begin + mapping->bytes;
  }
  return CUDA_SUCCESS;
}

// Whether a device that has access loses it or gets another. The real driver was seen to leave two
// cases alone under a reading kernel (H200): unchanged access, and access for a further device.
bool changes_access(std::uint64_t begin, std::size_t bytes, const CUmemAccessDesc* descs, std::size_t count) {
  std::uint64_t position = begin;
  while (position < begin + bytes) {
    const auto mapping = machine().addresses().find(position);
    if (!mapping) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (descs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) continue;
      const auto before = static_cast<unsigned>(mapping->access.device(descs[i].location.id));
      if (before != 0 && before != static_cast<unsigned>(descs[i].flags)) return true;
    }
    position = mapping->begin + mapping->bytes;
  }
  return false;
}

// The real driver briefly unmaps a mapping while it changes the access. A kernel that uses the page
// then sometimes faults, whichever way the access changes (H200, driver 580: once in 5 to 50
// changes under a kernel that reads all the time). This driver reports it every time.
void check_unused(const char* call, std::uint64_t begin, std::size_t bytes) {
  const char* kernel = protection::kernel_using(begin, bytes);
  if (!kernel) return;
  std::fprintf(
      stderr,
      "vmem emulated driver: %s changes [0x%llx, +%zu) while kernel '%s' is using it: on a GPU the kernel faults; "
      "wait for the work that uses the memory first\n",
      call, static_cast<unsigned long long>(begin), bytes, kernel);
  std::abort();
}

}  // namespace

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) try {
  VMEM_EMU_TRY(enter());
  if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_properties(properties));
  *granularity = granule_bytes;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) try {
  VMEM_EMU_TRY(enter());
  if (!machine().config().vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (!address || bytes == 0 || !whole_granules(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > std::size_t{1} << 46 || alignment > std::size_t{1} << 46) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t begin = machine().addresses().reserve(bytes, alignment, hint, Purpose::program);
  if (begin == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = begin;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) try {
  VMEM_EMU_TRY(enter());
  return machine().addresses().free_reservation(address, bytes, Purpose::program);
}
VMEM_EMU_CATCH

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) try {
  VMEM_EMU_TRY(enter());
  if (!handle || bytes == 0 || !whole_granules(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_properties(properties));
  const Location location{is_host(properties->location), properties->location.id};
  PhysicalMemory& memory = location.host ? machine().host_memory() : *machine().device(location.id)->memory;
  const bool exportable = properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  auto frame = memory.create(bytes, location, exportable);
  // Memory cached by the stream-ordered pool is free for others.
  if (const auto context = location.host ? nullptr : machine().device(location.id)->primary_context();
      !frame && context && context->heap().trim())
    frame = memory.create(bytes, location, exportable);
  if (!frame) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = machine().frames.insert(std::move(frame));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) try {
  VMEM_EMU_TRY(enter());
  return machine().frames.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) try {
  VMEM_EMU_TRY(enter());
  if (offset != 0 || flags != 0 || !whole_granules(address)) return CUDA_ERROR_INVALID_VALUE;
  auto frame = machine().frames.find(handle);
  if (!frame || frame->bytes() != bytes) return CUDA_ERROR_INVALID_VALUE;
  return machine().addresses().map(address, std::move(frame), {}, handle);
}
VMEM_EMU_CATCH

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) try {
  VMEM_EMU_TRY(enter());
  check_unused("cuMemUnmap", address, bytes);
  return machine().addresses().unmap(address, bytes, Purpose::program);
}
VMEM_EMU_CATCH

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descs, std::size_t count) try {
  VMEM_EMU_TRY(enter());
  VMEM_EMU_TRY(check_descs(descs, count));
  VMEM_EMU_TRY(check_reach(address, bytes, descs, count));
  if (changes_access(address, bytes, descs, count)) check_unused("cuMemSetAccess", address, bytes);
  return machine().addresses().set_access(address, bytes, descs, count);
}
VMEM_EMU_CATCH

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) try {
  VMEM_EMU_TRY(enter());
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_HOST) VMEM_EMU_TRY(check_location(*location));
  const auto mapping = machine().addresses().find(address);
  if (!mapping || mapping->purpose != Purpose::program) return CUDA_ERROR_INVALID_VALUE;
  const bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  const Access access = device ? mapping->access.device(location->id) : mapping->access.host();
  *flags = static_cast<unsigned long long>(access);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) try {
  VMEM_EMU_TRY(enter());
  const auto frame = machine().frames.find(handle);
  if (!properties || !frame) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = frame->location().host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = frame->location().id;
  if (frame->exportable()) properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) try {
  VMEM_EMU_TRY(enter());
  const auto mapping = machine().addresses().find(reinterpret_cast<std::uint64_t>(address));
  if (!handle || !mapping || mapping->purpose != Purpose::program) return CUDA_ERROR_INVALID_VALUE;
  machine().frames.retain(mapping->handle, mapping->frame);
  *handle = mapping->handle;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) try {
  VMEM_EMU_TRY(enter());
  const auto frame = machine().frames.find(handle);
  if (!out || flags != 0 || !frame) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !frame->exportable()) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(frame->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) try {
  VMEM_EMU_TRY(enter());
  if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  auto frame = Frame::import(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)));
  if (!frame) return CUDA_ERROR_INVALID_VALUE;
  *handle = machine().frames.insert(std::move(frame));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
