// Modules, functions and launches.
#include <cstring>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

constexpr char image_magic[8] = {'V', 'M', 'E', 'M', 'E', 'M', 'U', '\0'};
constexpr unsigned threads_per_block_max = 1024;
constexpr unsigned grid_yz_max = 65535;

bool valid_shape(const vmem_emu_launch& shape) {
  for (const unsigned extent : shape.grid)
    if (extent == 0) return false;
  for (const unsigned extent : shape.block)
    if (extent == 0 || extent > threads_per_block_max) return false;
  if (shape.grid[1] > grid_yz_max || shape.grid[2] > grid_yz_max) return false;
  return std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2] <= threads_per_block_max;
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(image, image_magic, sizeof image_magic) != 0) return CUDA_ERROR_INVALID_IMAGE;
  *handle = machine().modules.insert(std::make_shared<Module>(Module{context}));
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  VMEM_EMU_TRY(enter());
  const auto module = machine().modules.erase(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  machine().functions.erase_if([&](const Function& function) { return function.module == module; });
  return module->context->usable();
}

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
  VMEM_EMU_TRY(enter());
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const auto module = machine().modules.find(module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  VMEM_EMU_TRY(module->context->usable());
  auto kernel = find_kernel(name);
  if (!kernel) return CUDA_ERROR_NOT_FOUND;
  auto function = std::make_shared<Function>(Function{module->context, module, std::move(kernel)});
  *handle = machine().functions.insert(std::move(function));
  return CUDA_SUCCESS;
}

// Attributes tune real hardware; there is nothing here that they could change.
CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  VMEM_EMU_TRY(enter());
  if (!machine().functions.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  return attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX && value >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  VMEM_EMU_TRY(enter());
  const auto function = machine().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->kernel->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  VMEM_EMU_TRY(enter());
  const auto function = machine().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const auto& sizes = function->kernel->param_bytes;
  if (offset == nullptr || index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->param_offset(index);
  if (bytes != nullptr) *bytes = sizes[index];
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function_handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void** params,
                        void** extra) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const auto function = machine().functions.find(function_handle);
  if (!function || function->context != stream->context()) return CUDA_ERROR_INVALID_HANDLE;
  vmem_emu_launch shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, 0};
  if (!valid_shape(shape)) return CUDA_ERROR_INVALID_VALUE;
  auto launch = Launch::make(function->kernel, params, extra);
  if (!launch) return CUDA_ERROR_INVALID_VALUE;
  launch->shape = shape;
  const int device = stream->context()->device().ordinal;
  return submit(stream, [launch = std::move(launch), device] { launch->run(device); });
}
