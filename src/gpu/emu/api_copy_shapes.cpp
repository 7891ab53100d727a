// Copies with rows, and copies of arrays. Each is split into copies of its rows, which run in
// sequence as one operation.
#include "gpu/emu/api_copy.hpp"
#include "gpu/emu/capture.hpp"

using namespace vmem::emu;

namespace {

struct Extent {
  std::size_t width = 0;  // bytes
  std::size_t rows = 0;
  std::size_t slices = 1;
};

// One side of a copy as the program describes it, in bytes and rows.
struct Side {
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  std::uint64_t address = 0;
  CUarray array = nullptr;
  std::size_t x = 0, y = 0, z = 0;
  std::size_t pitch = 0, height = 0;
  int device = 0;
};

// The addresses of a side's rows.
struct Rows {
  std::uint64_t first = 0;
  std::size_t pitch = 0;
  std::size_t slice_bytes = 0;
  int device = 0;
};

CUresult find_array_rows(const Side& side, const Extent& extent, Rows& rows) {
  const auto array = machine().arrays.find(side.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  const std::size_t row_bytes = array->row_bytes();
  if (side.x % array->element() != 0 || extent.width % array->element() != 0) return CUDA_ERROR_INVALID_VALUE;
  if (side.x > row_bytes || extent.width > row_bytes - side.x) return CUDA_ERROR_INVALID_VALUE;
  if (side.y > array->rows() || extent.rows > array->rows() - side.y) return CUDA_ERROR_INVALID_VALUE;
  if (side.z != 0 || extent.slices != 1) return CUDA_ERROR_INVALID_VALUE;
  rows = {array->memory + side.y * row_bytes + side.x, row_bytes, 0, array->context->device().ordinal};
  return CUDA_SUCCESS;
}

// A pitch of 0 is valid for a single row, a height of 0 for a single slice.
CUresult find_linear_rows(const Side& side, const Extent& extent, Rows& rows) {
  if (side.type == CU_MEMORYTYPE_DEVICE && reach_of(side.address) == Reach::pageable) return CUDA_ERROR_INVALID_VALUE;
  if (side.address == 0 || side.pitch > pitch_max) return CUDA_ERROR_INVALID_VALUE;
  const bool one_row = extent.rows == 1 && extent.slices == 1 && side.y == 0 && side.z == 0;
  if ((side.pitch != 0 || !one_row) && side.pitch < side.x + extent.width) return CUDA_ERROR_INVALID_VALUE;
  const bool one_slice = extent.slices == 1 && side.z == 0;
  if ((side.height != 0 || !one_slice) && side.height < side.y + extent.rows) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t slice_bytes = side.pitch * side.height;
  rows = {side.address + side.z * slice_bytes + side.y * side.pitch + side.x, side.pitch, slice_bytes, side.device};
  return CUDA_SUCCESS;
}

CUresult find_rows(const Side& side, const Extent& extent, Rows& rows) {
  switch (side.type) {
    case CU_MEMORYTYPE_ARRAY:
      return find_array_rows(side, extent, rows);
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      return find_linear_rows(side, extent, rows);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

Direction direction_of(const Side& target, const Side& source) {
  if (target.type == CU_MEMORYTYPE_UNIFIED || source.type == CU_MEMORYTYPE_UNIFIED) return Direction::unified;
  if (target.type == CU_MEMORYTYPE_HOST) return Direction::device_to_host;
  return source.type == CU_MEMORYTYPE_HOST ? Direction::host_to_device : Direction::device_to_device;
}

// Adds the copies of the rows; adjacent rows become one copy per slice.
CUresult add_transfers(const Side& target, const Side& source, Extent extent, std::vector<Transfer>& transfers) {
  if (extent.width == 0 || extent.rows == 0 || extent.slices == 0) return CUDA_SUCCESS;
  Rows to, from;
  VMEM_EMU_TRY(find_rows(target, extent, to));
  VMEM_EMU_TRY(find_rows(source, extent, from));
  if (to.pitch == extent.width && from.pitch == extent.width)
    extent = {std::exchange(extent.rows, 1) * extent.width, 1, extent.slices};
  const Direction direction = direction_of(target, source);
  for (std::size_t slice = 0; slice < extent.slices; ++slice)
    for (std::size_t row = 0; row < extent.rows; ++row) {
      const Transfer transfer{to.first + slice * to.slice_bytes + row * to.pitch,
                              from.first + slice * from.slice_bytes + row * from.pitch, extent.width, to.device,
                              from.device};
      VMEM_EMU_TRY(check_transfer(transfer, direction));
      transfers.push_back(transfer);
    }
  return CUDA_SUCCESS;
}

// In the form of a graph node's parameters.
CUDA_MEMCPY3D parameters_of(const Side& target, const Side& source, const Extent& extent) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = target.type;
  p.dstDevice = target.type == CU_MEMORYTYPE_HOST ? 0 : target.address;
  p.dstHost = target.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<void*>(target.address) : nullptr;
  p.dstArray = target.array;
  p.dstXInBytes = target.x, p.dstY = target.y, p.dstZ = target.z;
  p.dstPitch = target.pitch, p.dstHeight = target.height;
  p.srcMemoryType = source.type;
  p.srcDevice = source.type == CU_MEMORYTYPE_HOST ? 0 : source.address;
  p.srcHost = source.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<const void*>(source.address) : nullptr;
  p.srcArray = source.array;
  p.srcXInBytes = source.x, p.srcY = source.y, p.srcZ = source.z;
  p.srcPitch = source.pitch, p.srcHeight = source.height;
  p.WidthInBytes = extent.width, p.Height = extent.rows, p.Depth = extent.slices;
  return p;
}

CUresult copy_shape(const Side& target, const Side& source, const Extent& extent, const std::shared_ptr<Stream>& stream,
                    Timing timing) {
  MemcpyWork work{stream->context(), parameters_of(target, source, extent), {}};
  VMEM_EMU_TRY(add_transfers(target, source, extent, work.transfers));
  return queue_copy(stream, std::move(work), direction_of(target, source), timing);
}

template <class Parameters>
Side source_of(const Parameters& p, int device) {
  const std::uint64_t address = p.srcMemoryType == CU_MEMORYTYPE_HOST ? as_address(p.srcHost) : p.srcDevice;
  return {p.srcMemoryType, address, p.srcArray, p.srcXInBytes, p.srcY, 0, p.srcPitch, 0, device};
}

template <class Parameters>
Side target_of(const Parameters& p, int device) {
  const std::uint64_t address = p.dstMemoryType == CU_MEMORYTYPE_HOST ? as_address(p.dstHost) : p.dstDevice;
  return {p.dstMemoryType, address, p.dstArray, p.dstXInBytes, p.dstY, 0, p.dstPitch, 0, device};
}

CUresult copy_2d(const CUDA_MEMCPY2D* shape, CUstream handle, Timing timing) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!shape) return CUDA_ERROR_INVALID_VALUE;
  const int device = stream->context()->device().ordinal;
  return copy_shape(target_of(*shape, device), source_of(*shape, device), {shape->WidthInBytes, shape->Height, 1},
                    stream, timing);
}

// Takes either 3D structure. Arrays have one level here.
template <class Parameters>
CUresult copy_3d(const Parameters& shape, int target_device, int source_device, const std::shared_ptr<Stream>& stream,
                 Timing timing) {
  if (shape.srcLOD != 0 || shape.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  Side target = target_of(shape, target_device), source = source_of(shape, source_device);
  target.z = shape.dstZ;
  target.height = shape.dstHeight;
  source.z = shape.srcZ;
  source.height = shape.srcHeight;
  return copy_shape(target, source, {shape.WidthInBytes, shape.Height, shape.Depth}, stream, timing);
}

CUresult copy_3d(const CUDA_MEMCPY3D* shape, CUstream handle, Timing timing) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!shape || shape->reserved0 || shape->reserved1) return CUDA_ERROR_INVALID_VALUE;
  const int device = stream->context()->device().ordinal;
  return copy_3d(*shape, device, device, stream, timing);
}

