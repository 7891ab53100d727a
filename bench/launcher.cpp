#include "bench/launcher.hpp"

#include <fmt/format.h>

#include "bench/kernel_images.hpp"
#include "bench/kernels/twins.hpp"

namespace vmem::bench {
namespace {

// With its terminating zero, the eight bytes that emu.h names.
constexpr const char* kEmulatedImage = "VMEMEMU";

}  // namespace

Result<Launcher> Launcher::load(const Gpu& gpu) {
  Launcher launcher(gpu);
  if (gpu.emulated()) {
    VMEM_TRY(register_twins(gpu.driver().path()));
    VMEM_TRY(launcher.load_module(kEmulatedImage));
    return launcher;
  }
  if (kernel_images().empty())
    return fail(
        VMEM_ERROR_UNSUPPORTED,
        "this program was built without nvcc, so it has no GPU kernels; install the CUDA toolkit and build again, or "
        "give --driver emulated");
  for (const void* image : kernel_images()) VMEM_TRY(launcher.load_module(image));
  return launcher;
}

Status Launcher::load_module(const void* image) {
  VMEM_ASSIGN(auto module, gpu::Module::load(gpu_->driver_ref(), image));
  modules_.push_back(std::move(module));
  return {};
}

Result<CUfunction> Launcher::find(const char* name) const {
  if (const auto found = functions_.find(name); found != functions_.end()) return found->second;
  for (const gpu::Module& module : modules_) {
    const auto function = module.function(name);
    if (!function) continue;
    functions_.emplace(name, *function);
    return *function;
  }
  return fail(VMEM_ERROR_INTERNAL, fmt::format("no module has the kernel {}", name));
}

Status Launcher::launch_untyped(const char* name, Grid grid, unsigned threads, CUstream stream,
                                void** arguments) const {
  VMEM_ASSIGN(const CUfunction function, find(name));
  BENCH_CALL(*gpu_, cuLaunchKernel, function, grid.x, grid.y, grid.z, threads, 1, 1, 0, stream, arguments, nullptr);
  return {};
}

Status Launcher::launch_matmul(CUstream stream, const float* a, const float* b, float* c, std::uint32_t edge,
                               bool accumulate) const {
  std::uint32_t add = accumulate ? 1 : 0;
  void* arguments[] = {&a, &b, &c, &edge, &add};
  const unsigned blocks = edge / kernels::kMatmulBlock;
  return launch_untyped(kernels::matmul.name, {blocks, blocks, 1}, kernels::kMatmulThreads, stream, arguments);
}

}  // namespace vmem::bench
