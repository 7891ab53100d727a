// Memory pools: only creation, destruction and allocation.
#include "gpu/emu/api_memory.hpp"

using namespace vmem::emu;

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *pool = device->default_pool;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// NOT_SUPPORTED: pools of host memory, of limited size, or with exportable memory.
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) try {
  VMEM_EMU_TRY(enter());
  if (!pool || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties->win32SecurityAttributes) return CUDA_ERROR_INVALID_VALUE;
  for (const unsigned char byte : properties->reserved)
    if (byte != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    const bool host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                      properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return host ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  if (!machine().device(properties->location.id)) return CUDA_ERROR_INVALID_VALUE;
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE || properties->maxSize != 0 || properties->usage != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  *pool = machine().pools.insert(std::make_shared<Pool>(Pool{properties->location.id, false}));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Allocations from the pool stay valid.
CUresult cuMemPoolDestroy(CUmemoryPool handle) try {
  VMEM_EMU_TRY(enter());
  const auto pool = machine().pools.find(handle);
  if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  machine().pools.erase(handle);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool_handle,
                                 CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const auto pool = machine().pools.find(pool_handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  const auto owner = machine().device(pool->device)->primary_context();
  if (!owner) return CUDA_ERROR_INVALID_CONTEXT;
  return allocate_in_order(address, bytes, stream.get(), owner->heap());
}
VMEM_EMU_CATCH
