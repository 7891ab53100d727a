// Libraries: code loaded without a context. Launches in any context accept their kernels.
#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

// NOLINTNEXTLINE(readability-function-size): the driver's parameters
CUresult cuLibraryLoadData(CUlibrary* handle, const void* image, CUjit_option* jit_options, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) try {
  VMEM_EMU_TRY(enter());
  if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
  // Options tune compilation, which does not happen here.
  const auto complete = [](const void* names, const void* values_of, unsigned named) {
    return named == 0 || (names && values_of);
  };
  if (!complete(jit_options, jit_values, jit_count) || !complete(options, values, count))
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_image(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *handle = machine().libraries.insert(std::make_shared<Library>());
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuLibraryUnload(CUlibrary handle) try {
  VMEM_EMU_TRY(enter());
  const auto library = machine().libraries.erase(handle);
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  machine().functions.erase_if([&](const Function& function) { return function.library == library; });
  machine().kernels.erase_if([&](const LibraryKernel& kernel) { return kernel.library == library; });
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuLibraryGetKernel(CUkernel* handle, CUlibrary library_handle, const char* name) try {
  VMEM_EMU_TRY(enter());
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const auto library = machine().libraries.find(library_handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  auto kernel = find_kernel(name);
  if (!kernel) return CUDA_ERROR_NOT_FOUND;
  const std::lock_guard lock(library->mutex);
  CUkernel& known = library->kernels[name];
  if (!known)
    known = machine().kernels.insert(std::make_shared<LibraryKernel>(LibraryKernel{library, std::move(kernel)}));
  *handle = known;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuKernelGetFunction(CUfunction* handle, CUkernel kernel_handle) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  const auto kernel = machine().kernels.find(kernel_handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *handle = machine().functions.insert(
      std::make_shared<Function>(Function{std::move(context), nullptr, kernel->kernel, kernel->library}));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuKernelGetName(const char** name, CUkernel handle) try {
  VMEM_EMU_TRY(enter());
  const auto kernel = machine().kernels.find(handle);
  if (!name || !kernel) return CUDA_ERROR_INVALID_VALUE;
  *name = kernel->kernel->name.c_str();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuKernelGetParamInfo(CUkernel handle, std::size_t index, std::size_t* offset, std::size_t* bytes) try {
  VMEM_EMU_TRY(enter());
  const auto kernel = machine().kernels.find(handle);
  if (!offset || !kernel || index >= kernel->kernel->param_bytes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->kernel->param_offset(index);
  if (bytes) *bytes = kernel->kernel->param_bytes[index];
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
