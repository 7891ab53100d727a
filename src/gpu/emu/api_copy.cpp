// Copies of contiguous bytes, and fills.
#include "gpu/emu/api_copy.hpp"

#include <cstdio>
#include <cstdlib>

namespace vmem::emu {
namespace {

// The real driver crashes in some copies. The emulated driver aborts there too, with the reason.
[[noreturn]] void crash(const char* what, std::uint64_t address, std::size_t bytes, const char* advice) {
  std::fprintf(stderr, "vmem emulated driver: %s [0x%llx, +%zu)%s\n", what, static_cast<unsigned long long>(address),
               bytes, advice);
  std::abort();
}

void check_mixed(std::uint64_t address, std::size_t bytes) {
  const RangeContents contents = machine().addresses().contents(address, bytes);
  if (contents.device && contents.host_accessible)
    crash(
        "a copy between the host and", address, bytes,
        " covers both device memory and HOST_NUMA memory that the host may access; the CUDA driver crashes here: split "
        "it where the location changes");
}

// Unmapped or inaccessible memory is rejected when the work is queued. If the driver must find out
// an address's type, it takes an unmapped address for host memory and crashes.
CUresult check_end(std::uint64_t address, std::size_t bytes, int device, Access wanted, Direction direction) {
  AddressSpace& space = machine().addresses();
  if (!space.contains(address) || space.accessible(address, bytes, device, wanted)) return CUDA_SUCCESS;
  if (direction == Direction::unified && !space.find(address))
    crash("a copy names", address, bytes,
          ", where nothing is mapped; the CUDA driver takes it for host memory and crashes");
  return CUDA_ERROR_INVALID_VALUE;
}

void check_mixed(const Transfer& transfer, Direction direction) {
  const bool unified = direction == Direction::unified;
  if (direction == Direction::host_to_device || (unified && reach_of(transfer.source) != Reach::vmm))
    check_mixed(transfer.target, transfer.bytes);
  if (direction == Direction::device_to_host || (unified && reach_of(transfer.target) != Reach::vmm))
    check_mixed(transfer.source, transfer.bytes);
}

bool is_pageable(const Transfer& transfer) {
  return reach_of(transfer.target) == Reach::pageable || reach_of(transfer.source) == Reach::pageable;
}

// Whether a synchronous call on this memory is complete when it returns. Device memory only has the
// legacy stream's order, unless the program asked for more.
bool waited_for(std::uint64_t address) { return reach_of(address) != Reach::vmm || synchronizes(address); }

MemcpyWork node_of(const std::shared_ptr<Context>& context, const Transfer& transfer, Direction direction) {
  const CUmemorytype known = direction == Direction::unified ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
  return captured_memcpy(context, transfer, direction == Direction::device_to_host ? CU_MEMORYTYPE_HOST : known,
                         direction == Direction::host_to_device ? CU_MEMORYTYPE_HOST : known);
}

CUresult copy(Transfer transfer, Direction direction, CUstream handle, Timing timing,
              const Context* target_context = nullptr, const Context* source_context = nullptr) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const auto device_of = [&](const Context* context) {
    return context ? context->device().ordinal : stream->context()->device().ordinal;
  };
  transfer.target_device = device_of(target_context);
  transfer.source_device = device_of(source_context);
  if (transfer.bytes == 0) return CUDA_SUCCESS;
  VMEM_EMU_TRY(check_transfer(transfer, direction));
  return queue_copy(stream, node_of(stream->context(), transfer, direction), direction, timing);
}

CUresult copy_peer(Transfer transfer, CUcontext target_handle, CUcontext source_handle, CUstream stream,
                   Timing timing) {
  VMEM_EMU_TRY(enter());
  const auto target_context = machine().contexts.find(target_handle);
  const auto source_context = machine().contexts.find(source_handle);
  if (!target_context || !source_context) return CUDA_ERROR_INVALID_CONTEXT;
  return copy(transfer, Direction::device_to_device, stream, timing, target_context.get(), source_context.get());
}

// Rows of `width` values each. The pitch of a single row is ignored.
struct Fill {
  std::uint64_t target = 0;
  std::size_t pitch = 0;
  std::uint32_t value = 0;
  unsigned value_bytes = 1;
  std::size_t width = 0;
  std::size_t rows = 1;
};

CUresult check_row(std::uint64_t target, std::size_t bytes, int device) {
  if (reach_of(target) == Reach::pageable) return CUDA_ERROR_INVALID_VALUE;
  const RangeContents contents = machine().addresses().contents(target, bytes);
  if (contents.device && contents.host_accessible) return CUDA_ERROR_INVALID_VALUE;
  return check_end(target, bytes, device, Access::read_write, Direction::host_to_device);
}

CUresult fill(Fill what, CUstream handle, Timing timing) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (what.width == 0 || what.rows == 0) return CUDA_SUCCESS;
  if (what.rows == 1) what.pitch = 0;
  const std::size_t bytes = what.width * what.value_bytes;
  if (what.target == 0 || what.target % what.value_bytes != 0 || bytes / what.value_bytes != what.width)
    return CUDA_ERROR_INVALID_VALUE;
  if (what.rows > 1 && (what.pitch < bytes || what.pitch > pitch_max || what.pitch % what.value_bytes != 0))
    return CUDA_ERROR_INVALID_VALUE;
  const int device = stream->context()->device().ordinal;
  for (std::size_t row = 0; row < what.rows; ++row)
    VMEM_EMU_TRY(check_row(what.target + row * what.pitch, bytes, device));
  const bool waits = timing == Timing::synchronous && waited_for(what.target);
  if (waits) VMEM_EMU_TRY(check_wait(*stream));
  MemsetWork work = captured_memset(stream->context(), what.target, what.value, what.value_bytes, what.width);
  if (what.rows > 1) {
    work.parameters.pitch = what.pitch;
    work.parameters.height = what.rows;
  }
  VMEM_EMU_TRY(submit(stream, std::move(work)));
  return waits ? finish(*stream) : CUDA_SUCCESS;
}