// Arrays and host memory need no context handle.
CUresult device_of(CUmemorytype type, CUcontext handle, int& device) {
  if (type == CU_MEMORYTYPE_ARRAY || type == CU_MEMORYTYPE_HOST) return CUDA_SUCCESS;
  const auto context = machine().contexts.find(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  device = context->device().ordinal;
  return CUDA_SUCCESS;
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* shape, CUstream handle, Timing timing) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!shape) return CUDA_ERROR_INVALID_VALUE;
  int target_device = stream->context()->device().ordinal, source_device = target_device;
  VMEM_EMU_TRY(device_of(shape->dstMemoryType, shape->dstContext, target_device));
  VMEM_EMU_TRY(device_of(shape->srcMemoryType, shape->srcContext, source_device));
  return copy_3d(*shape, target_device, source_device, stream, timing);
}

// Bytes per element: 1 without arrays. 0: an array is unknown, or two arrays' elements differ in
// size.
std::size_t elements_of(const CUDA_MEMCPY3D_BATCH_OP& operation) {
  const auto of = [](const CUmemcpy3DOperand& side) -> std::size_t {
    if (side.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return 1;
    const auto array = machine().arrays.find(side.op.array.array);
    return array ? array->element() : 0;
  };
  const std::size_t target = of(operation.dst), source = of(operation.src);
  const bool both = operation.dst.type == operation.src.type;
  return target == 0 || source == 0 || (both && target != source) ? 0 : target * (both ? 1 : source);
}

CUresult side_of(const CUmemcpy3DOperand& operand, const CUextent3D& extent, std::size_t element, int device,
                 Side& side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const auto& [array, offset] = operand.op.array;
    side = {CU_MEMORYTYPE_ARRAY, 0, array, offset.x * element, offset.y, offset.z, 0, 0, device};
    return CUDA_SUCCESS;
  }
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& pointer = operand.op.ptr;
  if (pointer.rowLength != 0 && pointer.rowLength < extent.width) return CUDA_ERROR_INVALID_VALUE;
  if (pointer.layerHeight != 0 && pointer.layerHeight < extent.height) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = pointer.rowLength != 0 ? pointer.rowLength : extent.width;
  const std::size_t height = pointer.layerHeight != 0 ? pointer.layerHeight : extent.height;
  side = {CU_MEMORYTYPE_UNIFIED, pointer.ptr, nullptr, 0, 0, 0, row * element, height, device};
  return CUDA_SUCCESS;
}

