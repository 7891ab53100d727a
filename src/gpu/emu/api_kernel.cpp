// Modules, functions and launches.
#include <algorithm>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

enum class Blocks { independent, cooperative };

// The real driver asks the occupancy calculator. An emulated multiprocessor holds as many blocks as
// its thread and block limits allow.
bool all_resident(const vmem_emu_launch& shape, const Device& device) {
  const std::uint64_t threads = std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  const std::uint64_t blocks = std::uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  const std::uint64_t fitting =
      std::min<std::uint64_t>(device.blocks_per_multiprocessor, device.threads_per_multiprocessor / threads);
  return blocks <= fitting * device.multiprocessors;
}

// Launches also accept a CUkernel in a function's place; a CUkernel belongs to no context.
std::shared_ptr<const Kernel> kernel_of(CUfunction handle, const std::shared_ptr<Context>& context) {
  if (const auto function = machine().functions.find(handle))
    return function->context == context ? function->kernel : nullptr;
  const auto kernel = machine().kernels.find(reinterpret_cast<CUkernel>(handle));
  return kernel ? kernel->kernel : nullptr;
}

CUresult queue_launch(CUfunction handle, const vmem_emu_launch& shape, CUstream stream_handle, void** params,
                      void** extra, Blocks blocks) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(stream_handle, stream));
  auto kernel = kernel_of(handle, stream->context());
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!valid_shape(shape)) return CUDA_ERROR_INVALID_VALUE;
  const Device& device = stream->context()->device();
  if (blocks == Blocks::cooperative && !all_resident(shape, device)) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  auto launch = Launch::make(std::move(kernel), params, extra);
  if (!launch) return CUDA_ERROR_INVALID_VALUE;
  launch->shape = shape;
  return submit(stream, KernelWork{handle, stream->context(), std::move(launch)});
}

// Most attributes tune real hardware; their values are only checked. The emulated device has no
// clusters and no events triggered by kernels.
CUresult check_attribute(const CUlaunchAttribute& attribute, Blocks& blocks) {
  const CUlaunchAttributeValue& value = attribute.value;
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return value.sharedMemCarveout <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      blocks = value.cooperative ? Blocks::cooperative : Blocks::independent;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* handle, const void* image) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
  if (!is_image(image)) return CUDA_ERROR_INVALID_IMAGE;
  *handle = machine().modules.insert(std::make_shared<Module>(Module{context}));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuModuleUnload(CUmodule handle) try {
  VMEM_EMU_TRY(enter());
  const auto module = machine().modules.erase(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  machine().functions.erase_if([&](const Function& function) { return function.module == module; });
  return module->context->usable();
}
VMEM_EMU_CATCH

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) try {
  VMEM_EMU_TRY(enter());
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const auto module = machine().modules.find(module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  VMEM_EMU_TRY(module->context->usable());
  auto kernel = find_kernel(name);
  if (!kernel) return CUDA_ERROR_NOT_FOUND;
  auto function = std::make_shared<Function>(Function{module->context, module, std::move(kernel), nullptr});
  *handle = machine().functions.insert(std::move(function));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// Attributes tune real hardware and change nothing here.
CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) try {
  VMEM_EMU_TRY(enter());
  if (!machine().functions.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  return attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX && value >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH

CUresult cuFuncGetName(const char** name, CUfunction handle) try {
  VMEM_EMU_TRY(enter());
  const auto function = machine().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->kernel->name.c_str();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* bytes) try {
  VMEM_EMU_TRY(enter());
  const auto function = machine().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const auto& sizes = function->kernel->param_bytes;
  if (offset == nullptr || index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->param_offset(index);
  if (bytes != nullptr) *bytes = sizes[index];
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** params,
                        void** extra) try {
  return queue_launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, 0},
                      stream, params, extra, Blocks::independent);
}
VMEM_EMU_CATCH

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) try {
  VMEM_EMU_TRY(enter());
  if (!config || (!config->attrs && config->numAttrs > 0)) return CUDA_ERROR_INVALID_VALUE;
  Blocks blocks = Blocks::independent;
  for (unsigned i = 0; i < config->numAttrs; ++i) VMEM_EMU_TRY(check_attribute(config->attrs[i], blocks));
  return queue_launch(function,
                      {{config->gridDimX, config->gridDimY, config->gridDimZ},
                       {config->blockDimX, config->blockDimY, config->blockDimZ},
                       config->sharedMemBytes,
                       nullptr,
                       0},
                      config->hStream, params, extra, blocks);
}
VMEM_EMU_CATCH

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void** params) try {
  return queue_launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, 0},
                      stream, params, nullptr, Blocks::cooperative);
}
VMEM_EMU_CATCH
