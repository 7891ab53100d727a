// Cost of a launch under the preloaded library, on the emulated driver: eight pointers to 4 MiB
// each, all resident. For counting instructions, which do not depend on the machine
// (docs/internals/hit-path.md). bench/programs/compare.py measures the time on a GPU.
//   LD_LIBRARY_PATH=build/release/tests/intercept/driver
//     LD_PRELOAD=build/release/lib/libvmem_preload.so
//     VMEM_EMU=hbm=512MiB,host=1GiB VMEM_HBM=128MiB
//     valgrind --tool=callgrind build/release/bin/launch_bench
#include <cuda.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "gpu/emu/emu.h"

namespace {

constexpr int kBatch = 512, kBatches = 100;
constexpr std::size_t kPointers = 8;

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", call, result);
  std::exit(1);
}

}  // namespace

int main() {
  const std::array<std::size_t, kPointers> sizes{8, 8, 8, 8, 8, 8, 8, 8};
  check(CUresult(vmem_emu_register_kernel(
            "eight", +[](const vmem_emu_launch*) {}, sizes.data(), kPointers)),
        "vmem_emu_register_kernel");
  check(cuInit(0), "cuInit");
  CUdevice device = 0;
  CUcontext context = nullptr;
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  CUmodule module = nullptr;
  const char image[64] = "VMEMEMU";
  check(cuModuleLoadData(&module, image), "cuModuleLoadData");
  CUfunction function = nullptr;
  check(cuModuleGetFunction(&function, module, "eight"), "cuModuleGetFunction");
  CUstream stream = nullptr;
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  std::array<CUdeviceptr, kPointers> at{};
  std::array<void*, kPointers> parameters{};
  for (std::size_t i = 0; i < kPointers; ++i) {
    check(cuMemAlloc(&at[i], std::size_t{4} << 20), "cuMemAlloc");
    check(cuMemsetD8(at[i], 0, std::size_t{4} << 20), "cuMemsetD8");
    parameters[i] = &at[i];
  }
  double least_ns = 1e9;
  for (int batch = 0; batch < kBatches; ++batch) {
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i)
      check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters.data(), nullptr), "cuLaunchKernel");
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    if (took.count() / kBatch < least_ns) least_ns = took.count() / kBatch;
  }
  check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  std::printf("emulated driver, %d launches: at least %.0f ns each\n", kBatch * kBatches, least_ns);
  return 0;
}
