// Allocation, and queries about memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/pinned.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

// The ordinal of the current context's device, or -1.
int current_device(const Runtime& runtime) {
  CUdevice device = 0;
  return runtime.driver()->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

CUresult allocate(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult why = CUDA_SUCCESS;
  Runtime* runtime = started(why);
  if (runtime == nullptr) return why;
  const int device = current_device(*runtime);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  auto pointer = runtime->blocks().allocate(bytes, device, stream);
  if (!pointer) return report("an allocation", pointer.error());
  *out = reinterpret_cast<CUdeviceptr>(*pointer);
  return CUDA_SUCCESS;
}

CUresult free_memory(Runtime& runtime, CUdeviceptr pointer, std::optional<vmem_stream> stream) {
  auto freed = runtime.blocks().free(reinterpret_cast<void*>(pointer), stream);
  return freed ? CUDA_SUCCESS : report("a free", freed.error());
}

std::optional<runtime::Allocation> allocation(CUdeviceptr pointer) {
  Runtime* runtime = running();
  if (!ours(runtime, pointer)) return std::nullopt;
  return runtime->addresses().allocation_at(pointer);
}

// The GPU memory size shown to programs: all that vmem can hold for them.
CUresult capacity(std::size_t* free_bytes, std::size_t* total_bytes) {
  CUresult why = CUDA_SUCCESS;
  Runtime* runtime = started(why);
  if (runtime == nullptr) return why;
  const auto capacity = runtime->blocks().capacity(current_device(*runtime));
  if (!capacity) return report("a question for free memory", capacity.error());
  if (free_bytes != nullptr) *free_bytes = capacity->free_bytes;
  if (total_bytes != nullptr) *total_bytes = capacity->total_bytes;
  return CUDA_SUCCESS;
}

std::size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return 8;
    default:
      return 4;
  }
}

// As the driver would answer for memory from cuMemAlloc. No value: the driver would refuse.
std::optional<std::uint64_t> attribute_of(const Runtime& runtime, const runtime::Allocation& found,
                                          CUpointer_attribute attribute, CUdeviceptr pointer) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return reinterpret_cast<std::uint64_t>(runtime.devices().context_of(found.device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return pointer;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return found.base;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return found.bytes;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return 1;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return std::uint64_t(found.device);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return sync_memops_asked().load(std::memory_order_relaxed) ? 1 : 0;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 0;
    default:
      return std::nullopt;
  }
}

