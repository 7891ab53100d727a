// Memory that the driver maps itself (cuMemAlloc, the stream-ordered pool, pinned host memory), and
// pointer queries.
#include "gpu/emu/api_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gpu/emu/api_copy.hpp"

using namespace vmem::emu;

namespace {

constexpr std::size_t page_bytes = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

// Facts about an address, in the terms of CUpointer_attribute.
struct PointerInfo {
  bool host = false;
  int device = 0;
  // The allocation; for memory mapped by the program, the whole reservation.
  std::uint64_t range_begin = 0;
  std::size_t range_bytes = 0;
  std::uint64_t mapping_begin = 0;
  std::size_t mapping_bytes = 0;
  bool host_accessible = false;
  std::uint64_t buffer_id = 0;
  bool exportable = false;
  bool synchronizes = false;
  CUcontext context = nullptr;  // null for memory mapped by the program
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
  info.synchronizes = range.synchronizes;
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

bool describe(std::uint64_t address, PointerInfo& info) {
  return describe_mapped(address, info) || describe_pinned(address, info);
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
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = info.synchronizes;
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

// Stores the value of cuPointerGetAttributes for an attribute without an answer.
void clear(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = CU_DEVICE_INVALID;
      return;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      return;
    default:
      *static_cast<std::uint64_t*>(data) = 0;
  }
}

// The attributes that cuPointerGetAttributes accepts.
bool answered_together(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return true;
    default:
      return false;
  }
}

// The context whose cuMemAlloc memory contains the address, or null.
std::shared_ptr<Context> owner_of(std::uint64_t address) {
  const auto mapping = machine().addresses().find(address);
  if (!mapping || mapping->purpose != Purpose::heap) return nullptr;
  return machine().device(mapping->frame->location().id)->primary_context();
}

}  // namespace

bool vmem::emu::synchronizes(std::uint64_t address) {
  PointerInfo info;
  return describe_mapped(address, info) && info.synchronizes;
}

void vmem::emu::release_pinned(const PinnedRanges::Range& range) {
  if (!range.registered) munmap(reinterpret_cast<void*>(range.begin), whole_pages(range.bytes));
  machine().host_memory().refund(whole_pages(range.bytes));
}

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  const PhysicalMemory& memory = *context->device().memory;
  *total = memory.capacity_bytes();
  *free = memory.capacity_bytes() - memory.used_bytes();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_unsafe_call());
  std::uint64_t allocated = 0;
  VMEM_EMU_TRY(context->heap().allocate(bytes, allocated));
  *address = allocated;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Frees memory of any context, after that context's work, as the driver does.
CUresult cuMemFree(CUdeviceptr address) try {
  std::shared_ptr<Context> current;
  VMEM_EMU_TRY(enter(current));
  if (address == 0) return CUDA_SUCCESS;
  VMEM_EMU_TRY(check_unsafe_call());
  const auto owner = owner_of(address);
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  owner->synchronize();
  VMEM_EMU_TRY(owner->heap().free(address));
  return current->usable();
}
VMEM_EMU_CATCH

