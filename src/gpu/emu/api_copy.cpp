// Copies and fills.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/copies.hpp"

using namespace vmem::emu;

namespace {

enum class Direction { unified, host_to_device, device_to_host, device_to_device };

// The real driver crashes inside some copies; so does this one, but says why.
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

// Memory that is not there, or not accessible, is refused when the work is queued. Where the driver has to find out
// what an address is, it takes one that is not mapped for the host's and crashes.
CUresult check_end(std::uint64_t address, std::size_t bytes, int device, Access wanted, Direction direction) {
  AddressSpace& space = machine().addresses();
  if (!space.contains(address) || space.accessible(address, bytes, device, wanted)) return CUDA_SUCCESS;
  if (direction == Direction::unified && !space.find(address))
    crash("a copy names", address, bytes,
          ", where nothing is mapped; the CUDA driver takes it for host memory and crashes");
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult check_ends(const Transfer& transfer, Direction direction) {
  VMEM_EMU_TRY(check_end(transfer.target, transfer.bytes, transfer.target_device, Access::read_write, direction));
  return check_end(transfer.source, transfer.bytes, transfer.source_device, Access::read, direction);
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

// A copy with pageable memory is over when the call returns.
CUresult finish_pageable(Stream& stream) {
  if (captures::status(stream) != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  stream.wait(stream.last_ticket());
  return stream.context()->usable();
}

CUresult copy(Transfer transfer, Direction direction, CUstream handle, const Context* target_context = nullptr,
              const Context* source_context = nullptr) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (transfer.bytes == 0) return CUDA_SUCCESS;
  if (transfer.target == 0 || transfer.source == 0) return CUDA_ERROR_INVALID_VALUE;
  check_mixed(transfer, direction);
  const auto device_of = [&](const Context* context) {
    return context ? context->device().ordinal : stream->context()->device().ordinal;
  };
  transfer.target_device = device_of(target_context);
  transfer.source_device = device_of(source_context);
  VMEM_EMU_TRY(check_ends(transfer, direction));
  VMEM_EMU_TRY(submit(
      stream, [context = stream->context(), transfer] { run_transfer(*context, transfer, FixedCost::charged); }));
  return is_pageable(transfer) ? finish_pageable(*stream) : CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr target, std::uint32_t value, unsigned value_bytes, std::size_t count, CUstream handle) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const std::size_t bytes = count * value_bytes;
  if (count == 0) return CUDA_SUCCESS;
  if (target == 0 || target % value_bytes != 0 || bytes / value_bytes != count) return CUDA_ERROR_INVALID_VALUE;
  if (reach_of(target) == Reach::pageable) return CUDA_ERROR_INVALID_VALUE;
  const RangeContents contents = machine().addresses().contents(target, bytes);
  if (contents.device && contents.host_accessible) return CUDA_ERROR_INVALID_VALUE;
  const int device = stream->context()->device().ordinal;
  VMEM_EMU_TRY(check_end(target, bytes, device, Access::read_write, Direction::host_to_device));
  return submit(stream, [context = stream->context(), target, value, value_bytes, bytes] {
    run_fill(*context, target, value, value_bytes, bytes);
  });
}

std::uint64_t as_address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// Attribute i holds for the copies from attrsIdxs[i] on.
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

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy({target, source, bytes}, Direction::unified, stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) {
  return copy({target, as_address(source), bytes}, Direction::host_to_device, stream);
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy({as_address(target), source, bytes}, Direction::device_to_host, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy({target, source, bytes}, Direction::device_to_device, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_handle, CUdeviceptr source, CUcontext source_handle,
                           std::size_t bytes, CUstream stream) {
  VMEM_EMU_TRY(enter());
  const auto target_context = machine().contexts.find(target_handle);
  const auto source_context = machine().contexts.find(source_handle);
  if (!target_context || !source_context) return CUDA_ERROR_INVALID_CONTEXT;
  return copy({target, source, bytes}, Direction::device_to_device, stream, target_context.get(), source_context.get());
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* indices, std::size_t attribute_count,
                            CUstream handle) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (stream->legacy() || !targets || !sources || !sizes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_batch_attributes(attributes, indices, attribute_count, count));
  std::vector<Transfer> transfers;
  bool synchronous = asks_for_immediate_reads(attributes, attribute_count);
  const int device = stream->context()->device().ordinal;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0 || targets[i] == 0 || sources[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    transfers.push_back({targets[i], sources[i], sizes[i], device, device});
    check_mixed(transfers.back(), Direction::unified);
    VMEM_EMU_TRY(check_ends(transfers.back(), Direction::unified));
    synchronous = synchronous || is_pageable(transfers.back());
  }
  // The point of a batch is that its copies share the fixed cost.
  VMEM_EMU_TRY(submit(stream, [context = stream->context(), transfers = std::move(transfers)] {
    FixedCost fixed_cost = FixedCost::charged;
    for (const Transfer& transfer : transfers)
      run_transfer(*context, transfer, std::exchange(fixed_cost, FixedCost::waived));
  }));
  return synchronous ? finish_pageable(*stream) : CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, std::size_t count, CUstream stream) {
  return fill(target, value, 1, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, std::size_t count, CUstream stream) {
  return fill(target, value, 2, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, std::size_t count, CUstream stream) {
  return fill(target, value, 4, count, stream);
}