CUresult refuse(const char* what) {
  VMEM_LOG_ERROR("{}: memory that vmem moves cannot be handed out of the process or registered by its handle", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// The memory must be usable on any stream at once. It comes in the order of the default stream, so
// wait for the work queued there.
CUresult allocate_for_all(CUdeviceptr* out, std::size_t bytes) {
  const CUresult result = allocate(out, bytes, nullptr);
  const Runtime* const runtime = running();
  if (result != CUDA_SUCCESS || runtime == nullptr || capturing(*runtime, CU_STREAM_LEGACY)) return result;
  return runtime->driver()->cuStreamSynchronize(CU_STREAM_LEGACY);
}

}  // namespace

CUresult mem_alloc(Call<decltype(::cuMemAlloc)>, CUdeviceptr* out, std::size_t bytes) {
  return allocate_for_all(out, bytes);
}

CUresult mem_alloc_pitch(Call<decltype(::cuMemAllocPitch)>, CUdeviceptr* out, std::size_t* pitch, std::size_t width,
                         std::size_t height, unsigned element_bytes) {
  constexpr std::size_t kPitch = 512;
  const bool known_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (pitch == nullptr || width == 0 || height == 0 || !known_element) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = (width + kPitch - 1) / kPitch * kPitch;
  if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = allocate_for_all(out, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

// Waits for the device, as programs rely on.
CUresult mem_free(Call<decltype(::cuMemFree)> call, CUdeviceptr pointer) {
  Runtime* runtime = running();
  if (!ours(runtime, pointer)) return call(pointer);
  // Waits for the allocation's device, not the current one.
  const auto found = runtime->addresses().allocation_at(pointer);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (auto waited = runtime->devices().synchronize(found->device); !waited) return report("a free", waited.error());
  return free_memory(*runtime, pointer, std::nullopt);
}

CUresult mem_alloc_async(Call<decltype(::cuMemAllocAsync)> call, CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  CUresult why = CUDA_SUCCESS;
  Runtime* runtime = started(why);
  if (runtime == nullptr) return why;
  // In a capture the allocation is a node of the graph, which owns the memory.
  if (capturing(*runtime, call.stream(stream))) return call(out, bytes, stream);
  return allocate(out, bytes, call.stream(stream));
}

CUresult mem_alloc_from_pool_async(Call<decltype(::cuMemAllocFromPoolAsync)> call, CUdeviceptr* out, std::size_t bytes,
                                   CUmemoryPool pool, CUstream stream) {
  CUresult why = CUDA_SUCCESS;
  Runtime* runtime = started(why);
  if (runtime == nullptr) return why;
  // Serve only the device's default pool. Others may be of host memory, managed, or another
  // device's.
  CUmemoryPool own = nullptr;
  const int device = current_device(*runtime);
  const auto& driver = runtime->driver();
  const bool is_own = device >= 0 && driver->cuDeviceGetDefaultMemPool != nullptr &&
                      driver->cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == pool;
  if (!is_own || capturing(*runtime, call.stream(stream))) return call(out, bytes, pool, stream);
  return allocate(out, bytes, call.stream(stream));
}

CUresult mem_free_async(Call<decltype(::cuMemFreeAsync)> call, CUdeviceptr pointer, CUstream stream) {
  Runtime* runtime = running();
  if (!ours(runtime, pointer)) return call(pointer, stream);
  return free_memory(*runtime, pointer, call.stream(stream));
}

CUresult mem_host_alloc(Call<decltype(::cuMemHostAlloc)> call, void** out, std::size_t bytes, unsigned flags) {
  const bool readable = (flags & CU_MEMHOSTALLOC_WRITECOMBINED) == 0;
  PinnedMemory& kind = readable ? pinned_memory() : write_combined_memory();
  PinnedMemory::Room room = PinnedMemory::make_room();
  const CUresult result = call(out, bytes, flags);
  if (result == CUDA_SUCCESS) kind.add(std::move(room), reinterpret_cast<std::uintptr_t>(*out), bytes);
  return result;
}

CUresult mem_alloc_host(Call<decltype(::cuMemAllocHost)> call, void** out, std::size_t bytes) {
  PinnedMemory& readable = pinned_memory();
  PinnedMemory::Room room = PinnedMemory::make_room();
  const CUresult result = call(out, bytes);
  if (result == CUDA_SUCCESS) readable.add(std::move(room), reinterpret_cast<std::uintptr_t>(*out), bytes);
  return result;
}

CUresult mem_free_host(Call<decltype(::cuMemFreeHost)> call, void* pointer) {
  pinned_memory().remove(reinterpret_cast<std::uintptr_t>(pointer));
  write_combined_memory().remove(reinterpret_cast<std::uintptr_t>(pointer));
  return call(pointer);
}

CUresult mem_get_info(Call<decltype(::cuMemGetInfo)>, std::size_t* free_bytes, std::size_t* total_bytes) {
  return capacity(free_bytes, total_bytes);
}

// Programs ask before they have a context, to describe the machine: until vmem runs, answer with
// the GPU's own memory.
CUresult device_total_mem(Call<decltype(::cuDeviceTotalMem)> call, std::size_t* bytes, CUdevice device) {
  Runtime* runtime = running();
  if (runtime == nullptr || bytes == nullptr) return call(bytes, device);
  const auto capacity = runtime->blocks().capacity(device);
  if (!capacity) return call(bytes, device);
  *bytes = capacity->total_bytes;
  return CUDA_SUCCESS;
}

CUresult mem_get_address_range(Call<decltype(::cuMemGetAddressRange)> call, CUdeviceptr* base, std::size_t* bytes,
                               CUdeviceptr pointer) {
  if (!ours(running(), pointer)) return call(base, bytes, pointer);
  const auto found = allocation(pointer);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

CUresult pointer_get_attribute(Call<decltype(::cuPointerGetAttribute)> call, void* data, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  Runtime* runtime = running();
  if (!ours(runtime, pointer)) return call(data, attribute, pointer);
  const auto found = allocation(pointer);
  if (!found || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto value = attribute_of(*runtime, *found, attribute, pointer);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &*value, attribute_bytes(attribute));
  return CUDA_SUCCESS;
}

CUresult pointer_get_attributes(Call<decltype(::cuPointerGetAttributes)> call, unsigned count,
                                CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
  Runtime* runtime = running();
  if (!ours(runtime, pointer)) return call(count, attributes, data, pointer);
  const auto found = allocation(pointer);
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As the driver does: an unanswerable attribute is zero.
  for (unsigned i = 0; i < count; ++i) {
    const auto value = found ? attribute_of(*runtime, *found, attributes[i], pointer) : std::nullopt;
    std::uint64_t answer = value.value_or(0);
    if (!found && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      answer = std::uint64_t(-2);  // CU_DEVICE_INVALID
    std::memcpy(data[i], &answer, attribute_bytes(attributes[i]));
  }
  return CUDA_SUCCESS;
}

CUresult pointer_set_attribute(Call<decltype(::cuPointerSetAttribute)> call, const void* value,
                               CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (!ours(running(), pointer)) return call(value, attribute, pointer);
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr || !allocation(pointer))
    return CUDA_ERROR_INVALID_VALUE;
  // From here on synchronous fills and copies of all memory wait: few programs set this.
  if (*static_cast<const unsigned*>(value) != 0) sync_memops_asked().store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult ipc_get_mem_handle(Call<decltype(::cuIpcGetMemHandle)> call, CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (!ours(running(), pointer)) return call(handle, pointer);
  return refuse("cuIpcGetMemHandle");
}

CUresult mem_retain_allocation_handle(Call<decltype(::cuMemRetainAllocationHandle)> call,
                                      CUmemGenericAllocationHandle* handle, void* address) {
  if (!ours(running(), reinterpret_cast<std::uintptr_t>(address))) return call(handle, address);
  return refuse("cuMemRetainAllocationHandle");
}

CUresult mem_get_handle_for_address_range(Call<decltype(::cuMemGetHandleForAddressRange)> call, void* handle,
                                          CUdeviceptr pointer, std::size_t bytes, CUmemRangeHandleType type,
                                          unsigned long long flags) {
  if (!ours(running(), pointer)) return call(handle, pointer, bytes, type, flags);
  return refuse("cuMemGetHandleForAddressRange");
}

}  // namespace vmem::intercept
