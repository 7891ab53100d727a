// Copies and fills. A call that touches no vmem memory goes to the driver. Other calls go through
// the runtime, which splits them where the tier of the bytes changes. A copy of two or three
// dimensions goes to the driver in one call if all of it is in HBM, otherwise row by row.
#include <algorithm>

#include "base/log.hpp"
#include "gpu/handles.hpp"
#include "intercept/copied_tables.hpp"
#include "intercept/hidden.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

CUstream default_stream(bool per_thread) { return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY; }

// Null: no vmem memory is involved, so the driver's own call serves.
Runtime* concerned(CUdeviceptr to, CUdeviceptr from) {
  Runtime* runtime = running();
  return ours(runtime, to) || ours(runtime, from) ? runtime : nullptr;
}

CUresult unsupported(const char* what) {
  VMEM_LOG_ERROR("vmem cannot serve {}; it was refused", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// For a stream in capture: the driver records the copy into the graph.
template <class Real>
CUresult record(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, CUstream stream, Real&& real) {
  thread_local References references;
  references.begin(runtime);
  references.add(to);
  references.add(from);
  return with_memory(runtime, references, stream, "a copy in a graph", real);
}

// Relaxed capture mode: the program's own call would not invalidate another thread's capture, so
// this wait must not either.
CUresult finish(const Runtime& runtime, CUstream stream, CUresult queued) {
  if (queued != CUDA_SUCCESS) return queued;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  return runtime.driver()->cuStreamSynchronize(stream);
}

CUresult copy_bytes(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  if (to == from) return CUDA_SUCCESS;
  auto copied = runtime.copies().copy(pointer_to(to), pointer_to(from), bytes, stream);
  return copied ? CUDA_SUCCESS : report("a copy", copied.error());
}

template <class Real>
CUresult copy_now(bool per_thread, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, Real&& real) {
  const CUstream stream = default_stream(per_thread);
  Runtime* runtime = concerned(to, from);
  if (runtime == nullptr) return real();
  note_tables(*runtime, to, from, bytes);
  if (capturing(*runtime, stream)) return record(*runtime, to, from, stream, real);
  return finish(*runtime, stream, copy_bytes(*runtime, to, from, bytes, stream));
}

template <class Real>
CUresult copy_later(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream, Real&& real) {
  Runtime* runtime = concerned(to, from);
  if (runtime == nullptr) return real();
  note_tables(*runtime, to, from, bytes);
  if (capturing(*runtime, stream)) return record(*runtime, to, from, stream, real);
  return copy_bytes(*runtime, to, from, bytes, stream);
}

constexpr std::size_t kPitchMax = 0x7fffffff;

CopySide side_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch, std::size_t x,
                 std::size_t y) {
  if (type == CU_MEMORYTYPE_ARRAY) return {.array = true};
  const bool is_host = type == CU_MEMORYTYPE_HOST;
  const CUdeviceptr base = is_host ? address_of(host) : device;
  const bool known = is_host || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
  return {.start = base + y * pitch + x,
          .pitch = pitch,
          .x = x,
          .y = y,
          .further = y != 0,
          .possible = known && base != 0 && pitch <= kPitchMax,
          .from_host = is_host};
}
template <class Parameters>
CopySide source_of(const Parameters& p) {
  return side_of(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcXInBytes, p.srcY);
}
template <class Parameters>
CopySide target_of(const Parameters& p) {
  return side_of(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstPitch, p.dstXInBytes, p.dstY);
}
void stack(CopySide& side, std::size_t height, std::size_t z, std::size_t level) {
  if (side.array) return;
  side.height = height;
  side.start += z * height * side.pitch;
  side.sliced = z != 0;
  side.further = side.further || side.sliced;
  side.possible = side.possible && level == 0;
}

// Whether [start, start + bytes) lies in one allocation. True if `start` is not vmem's.
bool lies_within(const Runtime& runtime, CUdeviceptr start, std::size_t bytes) {
  if (!ours(&runtime, start)) return true;
  const auto found = runtime.addresses().allocation_at(start);
  return found && start - found->base <= found->bytes && bytes <= found->bytes - (start - found->base);
}

// Repeats the driver's checks: an invalid copy must fail as a whole, not in part.
bool fits(const Runtime& runtime, const CopySide& side, const CopyExtent& extent) {
  if (side.array || !side.possible) return false;
  const bool one_row = extent.rows == 1 && extent.slices == 1 && !side.further;
  if ((side.pitch != 0 || !one_row) && side.pitch < side.x + extent.width) return false;
  const bool one_slice = extent.slices == 1 && !side.sliced;
  if ((side.height != 0 || !one_slice) && side.height < side.y + extent.rows) return false;
  const CUdeviceptr last = side.row(extent.rows - 1, extent.slices - 1);
  return lies_within(runtime, side.start, last + extent.width - side.start);
}

// REQUIRES: both sides are linear memory.
CUresult copy_rows(Runtime& runtime, const CopySide& to, const CopySide& from, const CopyExtent& extent,
                   CUstream stream) {
  if (extent.bytes() == 0) return CUDA_SUCCESS;
  if (!fits(runtime, to, extent) || !fits(runtime, from, extent)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t slice = 0; slice < extent.slices; ++slice) {
    for (std::size_t row = 0; row < extent.rows; ++row) {
      const CUresult copied = copy_bytes(runtime, to.row(row, slice), from.row(row, slice), extent.width, stream);
      if (copied != CUDA_SUCCESS) return copied;
    }
  }
  return CUDA_SUCCESS;
}

// `real` queues the whole copy on the stream; valid only while everything lies in HBM.
template <class Real>
CUresult copy_shape(const CopySide& to, const CopySide& from, const CopyExtent& extent, CUstream stream, bool waits,
                    Real&& real) {
  // Looks for pointer tables only if the driver will accept the copy.
  Runtime* const noting = running();
  const bool may_bring_pointers = noting != nullptr && extent.bytes() != 0;
  if (may_bring_pointers && fits(*noting, to, extent) && fits(*noting, from, extent)) {
    if (ours(noting, from.start)) {
      note_tables(*noting, to, from, extent);
    } else if (from.from_host) {
      note_pointers(*noting, to, from, extent);
    } else {
      note_pointers_if_host(*noting, to, from, extent);
    }
  }
  Runtime* runtime = concerned(to.start, from.start);
  if (runtime == nullptr) return real();
  if (capturing(*runtime, stream)) return record(*runtime, to.start, from.start, stream, real);
  thread_local References references;
  references.begin(*runtime);
  references.add(to.start);
  references.add(from.start);
  thread_local runtime::LaunchHolds holds;
  holds.hold_separately = true;  // the copy may wait for the stream
  const bool linear = !to.array && !from.array;
  holds.needs_hbm = !linear;
  holds.what = traced_as(*runtime, nullptr, "a copy");
  if (auto ready = runtime->launches().begin(references.addresses(), stream, false, holds); !ready)
    return report("a copy", ready.error());
  runtime::HeldLaunch held(runtime->launches(), holds);
  const bool whole = runtime::all_in_hbm(holds);
  if (!whole && !linear)
    return unsupported(
        "a copy from or to a CUDA array while HBM is full, or while other work uses its memory in place");
  held.queued();
  CUresult queued = whole ? real() : copy_rows(*runtime, to, from, extent, stream);
  if (waits && (!whole || sync_memops_asked().load(std::memory_order_relaxed)))
    queued = finish(*runtime, stream, queued);
  auto ended = held.end();
  return queued != CUDA_SUCCESS || ended ? queued : report("a copy", ended.error());
}

template <class Real>
CUresult copy_shape_2d(const CUDA_MEMCPY2D* shape, CUstream stream, bool waits, Real&& real) {
  if (shape == nullptr) return real();
  return copy_shape(target_of(*shape), source_of(*shape), {shape->WidthInBytes, shape->Height, 1}, stream, waits, real);
}

template <class Real>
CUresult copy_shape_3d(const CUDA_MEMCPY3D* shape, CUstream stream, bool waits, Real&& real) {
  if (shape == nullptr) return real();
  CopySide from = source_of(*shape), to = target_of(*shape);
  stack(from, shape->srcHeight, shape->srcZ, shape->srcLOD);
  stack(to, shape->dstHeight, shape->dstZ, shape->dstLOD);
  to.possible = to.possible && shape->reserved0 == nullptr && shape->reserved1 == nullptr;
  return copy_shape(to, from, {shape->WidthInBytes, shape->Height, shape->Depth}, stream, waits, real);
}

template <class Real>
CUresult fill(CUdeviceptr to, std::uint32_t value, std::size_t element_bytes, std::size_t count, CUstream stream,
              Real&& real) {
  Runtime* runtime = concerned(to, 0);
  if (runtime == nullptr) return real();
  if (capturing(*runtime, stream)) return record(*runtime, to, 0, stream, real);
  // Pieces end at page boundaries: an unaligned value would be cut.
  if (to % element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  auto filled = runtime->copies().fill(pointer_to(to), value, element_bytes, count * element_bytes, stream);
  return filled ? CUDA_SUCCESS : report("a fill", filled.error());
}

template <class Real>
CUresult fill_rows(CUdeviceptr to, std::size_t pitch, std::uint32_t value, std::size_t element_bytes, std::size_t width,
                   std::size_t rows, CUstream stream, Real&& real) {
  Runtime* runtime = concerned(to, 0);
  if (runtime == nullptr) return real();
  if (capturing(*runtime, stream)) return record(*runtime, to, 0, stream, real);
  if (width == 0 || rows == 0) return CUDA_SUCCESS;
  const CopySide side{.start = to, .pitch = rows == 1 ? 0 : pitch, .possible = pitch <= kPitchMax || rows == 1};
  const bool aligned = to % element_bytes == 0 && side.pitch % element_bytes == 0;
  if (!aligned || !fits(*runtime, side, {width * element_bytes, rows, 1})) return CUDA_ERROR_INVALID_VALUE;
  if (pitch == width * element_bytes || rows == 1) return fill(to, value, element_bytes, width * rows, stream, real);
  for (std::size_t row = 0; row < rows; ++row) {
    const CUresult filled = fill(to + row * pitch, value, element_bytes, width, stream, real);
    if (filled != CUDA_SUCCESS) return filled;
  }
  return CUDA_SUCCESS;
}

// The synchronous fills, of any shape. As in CUDA, a fill of device memory is only stream-ordered,
// unless the program asked for synchronous memory operations.
template <class Real>
CUresult fill_now(bool per_thread, CUdeviceptr to, std::size_t pitch, std::uint32_t value, std::size_t element_bytes,
                  std::size_t width, std::size_t rows, Real&& real) {
  const CUstream stream = default_stream(per_thread);
  const CUresult filled = fill_rows(to, pitch, value, element_bytes, width, rows, stream, real);
  Runtime* runtime = concerned(to, 0);
  if (runtime == nullptr || !sync_memops_asked().load(std::memory_order_relaxed) || capturing(*runtime, stream))
    return filled;
  return finish(*runtime, stream, filled);
}

}  // namespace

std::atomic<bool>& sync_memops_asked() {
  static constinit std::atomic<bool> asked{false};
  return asked;
}

CUresult copy(Call<decltype(::cuMemcpy)> call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  if (Runtime* runtime = running()) note_pointers_if_host(*runtime, to, from, bytes);
  return copy_now(call.per_thread, to, from, bytes, [&] { return call(to, from, bytes); });
}
CUresult copy_async(Call<decltype(::cuMemcpyAsync)> call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                    CUstream stream) {
  if (Runtime* runtime = running()) note_pointers_if_host(*runtime, to, from, bytes);
  return copy_later(to, from, bytes, call.stream(stream), [&] { return call(to, from, bytes, stream); });
}
CUresult copy_from_host(Call<decltype(::cuMemcpyHtoD)> call, CUdeviceptr to, const void* from, std::size_t bytes) {
  if (Runtime* runtime = running()) note_pointers(*runtime, to, from, bytes);
  return copy_now(call.per_thread, to, address_of(from), bytes, [&] { return call(to, from, bytes); });
}
CUresult copy_from_host_async(Call<decltype(::cuMemcpyHtoDAsync)> call, CUdeviceptr to, const void* from,
                              std::size_t bytes, CUstream stream) {
  if (Runtime* runtime = running()) note_pointers(*runtime, to, from, bytes);
  return copy_later(to, address_of(from), bytes, call.stream(stream), [&] { return call(to, from, bytes, stream); });
}
CUresult copy_to_host(Call<decltype(::cuMemcpyDtoH)> call, void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_now(call.per_thread, address_of(to), from, bytes, [&] { return call(to, from, bytes); });
}
CUresult copy_to_host_async(Call<decltype(::cuMemcpyDtoHAsync)> call, void* to, CUdeviceptr from, std::size_t bytes,
                            CUstream stream) {
  return copy_later(address_of(to), from, bytes, call.stream(stream), [&] { return call(to, from, bytes, stream); });
}
CUresult copy_device(Call<decltype(::cuMemcpyDtoD)> call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_now(call.per_thread, to, from, bytes, [&] { return call(to, from, bytes); });
}
CUresult copy_device_async(Call<decltype(::cuMemcpyDtoDAsync)> call, CUdeviceptr to, CUdeviceptr from,
                           std::size_t bytes, CUstream stream) {
  return copy_later(to, from, bytes, call.stream(stream), [&] { return call(to, from, bytes, stream); });
}
CUresult copy_peer(Call<decltype(::cuMemcpyPeer)> call, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                   CUcontext from_context, std::size_t bytes) {
  return copy_now(call.per_thread, to, from, bytes, [&] { return call(to, to_context, from, from_context, bytes); });
}
CUresult copy_peer_async(Call<decltype(::cuMemcpyPeerAsync)> call, CUdeviceptr to, CUcontext to_context,
                         CUdeviceptr from, CUcontext from_context, std::size_t bytes, CUstream stream) {
  return copy_later(to, from, bytes, call.stream(stream),
                    [&] { return call(to, to_context, from, from_context, bytes, stream); });
}

CUresult copy_2d(Call<decltype(::cuMemcpy2D)> call, const CUDA_MEMCPY2D* shape) {
  return copy_shape_2d(shape, default_stream(call.per_thread), true, [&] { return call(shape); });
}
CUresult copy_2d_unaligned(Call<decltype(::cuMemcpy2DUnaligned)> call, const CUDA_MEMCPY2D* shape) {
  return copy_shape_2d(shape, default_stream(call.per_thread), true, [&] { return call(shape); });
}
CUresult copy_2d_async(Call<decltype(::cuMemcpy2DAsync)> call, const CUDA_MEMCPY2D* shape, CUstream stream) {
  return copy_shape_2d(shape, call.stream(stream), false, [&] { return call(shape, stream); });
}
CUresult copy_3d(Call<decltype(::cuMemcpy3D)> call, const CUDA_MEMCPY3D* shape) {
  return copy_shape_3d(shape, default_stream(call.per_thread), true, [&] { return call(shape); });
}
CUresult copy_3d_async(Call<decltype(::cuMemcpy3DAsync)> call, const CUDA_MEMCPY3D* shape, CUstream stream) {
  return copy_shape_3d(shape, call.stream(stream), false, [&] { return call(shape, stream); });
}

CUresult copy_to_array(Call<decltype(::cuMemcpyDtoA)> call, CUarray to, std::size_t offset, CUdeviceptr from,
                       std::size_t bytes) {
  return copy_shape({.array = true}, {.start = from}, {bytes, 1, 1}, default_stream(call.per_thread), true,
                    [&] { return call(to, offset, from, bytes); });
}
CUresult copy_from_array(Call<decltype(::cuMemcpyAtoD)> call, CUdeviceptr to, CUarray from, std::size_t offset,
                         std::size_t bytes) {
  return copy_shape({.start = to}, {.array = true}, {bytes, 1, 1}, default_stream(call.per_thread), true,
                    [&] { return call(to, from, offset, bytes); });
}

// One copy after the other: CUDA leaves the order within a batch open.
CUresult copy_batch_async(Call<decltype(::cuMemcpyBatchAsync)> call, CUdeviceptr* to, CUdeviceptr* from,
                          std::size_t* bytes, std::size_t count, CUmemcpyAttributes* attributes,
                          std::size_t* first_with, std::size_t attribute_count, CUstream stream) {
  bool any = false;
  for (std::size_t i = 0; to != nullptr && from != nullptr && bytes != nullptr && i < count; ++i) {
    any = any || concerned(to[i], from[i]) != nullptr;
    if (Runtime* noting = running()) note_pointers_if_host(*noting, to[i], from[i], bytes[i]);
  }
  if (!any) return call(to, from, bytes, count, attributes, first_with, attribute_count, stream);
  // Drivers for CUDA 13.0 refuse this, so vmem does, too. It could not forward the call to a driver
  // that accepts it: the pages are not held.
  if (attributes == nullptr || first_with == nullptr || attribute_count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::size_t with = 0;
  bool read_at_once = false;
  for (std::size_t i = 0; i < count; ++i) {
    while (with + 1 < attribute_count && first_with[with + 1] <= i) ++with;
    const CUresult copied = copy_later(to[i], from[i], bytes[i], call.stream(stream), [&] {
      std::size_t first = 0;
      return call(&to[i], &from[i], &bytes[i], 1, &attributes[with], &first, 1, stream);
    });
    if (copied != CUDA_SUCCESS) return copied;
    read_at_once = read_at_once || attributes[with].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  }
  // The program may overwrite or free such a source once this call returns.
  const Runtime* runtime = running();
  if (!read_at_once || runtime == nullptr || capturing(*runtime, call.stream(stream))) return CUDA_SUCCESS;
  return finish(*runtime, call.stream(stream), CUDA_SUCCESS);
}
CUresult copy_3d_batch_async(Call<decltype(::cuMemcpy3DBatchAsync)> call, std::size_t count,
                             CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags, CUstream stream) {
  const auto address = [](const CUmemcpy3DOperand& side) {
    return side.type == CU_MEMCPY_OPERAND_TYPE_POINTER ? side.op.ptr.ptr : 0;
  };
  for (std::size_t i = 0; operations != nullptr && i < count; ++i) {
    if (concerned(address(operations[i].dst), address(operations[i].src)) != nullptr)
      return unsupported("a batch of three-dimensional copies");
  }
  return call(count, operations, flags, stream);
}
CUresult copy_3d_peer(Call<decltype(::cuMemcpy3DPeer)> call, const CUDA_MEMCPY3D_PEER* shape) {
  if (shape != nullptr && concerned(target_of(*shape).start, source_of(*shape).start) != nullptr)
    return unsupported("a three-dimensional copy between devices");
  return call(shape);
}
CUresult copy_3d_peer_async(Call<decltype(::cuMemcpy3DPeerAsync)> call, const CUDA_MEMCPY3D_PEER* shape,
                            CUstream stream) {
  if (shape != nullptr && concerned(target_of(*shape).start, source_of(*shape).start) != nullptr)
    return unsupported("a three-dimensional copy between devices");
  return call(shape, stream);
}

CUresult fill_8(Call<decltype(::cuMemsetD8)> call, CUdeviceptr to, unsigned char value, std::size_t count) {
  return fill_now(call.per_thread, to, 0, value, 1, count, 1, [&] { return call(to, value, count); });
}
CUresult fill_16(Call<decltype(::cuMemsetD16)> call, CUdeviceptr to, unsigned short value, std::size_t count) {
  return fill_now(call.per_thread, to, 0, value, 2, count, 1, [&] { return call(to, value, count); });
}
CUresult fill_32(Call<decltype(::cuMemsetD32)> call, CUdeviceptr to, unsigned value, std::size_t count) {
  return fill_now(call.per_thread, to, 0, value, 4, count, 1, [&] { return call(to, value, count); });
}
CUresult fill_8_async(Call<decltype(::cuMemsetD8Async)> call, CUdeviceptr to, unsigned char value, std::size_t count,
                      CUstream stream) {
  return fill(to, value, 1, count, call.stream(stream), [&] { return call(to, value, count, stream); });
}
CUresult fill_16_async(Call<decltype(::cuMemsetD16Async)> call, CUdeviceptr to, unsigned short value, std::size_t count,
                       CUstream stream) {
  return fill(to, value, 2, count, call.stream(stream), [&] { return call(to, value, count, stream); });
}
CUresult fill_32_async(Call<decltype(::cuMemsetD32Async)> call, CUdeviceptr to, unsigned value, std::size_t count,
                       CUstream stream) {
  return fill(to, value, 4, count, call.stream(stream), [&] { return call(to, value, count, stream); });
}
CUresult fill_2d_8(Call<decltype(::cuMemsetD2D8)> call, CUdeviceptr to, std::size_t pitch, unsigned char value,
                   std::size_t width, std::size_t rows) {
  return fill_now(call.per_thread, to, pitch, value, 1, width, rows,
                  [&] { return call(to, pitch, value, width, rows); });
}
CUresult fill_2d_16(Call<decltype(::cuMemsetD2D16)> call, CUdeviceptr to, std::size_t pitch, unsigned short value,
                    std::size_t width, std::size_t rows) {
  return fill_now(call.per_thread, to, pitch, value, 2, width, rows,
                  [&] { return call(to, pitch, value, width, rows); });
}
CUresult fill_2d_32(Call<decltype(::cuMemsetD2D32)> call, CUdeviceptr to, std::size_t pitch, unsigned value,
                    std::size_t width, std::size_t rows) {
  return fill_now(call.per_thread, to, pitch, value, 4, width, rows,
                  [&] { return call(to, pitch, value, width, rows); });
}
CUresult fill_2d_8_async(Call<decltype(::cuMemsetD2D8Async)> call, CUdeviceptr to, std::size_t pitch,
                         unsigned char value, std::size_t width, std::size_t rows, CUstream stream) {
  return fill_rows(to, pitch, value, 1, width, rows, call.stream(stream),
                   [&] { return call(to, pitch, value, width, rows, stream); });
}
CUresult fill_2d_16_async(Call<decltype(::cuMemsetD2D16Async)> call, CUdeviceptr to, std::size_t pitch,
                          unsigned short value, std::size_t width, std::size_t rows, CUstream stream) {
  return fill_rows(to, pitch, value, 2, width, rows, call.stream(stream),
                   [&] { return call(to, pitch, value, width, rows, stream); });
}
CUresult fill_2d_32_async(Call<decltype(::cuMemsetD2D32Async)> call, CUdeviceptr to, std::size_t pitch, unsigned value,
                          std::size_t width, std::size_t rows, CUstream stream) {
  return fill_rows(to, pitch, value, 4, width, rows, call.stream(stream),
                   [&] { return call(to, pitch, value, width, rows, stream); });
}

}  // namespace vmem::intercept
