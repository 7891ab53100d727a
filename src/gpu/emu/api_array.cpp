// CUDA arrays and texture objects.
#include "gpu/emu/api_copy.hpp"

namespace vmem::emu {

std::size_t element_bytes(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return std::size_t{2} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return std::size_t{4} * channels;
    default:
      return 0;
  }
}

}  // namespace vmem::emu

using namespace vmem::emu;

namespace {

// Hopper's limits.
constexpr std::size_t array_width_max = 131072, array_rows_max = 65536;
constexpr std::size_t texture_elements_max = std::size_t{1} << 28;
constexpr std::size_t texture_width_max = 131072, texture_rows_max = 65000, texture_pitch_max = 2097120;
constexpr std::size_t texture_alignment = 512, texture_pitch_alignment = 32;

CUresult check_array(const CUDA_ARRAY_DESCRIPTOR& descriptor) {
  if (element_bytes(descriptor.Format, descriptor.NumChannels) == 0 || descriptor.Width == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const bool fits = descriptor.Width <= array_width_max && descriptor.Height <= array_rows_max;
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_texture_memory(CUdeviceptr address, std::size_t bytes, const Context& context) {
  if (address == 0 || bytes == 0 || address % texture_alignment != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = context.device().ordinal;
  const bool readable = machine().addresses().accessible(address, bytes, device, Access::read);
  return readable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_resource(const CUDA_RESOURCE_DESC& resource, const Context& context) {
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      return machine().arrays.find(resource.res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      const std::size_t element = element_bytes(linear.format, linear.numChannels);
      if (element == 0 || linear.sizeInBytes / element > texture_elements_max) return CUDA_ERROR_INVALID_VALUE;
      return check_texture_memory(linear.devPtr, linear.sizeInBytes, context);
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      const std::size_t element = element_bytes(rows.format, rows.numChannels);
      if (element == 0 || rows.width == 0 || rows.height == 0) return CUDA_ERROR_INVALID_VALUE;
      if (rows.width > texture_width_max || rows.height > texture_rows_max || rows.pitchInBytes > texture_pitch_max)
        return CUDA_ERROR_INVALID_VALUE;
      if (rows.pitchInBytes % texture_pitch_alignment != 0 || rows.pitchInBytes < rows.width * element)
        return CUDA_ERROR_INVALID_VALUE;
      const std::size_t bytes = (rows.height - 1) * rows.pitchInBytes + rows.width * element;
      return check_texture_memory(rows.devPtr, bytes, context);
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuArrayCreate(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* descriptor) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle || !descriptor) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_array(*descriptor));
  VMEM_EMU_TRY(check_unsafe_call());
  auto array = std::make_shared<Array>(Array{context, *descriptor});
  VMEM_EMU_TRY(context->heap().allocate(array->row_bytes() * array->rows(), array->memory));
  *handle = machine().arrays.insert(std::move(array));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Waits for the context's work, as cuMemFree does.
CUresult cuArrayDestroy(CUarray handle) try {
  VMEM_EMU_TRY(enter());
  VMEM_EMU_TRY(check_unsafe_call());
  const auto array = machine().arrays.erase(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  array->context->synchronize();
  VMEM_EMU_TRY(array->context->heap().free(array->memory));
  return array->context->usable();
}
VMEM_EMU_CATCH

CUresult cuTexObjectCreate(CUtexObject* handle, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* sampling,
                           const CUDA_RESOURCE_VIEW_DESC* view) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle || !resource || !sampling || resource->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (view && resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(check_resource(*resource, *context));
  *handle = machine().textures.insert(std::make_shared<Texture>(Texture{context, *resource}));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuTexObjectDestroy(CUtexObject handle) try {
  VMEM_EMU_TRY(enter());
  return machine().textures.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH

// Emulated kernels use this to find the memory under their texture.
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) try {
  VMEM_EMU_TRY(enter());
  const auto texture = machine().textures.find(handle);
  if (!resource || !texture) return CUDA_ERROR_INVALID_VALUE;
  *resource = texture->resource;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
