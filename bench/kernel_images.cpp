#include "bench/kernel_images.hpp"

#include <array>

// Made by vmem_embed_kernels, see CMakeLists.txt.
#define VMEM_BENCH_IMAGE(symbol)           \
  extern "C" const unsigned char symbol[]; \
  extern "C" const unsigned long symbol##_bytes;
VMEM_BENCH_IMAGE(vmem_bench_stream_kernels)
VMEM_BENCH_IMAGE(vmem_bench_access_kernels)
VMEM_BENCH_IMAGE(vmem_bench_histogram_kernels)
VMEM_BENCH_IMAGE(vmem_bench_matmul_kernels)

namespace vmem::bench {

std::span<const void* const> kernel_images() {
  static const std::array<const void*, 4> images = {vmem_bench_stream_kernels, vmem_bench_access_kernels,
                                                    vmem_bench_histogram_kernels, vmem_bench_matmul_kernels};
  if (vmem_bench_stream_kernels_bytes == 0) return {};
  return images;
}

}  // namespace vmem::bench