// A range in a one-dimensional array.
Side part_of(CUarray array, std::size_t offset) { return {CU_MEMORYTYPE_ARRAY, 0, array, offset}; }

CUresult copy_part(const Side& target, const Side& source, CUarray handle, std::size_t bytes) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(kDefaultStream, stream));
  const auto array = machine().arrays.find(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (array->two_dimensional() && array->rows() > 1) return CUDA_ERROR_INVALID_VALUE;
  return copy_shape(target, source, {bytes, 1, 1}, stream, Timing::synchronous);
}

CUresult device_side(CUdeviceptr address, Side& side) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  side = {.type = CU_MEMORYTYPE_DEVICE, .address = address, .device = context->device().ordinal};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpy2D(const CUDA_MEMCPY2D* shape) try { return copy_2d(shape, kDefaultStream, Timing::synchronous); }
VMEM_EMU_CATCH
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* shape) try {
  return copy_2d(shape, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* shape, CUstream stream) try {
  return copy_2d(shape, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpy3D(const CUDA_MEMCPY3D* shape) try { return copy_3d(shape, kDefaultStream, Timing::synchronous); }
VMEM_EMU_CATCH
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* shape, CUstream stream) try {
  return copy_3d(shape, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* shape) try {
  return copy_3d_peer(shape, kDefaultStream, Timing::synchronous);
}
VMEM_EMU_CATCH
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* shape, CUstream stream) try {
  return copy_3d_peer(shape, stream, Timing::queued);
}
VMEM_EMU_CATCH

CUresult cuMemcpy3DBatchAsync(std::size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags,
                              CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (stream->legacy() || !operations || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = stream->context()->device().ordinal;
  std::vector<MemcpyWork> copies;
  Timing timing = Timing::queued;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& operation = operations[i];
    const CUextent3D& extent = operation.extent;
    const auto order = operation.srcAccessOrder;
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return CUDA_ERROR_INVALID_VALUE;
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
      return CUDA_ERROR_INVALID_VALUE;
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) timing = Timing::at_once;
    const std::size_t element = elements_of(operation);
    if (element == 0) return CUDA_ERROR_INVALID_VALUE;
    Side target, source;
    VMEM_EMU_TRY(side_of(operation.dst, extent, element, device, target));
    VMEM_EMU_TRY(side_of(operation.src, extent, element, device, source));
    const Extent bytes{extent.width * element, extent.height, extent.depth};
    copies.push_back({stream->context(), parameters_of(target, source, bytes), {}});
    VMEM_EMU_TRY(add_transfers(target, source, bytes, copies.back().transfers));
  }
  if (captures::status(*stream) == CU_STREAM_CAPTURE_STATUS_NONE) {
    // The copies of a batch share one fixed cost.
    MemcpyWork whole{stream->context(), {}, {}};
    for (MemcpyWork& copy : copies)
      whole.transfers.insert(whole.transfers.end(), copy.transfers.begin(), copy.transfers.end());
    return queue_copy(stream, std::move(whole), Direction::unified, timing);
  }
  for (MemcpyWork& copy : copies) VMEM_EMU_TRY(submit(stream, std::move(copy)));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuMemcpyDtoA(CUarray target, std::size_t offset, CUdeviceptr source, std::size_t bytes) try {
  Side from;
  VMEM_EMU_TRY(device_side(source, from));
  return copy_part(part_of(target, offset), from, target, bytes);
}
VMEM_EMU_CATCH

CUresult cuMemcpyAtoD(CUdeviceptr target, CUarray source, std::size_t offset, std::size_t bytes) try {
  Side to;
  VMEM_EMU_TRY(device_side(target, to));
  return copy_part(to, part_of(source, offset), source, bytes);
}
VMEM_EMU_CATCH
