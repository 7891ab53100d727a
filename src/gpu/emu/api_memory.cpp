// Memory that the driver maps itself: cuMemAlloc, the stream-ordered pool, pinned host memory; and questions about
// pointers.
#include <sys/mman.h>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

constexpr std::size_t page_bytes = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

// What is known about the address, in the terms of CUpointer_attribute.
struct PointerInfo {
  bool host = false;
  int device = 0;
  std::uint64_t range_begin = 0;  // of the allocation; of the whole reservation for memory that the program maps
  std::size_t range_bytes = 0;
  std::uint64_t mapping_begin = 0;
  std::size_t mapping_bytes = 0;
  bool host_accessible = false;
  std::uint64_t buffer_id = 0;
  bool exportable = false;
  CUcontext context = nullptr;  // memory that the program maps belongs to none
};

bool describe_mapped(std::uint64_t address, PointerInfo& info) {
  const auto mapping = machine().addresses().find(address);
  if (!mapping) return false;
  const Location home = mapping->frame->location();
  info = {.host = home.host,
          .device = home.host ? 0 : home.id,
          .range_begin = mapping->reservation_begin,
          .range_bytes = mapping->reservation_bytes,
          .mapping_begin = mapping->begin,
          .mapping_bytes = mapping->bytes,
          .host_accessible = mapping->access.host() != Access::none,
          .buffer_id = mapping->frame->id(),
          .exportable = mapping->frame->exportable()};
  if (mapping->purpose == Purpose::program) return true;
  const Device* device = machine().device(home.id);
  const std::shared_ptr<Context> context = device ? device->primary_context() : nullptr;
  const Heap::Range range = context ? context->heap().find(address) : Heap::Range{};
  if (range.bytes == 0) return false;  // the free part of a slab
  info.range_begin = range.begin;
  info.range_bytes = range.bytes;
  info.context = machine().contexts.handle_of(context.get());
  return true;
}

bool describe_pinned(std::uint64_t address, PointerInfo& info) {
  const auto range = machine().pinned().find(address);
  if (range.bytes == 0) return false;
  info = {.host = true,
          .range_begin = range.begin,
          .range_bytes = range.bytes,
          .mapping_begin = range.begin,
          .mapping_bytes = range.bytes,
          .host_accessible = true,
          .buffer_id = range.begin,
          .context = machine().contexts.handle_of(range.owner)};
  return true;
}

CUresult answer(const PointerInfo& info, CUpointer_attribute attribute, std::uint64_t address, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = info.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && !info.host_accessible) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<std::uint64_t*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = info.context;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = info.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<std::uint64_t*>(data) = info.range_begin;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = info.range_bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<std::uint64_t*>(data) = info.mapping_begin;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<std::size_t*>(data) = info.mapping_bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = info.buffer_id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) = info.exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

void vmem::emu::release_pinned(const PinnedRanges::Range& range) {
  if (!range.registered) munmap(reinterpret_cast<void*>(range.begin), whole_pages(range.bytes));
  machine().host_memory().refund(whole_pages(range.bytes));
}

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  const PhysicalMemory& memory = *context->device().memory;
  *total = memory.capacity_bytes();
  *free = memory.capacity_bytes() - memory.used_bytes();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_unsafe_call());
  std::uint64_t allocated = 0;
  VMEM_EMU_TRY(context->heap().allocate(bytes, allocated));
  *address = allocated;
  return CUDA_SUCCESS;
}

// Frees what any context allocated, after the work of that context, as the driver does.
CUresult cuMemFree(CUdeviceptr address) {
  std::shared_ptr<Context> current;
  VMEM_EMU_TRY(enter(current));
  if (address == 0) return CUDA_SUCCESS;
  VMEM_EMU_TRY(check_unsafe_call());
  const auto mapping = machine().addresses().find(address);
  if (!mapping || mapping->purpose != Purpose::heap) return CUDA_ERROR_INVALID_VALUE;
  const auto owner = machine().device(mapping->frame->location().id)->primary_context();
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  owner->synchronize();
  VMEM_EMU_TRY(owner->heap().free(address));
  return current->usable();
}

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream handle) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (!stream->capturing) VMEM_EMU_TRY(check_unsafe_call());
  if (const auto captured = captures::intercept_operation(*stream)) {
    // A graph would own the memory, and nothing here launches graphs.
    return *captured == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : *captured;
  }
  Heap& heap = stream->context()->heap();
  std::uint64_t allocated = 0;
  CUresult result = heap.allocate_cached(bytes, allocated);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    stream->wait(stream->last_ticket());  // for the frees that are still queued on it
    result = heap.allocate_cached(bytes, allocated);
  }
  if (result == CUDA_SUCCESS) *address = allocated;
  return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (const auto captured = captures::intercept_operation(*stream))
    return *captured == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : *captured;
  const std::shared_ptr<Context> context = stream->context();
  VMEM_EMU_TRY(context->heap().begin_free(address));
  context->submit(*stream, [context, address] { context->heap().finish_free(address); }, AfterFault::run);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  constexpr unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (!pointer || bytes == 0 || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_unsafe_call());
  PhysicalMemory& host = machine().host_memory();
  if (!host.charge(whole_pages(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    host.refund(whole_pages(bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  machine().pinned().insert({reinterpret_cast<std::uint64_t>(memory), bytes, false, context.get()});
  *pointer = memory;
  return CUDA_SUCCESS;
}

// Waits for all work, as the driver does: some of it may still copy from or to this memory.
CUresult cuMemFreeHost(void* pointer) {
  VMEM_EMU_TRY(enter());
  if (!this_thread().contexts.empty()) {
    std::shared_ptr<Context> context;
    VMEM_EMU_TRY(enter(context));
  }
  VMEM_EMU_TRY(check_unsafe_call());
  if (machine().pinned().find(reinterpret_cast<std::uint64_t>(pointer)).bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  machine().synchronize_all();
  const auto range = machine().pinned().erase(reinterpret_cast<std::uint64_t>(pointer), false);
  if (range.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  release_pinned(range);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  constexpr unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  if (begin == 0 || bytes == 0 || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  if (machine().addresses().contains(begin)) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_unsafe_call());
  if (!machine().host_memory().charge(whole_pages(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  if (machine().pinned().insert({begin, bytes, true, context.get()})) return CUDA_SUCCESS;
  machine().host_memory().refund(whole_pages(bytes));
  return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* pointer) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  VMEM_EMU_TRY(check_unsafe_call());
  machine().synchronize_all();
  const auto range = machine().pinned().erase(reinterpret_cast<std::uint64_t>(pointer), true);
  if (range.bytes == 0) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  release_pinned(range);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned flags) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  if (!address || flags != 0 || machine().pinned().find(begin).bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = begin;  // unified addressing
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  VMEM_EMU_TRY(enter());
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  PointerInfo info;
  if (!describe_mapped(address, info) && !describe_pinned(address, info)) return CUDA_ERROR_INVALID_VALUE;
  return answer(info, attribute, address, data);
}