// Attribute i applies to the copies from attrsIdxs[i] on.
CUresult check_batch_attributes(const CUmemcpyAttributes* attributes, const std::size_t* indices, std::size_t count,
                                std::size_t copies) {
  if (!attributes || !indices || count == 0 || count > copies || indices[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && (indices[i] <= indices[i - 1] || indices[i] >= copies)) return CUDA_ERROR_INVALID_VALUE;
    const auto order = attributes[i].srcAccessOrder;
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool asks_for_immediate_reads(const CUmemcpyAttributes* attributes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return true;
  return false;
}

}  // namespace

CUresult check_transfer(const Transfer& transfer, Direction direction) {
  if (transfer.target == 0 || transfer.source == 0) return CUDA_ERROR_INVALID_VALUE;
  check_mixed(transfer, direction);
  VMEM_EMU_TRY(check_end(transfer.target, transfer.bytes, transfer.target_device, Access::read_write, direction));
  return check_end(transfer.source, transfer.bytes, transfer.source_device, Access::read, direction);
}

CUresult check_wait(Stream& stream) {
  VMEM_EMU_TRY(captures::check_query(stream));
  return check_unsafe_call();
}

CUresult finish(Stream& stream) {
  if (captures::status(stream) != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  stream.wait(stream.last_ticket());
  return stream.context()->usable();
}

CUresult queue_copy(const std::shared_ptr<Stream>& stream, MemcpyWork work, Direction direction, Timing timing) {
  if (work.transfers.empty()) return CUDA_SUCCESS;
  bool waits = timing == Timing::at_once;
  for (const Transfer& transfer : work.transfers) waits = waits || is_pageable(transfer);
  if (timing == Timing::synchronous) {
    const Transfer& first = work.transfers.front();
    waits = waits || direction == Direction::host_to_device || direction == Direction::device_to_host ||
            waited_for(first.target) || waited_for(first.source);
    if (waits) VMEM_EMU_TRY(check_wait(*stream));
  }
  VMEM_EMU_TRY(submit(stream, std::move(work)));
  return waits ? finish(*stream) : CUDA_SUCCESS;
}

}  // namespace vmem::emu

using namespace vmem::emu;

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, std::size_t bytes) try {
  return copy({target, source, bytes}, Direction::unified, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) try {
  return copy({target, source, bytes}, Direction::unified, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpyHtoD(CUdeviceptr target, const void* source, std::size_t bytes) try {
  return copy({target, as_address(source), bytes}, Direction::host_to_device, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) try {
  return copy({target, as_address(source), bytes}, Direction::host_to_device, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpyDtoH(void* target, CUdeviceptr source, std::size_t bytes) try {
  return copy({as_address(target), source, bytes}, Direction::device_to_host, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) try {
  return copy({as_address(target), source, bytes}, Direction::device_to_host, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, std::size_t bytes) try {
  return copy({target, source, bytes}, Direction::device_to_device, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) try {
  return copy({target, source, bytes}, Direction::device_to_device, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpyPeer(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                      std::size_t bytes) try {
  return copy_peer({target, source, bytes}, target_context, source_context, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                           std::size_t bytes, CUstream stream) try {
  return copy_peer({target, source, bytes}, target_context, source_context, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* indices, std::size_t attribute_count,
                            CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (stream->legacy() || !targets || !sources || !sizes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_batch_attributes(attributes, indices, attribute_count, count));
  std::vector<Transfer> transfers;
  const int device = stream->context()->device().ordinal;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    transfers.push_back({targets[i], sources[i], sizes[i], device, device});
    VMEM_EMU_TRY(check_transfer(transfers.back(), Direction::unified));
  }
  const Timing timing = asks_for_immediate_reads(attributes, attribute_count) ? Timing::at_once : Timing::queued;
  if (captures::status(*stream) != CU_STREAM_CAPTURE_STATUS_NONE) {
    for (const Transfer& transfer : transfers)
      VMEM_EMU_TRY(submit(stream, node_of(stream->context(), transfer, Direction::unified)));
    return CUDA_SUCCESS;
  }
  // The copies of a batch share one fixed cost.
  return queue_copy(stream, {stream->context(), {}, std::move(transfers)}, Direction::unified, timing);
}
VMEM_EMU_CATCH

CUresult cuMemsetD8(CUdeviceptr target, unsigned char value, std::size_t count) try {
  return fill({target, 0, value, 1, count}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, std::size_t count, CUstream stream) try {
  return fill({target, 0, value, 1, count}, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D8(CUdeviceptr target, std::size_t pitch, unsigned char value, std::size_t width,
                      std::size_t rows) try {
  return fill({target, pitch, value, 1, width, rows}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D8Async(CUdeviceptr target, std::size_t pitch, unsigned char value, std::size_t width,
                           std::size_t rows, CUstream stream) try {
  return fill({target, pitch, value, 1, width, rows}, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemsetD16(CUdeviceptr target, unsigned short value, std::size_t count) try {
  return fill({target, 0, value, 2, count}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, std::size_t count, CUstream stream) try {
  return fill({target, 0, value, 2, count}, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D16(CUdeviceptr target, std::size_t pitch, unsigned short value, std::size_t width,
                       std::size_t rows) try {
  return fill({target, pitch, value, 2, width, rows}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D16Async(CUdeviceptr target, std::size_t pitch, unsigned short value, std::size_t width,
                            std::size_t rows, CUstream stream) try {
  return fill({target, pitch, value, 2, width, rows}, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemsetD32(CUdeviceptr target, unsigned value, std::size_t count) try {
  return fill({target, 0, value, 4, count}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, std::size_t count, CUstream stream) try {
  return fill({target, 0, value, 4, count}, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D32(CUdeviceptr target, std::size_t pitch, unsigned value, std::size_t width, std::size_t rows) try {
  return fill({target, pitch, value, 4, width, rows}, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH

CUresult cuMemsetD2D32Async(CUdeviceptr target, std::size_t pitch, unsigned value, std::size_t width, std::size_t rows,
                            CUstream stream) try {
  return fill({target, pitch, value, 4, width, rows}, stream, Timing::queued);
}
VMEM_EMU_CATCH