// Row alignment: the widest access of a warp.
CUresult cuMemAllocPitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t rows,
                         unsigned element_bytes) try {
  constexpr std::size_t alignment = 512;
  VMEM_EMU_TRY(enter());
  if (!address || !pitch || width == 0 || rows == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
  if (width > pitch_max - alignment) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row_bytes = (width + alignment - 1) / alignment * alignment;
  if (rows > SIZE_MAX / row_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  VMEM_EMU_TRY(cuMemAlloc(address, row_bytes * rows));
  *pitch = row_bytes;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult vmem::emu::allocate_in_order(CUdeviceptr* address, std::size_t bytes, Stream* stream, Heap& heap) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (!stream->capturing) VMEM_EMU_TRY(check_unsafe_call());
  // A graph would own the memory; graphs own no memory here.
  if (const auto captured = captures::intercept_operation(*stream)) return *captured;
  std::uint64_t allocated = 0;
  CUresult result = heap.allocate_cached(bytes, allocated);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    stream->wait(stream->last_ticket());  // for frees still queued on the stream
    result = heap.allocate_cached(bytes, allocated);
  }
  if (result == CUDA_SUCCESS) *address = allocated;
  return result;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  return allocate_in_order(address, bytes, stream.get(), stream->context()->heap());
}
VMEM_EMU_CATCH

// The memory may belong to another device: pools serve streams of every device.
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (const auto captured = captures::intercept_operation(*stream)) return *captured;
  const std::shared_ptr<Context> owner = owner_of(address);
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(owner->heap().begin_free(address));
  stream->context()->submit(*stream, [owner, address] { owner->heap().finish_free(address); }, AfterFault::run);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) try {
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
VMEM_EMU_CATCH

CUresult cuMemAllocHost(void** pointer, std::size_t bytes) try { return cuMemHostAlloc(pointer, bytes, 0); }
VMEM_EMU_CATCH

// Waits for all work, as the driver does: some of it may still copy from or to this memory.
CUresult cuMemFreeHost(void* pointer) try {
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
VMEM_EMU_CATCH

CUresult cuMemHostRegister(void* pointer, std::size_t bytes, unsigned flags) try {
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
VMEM_EMU_CATCH

CUresult cuMemHostUnregister(void* pointer) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  VMEM_EMU_TRY(check_unsafe_call());
  machine().synchronize_all();
  const auto range = machine().pinned().erase(reinterpret_cast<std::uint64_t>(pointer), true);
  if (range.bytes == 0) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  release_pinned(range);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned flags) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  if (!address || flags != 0 || machine().pinned().find(begin).bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = begin;  // unified addressing
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) try {
  VMEM_EMU_TRY(enter());
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  PointerInfo info;
  return describe(address, info) ? answer(info, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) try {
  VMEM_EMU_TRY(enter());
  if (count == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i)
    if (!data[i] || !answered_together(attributes[i])) return CUDA_ERROR_INVALID_VALUE;
  PointerInfo info;
  const bool known = describe(address, info);
  for (unsigned i = 0; i < count; ++i)
    if (!known || answer(info, attributes[i], address, data[i]) != CUDA_SUCCESS) clear(attributes[i], data[i]);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Waits for synchronous calls in flight. Calls on host memory wait for their work in any case.
CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) try {
  VMEM_EMU_TRY(enter());
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  const unsigned wanted = *static_cast<const unsigned*>(value);
  if (wanted > 1) return CUDA_ERROR_INVALID_VALUE;
  if (machine().pinned().find(address).bytes > 0) return CUDA_SUCCESS;
  const auto owner = owner_of(address);
  if (!owner || !owner->heap().set_synchronizes(address, wanted == 1)) return CUDA_ERROR_INVALID_VALUE;
  const auto legacy = owner->legacy_stream();
  legacy->wait(legacy->last_ticket());
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// For memory mapped by the program: its reservation, as for CU_POINTER_ATTRIBUTE_RANGE_START_ADDR.
CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  PointerInfo info;
  if (!describe(address, info)) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = info.range_begin;
  if (bytes) *bytes = info.range_bytes;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// The handle holds the process id and the address range.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  const auto owner = owner_of(address);
  const Heap::Range range = owner ? owner->heap().find(address) : Heap::Range{};
  if (!handle || range.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t words[] = {static_cast<std::uint64_t>(getpid()), range.begin, range.bytes};
  *handle = {};
  std::memcpy(handle->reserved, words, sizeof words);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Never supported, consistent with CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 0.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long flags) try {
  VMEM_EMU_TRY(enter());
  if (!handle || bytes == 0 || address % page_bytes != 0 || bytes % page_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      (flags & ~static_cast<unsigned long long>(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)))
    return CUDA_ERROR_INVALID_VALUE;
  PointerInfo first, last;
  if (!describe(address, first) || !describe(address + bytes - 1, last)) return CUDA_ERROR_INVALID_VALUE;
  return first.range_begin == last.range_begin ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH
