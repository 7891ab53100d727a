// Copies and fills. One that touches no vmem memory is the driver's. One that does goes through the runtime, which splits it where
// the place of the bytes changes; of those with rows only what does not lie in HBM as a whole is split, into its rows.
#include <algorithm>

#include "base/log.hpp"
#include "gpu/handles.hpp"
#include "intercept/hidden.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/pinned.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

CUstream default_stream(bool per_thread) { return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY; }
void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Null: the driver's own call serves.
Runtime* concerned(CUdeviceptr to, CUdeviceptr from) {
  Runtime* runtime = running();
  return ours(runtime, to) || ours(runtime, from) ? runtime : nullptr;
}

CUresult unsupported(const char* what) {
  VMEM_LOG_ERROR("vmem cannot serve {}; it was refused", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// On a stream in capture.
template <class Real>
CUresult record(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, CUstream stream, Real&& real) {
  thread_local References references;
  references.begin(runtime);
  references.add(to);
  references.add(from);
  return with_memory(runtime, references, stream, "a copy in a graph", real);
}

// Where the program's own call would not end another thread's capture, this does not, either.
CUresult finish(const Runtime& runtime, CUstream stream, CUresult queued) {
  if (queued != CUDA_SUCCESS) return queued;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  return runtime.driver()->cuStreamSynchronize(stream);
}

CUresult copy_bytes(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  if (to == from) return CUDA_SUCCESS;
  auto copied = runtime.copy(pointer_to(to), pointer_to(from), bytes, stream);
  return copied ? CUDA_SUCCESS : report("a copy", copied.error());
}

// PyTorch packs a table together with what each thread block is to do: a megabyte for tensors of 256 MiB. Of larger copies only the beginning
// is searched: most are data, and the search of a MiB takes 30 us, more than the copy itself.
constexpr std::size_t kSearchedWhole = 1 << 20, kSearchedOfLarger = 64 << 10, kSearchedOfWriteCombined = 4 << 10;

std::size_t searched(const void* from, std::size_t bytes) {
  if (write_combined_memory().holds(reinterpret_cast<std::uintptr_t>(from)))
    return std::min(bytes, kSearchedOfWriteCombined);
  return bytes <= kSearchedWhole ? bytes : kSearchedOfLarger;
}

// Rows of `width` bytes each, in slices; a plain copy is one row.
struct Extent {
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t slices = 1;
  std::size_t bytes() const { return width * rows * slices; }
};

// One side of a copy with rows. The memory of an array is never ours, and nobody knows where it is.
struct Side {
  CUdeviceptr start = 0;
  bool array = false;
  std::size_t pitch = 0;     // bytes from row to row
  std::size_t height = 0;    // rows from slice to slice
  std::size_t x = 0, y = 0;  // where it starts in the first row, and in the first slice
  bool further = false;      // there are rows or slices before it
  bool sliced = false;       // slices
  bool possible = true;      // what the driver would take
  bool from_host = false;    // said to be the host's; unsaid in unified addressing
  CUdeviceptr row(std::size_t row, std::size_t slice) const { return start + (slice * height + row) * pitch; }
};

// Pointer tables made by the CPU, in copies from the host. What goes to memory that is not vmem's, as the variables of a kernel's module,
// is there for every later launch of that kernel, which does not name it.
void note_pointers(Runtime& runtime, const Side& target, const Side& from, const Extent& extent) {
  const CUdeviceptr to = target.start;
  if (from.start == 0 || to == 0) return;
  thread_local References references;
  references.begin(runtime);
  const std::size_t bytes = extent.bytes(), looked_at = searched(pointer_to(from.start), bytes);
  std::size_t left = looked_at;
  for (std::size_t slice = 0; slice < extent.slices && left > 0; ++slice) {
    for (std::size_t row = 0; row < extent.rows && left > 0; ++row) {
      const std::size_t part = std::min(left, extent.width);
      references.add_words(pointer_to(from.row(row, slice)), part);
      left -= part;
    }
  }
  if (!ours(&runtime, to)) {
    if (references.addresses().empty()) return;
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    const CUresult known = runtime.driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, to);
    if (known != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST) return;  // from host to host
    for (const std::uintptr_t base : runtime.allocations_among(references.addresses()))
      keep(runtime, base, "memory that a kernel's variables may point to");
    return;
  }
  const auto block = runtime.allocation_at(to);
  runtime::PointerTables* const tables = runtime.pointer_tables();
  if (!block || tables == nullptr) return;
  const bool small = runtime.is_small(to);
  const std::uintptr_t table = small ? block->base : to;
  const auto targets = runtime.allocations_among(references.addresses());
  // Between rows with gaps is what was there before, and what a graph copies it copies later.
  const bool dense = (extent.rows == 1 || target.pitch == extent.width) &&
                     (extent.slices == 1 || (target.pitch == extent.width && target.height == extent.rows));
  if (dense && looked_at == bytes && table == to && captures().load(std::memory_order_relaxed) == 0) {
    tables->write(table, targets, bytes);
  } else {
    tables->believe(table, targets);
  }
}

// Pointer tables that go along when memory of ours is copied.
void note_tables(const Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  if (!ours(&runtime, to) || !ours(&runtime, from)) return;
  const auto target = runtime.allocation_at(to), source = runtime.allocation_at(from);
  runtime::PointerTables* const tables = runtime.pointer_tables();
  if (!target || !source || tables == nullptr) return;
  const auto part = [&](CUdeviceptr address, std::uintptr_t base) {
    const bool small = runtime.is_small(address);
    return runtime::PointerTables::Part{small ? base : address, small};
  };
  tables->copy(part(to, target->base), part(from, source->base), bytes);
}

void note_pointers(Runtime& runtime, CUdeviceptr to, const void* from, std::size_t bytes) {
  note_pointers(runtime, Side{.start = to}, Side{.start = address_of(from)}, {.width = bytes});
}

// The same where the direction is not said: memory that the driver does not know, or knows as the host's.
void note_pointers_if_host(Runtime& runtime, const Side& to, const Side& from, const Extent& extent) {
  if (ours(&runtime, from.start)) return;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  const CUresult known = runtime.driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, from.start);
  if (known == CUDA_SUCCESS ? type == CU_MEMORYTYPE_HOST : known == CUDA_ERROR_INVALID_VALUE)
    note_pointers(runtime, to, from, extent);
}
void note_pointers_if_host(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  note_pointers_if_host(runtime, Side{.start = to}, Side{.start = from}, {.width = bytes});
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

Side side_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch, std::size_t x, std::size_t y) {
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
Side source_of(const Parameters& p) {
  return side_of(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcXInBytes, p.srcY);
}
template <class Parameters>
Side target_of(const Parameters& p) {
  return side_of(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstPitch, p.dstXInBytes, p.dstY);
}
void stack(Side& side, std::size_t height, std::size_t z, std::size_t level) {
  if (side.array) return;
  side.height = height;
  side.start += z * height * side.pitch;
  side.sliced = z != 0;
  side.further = side.further || side.sliced;
  side.possible = side.possible && level == 0;
}

// Whether all of [start, start + bytes) is one allocation's, if it begins in memory of ours.
bool lies_within(const Runtime& runtime, CUdeviceptr start, std::size_t bytes) {
  if (!ours(&runtime, start)) return true;
  const auto found = runtime.allocation_at(start);
  return found && start - found->base <= found->bytes && bytes <= found->bytes - (start - found->base);
}

// What the driver would check: a copy that cannot be made must not be made in part.
bool fits(const Runtime& runtime, const Side& side, const Extent& extent) {
  if (side.array || !side.possible) return false;
  const bool one_row = extent.rows == 1 && extent.slices == 1 && !side.further;
  if ((side.pitch != 0 || !one_row) && side.pitch < side.x + extent.width) return false;
  const bool one_slice = extent.slices == 1 && !side.sliced;
  if ((side.height != 0 || !one_slice) && side.height < side.y + extent.rows) return false;
  const CUdeviceptr last = side.row(extent.rows - 1, extent.slices - 1);
  return lies_within(runtime, side.start, last + extent.width - side.start);
}

// Both sides linear memory.
CUresult copy_rows(Runtime& runtime, const Side& to, const Side& from, const Extent& extent, CUstream stream) {
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

// `real` queues the whole on the stream; it is right as long as everything lies in HBM.
template <class Real>
CUresult copy_shape(const Side& to, const Side& from, const Extent& extent, CUstream stream, bool waits, Real&& real) {
  // Of what the driver will refuse nothing is read.
  Runtime* const noting = running();
  const bool may_bring_pointers = noting != nullptr && !ours(noting, from.start) && extent.bytes() != 0;
  if (may_bring_pointers && fits(*noting, to, extent) && fits(*noting, from, extent)) {
    if (from.from_host) {
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
  holds.hold_each();  // the copy may wait for the stream
  if (auto ready = runtime->begin_launch(references.addresses(), stream, false, holds); !ready)
    return report("a copy", ready.error());
  const bool whole = Runtime::all_in_hbm(holds);
  const bool linear = !to.array && !from.array;
  if (!whole && !linear) {
    runtime->abandon_launch(holds);
    return unsupported("a copy from or to a CUDA array while HBM is full");
  }
  CUresult queued = whole ? real() : copy_rows(*runtime, to, from, extent, stream);
  if (waits && (!whole || sync_memops_asked().load(std::memory_order_relaxed)))
    queued = finish(*runtime, stream, queued);
  auto ended = runtime->end_launch(holds);
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
  Side from = source_of(*shape), to = target_of(*shape);
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
  // Pieces end with pages: a value that began at any other place would be cut.
  if (to % element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  auto filled = runtime->fill(pointer_to(to), value, element_bytes, count * element_bytes, stream);
  return filled ? CUDA_SUCCESS : report("a fill", filled.error());
}

template <class Real>
CUresult fill_rows(CUdeviceptr to, std::size_t pitch, std::uint32_t value, std::size_t element_bytes, std::size_t width,
                   std::size_t rows, CUstream stream, Real&& real) {
  Runtime* runtime = concerned(to, 0);
  if (runtime == nullptr) return real();
  if (capturing(*runtime, stream)) return record(*runtime, to, 0, stream, real);
  if (width == 0 || rows == 0) return CUDA_SUCCESS;
  const Side side{.start = to, .pitch = rows == 1 ? 0 : pitch, .possible = pitch <= kPitchMax || rows == 1};
  const bool aligned = to % element_bytes == 0 && side.pitch % element_bytes == 0;
  if (!aligned || !fits(*runtime, side, {width * element_bytes, rows, 1})) return CUDA_ERROR_INVALID_VALUE;
  if (pitch == width * element_bytes || rows == 1) return fill(to, value, element_bytes, width * rows, stream, real);
  for (std::size_t row = 0; row < rows; ++row) {
    const CUresult filled = fill(to + row * pitch, value, element_bytes, width, stream, real);
    if (filled != CUDA_SUCCESS) return filled;
  }
  return CUDA_SUCCESS;
}

// The synchronous forms, of any shape. Device memory is left to the order of the stream, unless the program asked for more.
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

// One after the other: in which order the copies of a batch are made is left open.
CUresult copy_batch_async(Call<decltype(::cuMemcpyBatchAsync)> call, CUdeviceptr* to, CUdeviceptr* from,
                          std::size_t* bytes, std::size_t count, CUmemcpyAttributes* attributes,
                          std::size_t* first_with, std::size_t attribute_count, CUstream stream) {
  bool any = false;
  for (std::size_t i = 0; to != nullptr && from != nullptr && bytes != nullptr && i < count; ++i) {
    any = any || concerned(to[i], from[i]) != nullptr;
    if (Runtime* noting = running()) note_pointers_if_host(*noting, to[i], from[i], bytes[i]);
  }
  if (!any || bytes == nullptr || attributes == nullptr || first_with == nullptr || attribute_count == 0)
    return call(to, from, bytes, count, attributes, first_with, attribute_count, stream);
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
  // The program may write over such a source, or free it, when this returns.
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
