// Byte histogram with one set of bins per warp in shared memory: only lanes of the same warp
// collide on a byte.
#include "bench/kernels/check.cuh"

using namespace vmem::bench;

namespace {

constexpr int kWarps = kernels::kThreads / 32;

__device__ void count_word(std::uint32_t word, unsigned* bins) {
#pragma unroll
  for (int shift = 0; shift < 32; shift += 8) atomicAdd(&bins[word >> shift & 0xff], 1u);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_histogram(const std::uint8_t* bytes, std::uint64_t count, std::uint64_t* bins) {
  __shared__ unsigned shared_bins[kWarps][256];
  for (unsigned i = threadIdx.x; i < kWarps * 256; i += blockDim.x) shared_bins[i / 256][i % 256] = 0;
  __syncthreads();

  unsigned* mine = shared_bins[threadIdx.x / 32];
  const auto* quads = reinterpret_cast<const uint4*>(bytes);
  const std::uint64_t thread = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  const std::uint64_t stride = gridDim.x * std::uint64_t{blockDim.x};
  for (std::uint64_t i = thread; i < count / 16; i += stride) {
    const uint4 quad = quads[i];
    count_word(quad.x, mine);
    count_word(quad.y, mine);
    count_word(quad.z, mine);
    count_word(quad.w, mine);
  }
  for (std::uint64_t i = count / 16 * 16 + thread; i < count; i += stride) atomicAdd(&mine[bytes[i]], 1u);
  __syncthreads();

  for (unsigned bin = threadIdx.x; bin < 256; bin += blockDim.x) {
    unsigned long long total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += shared_bins[warp][bin];
    if (total != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&bins[bin]), total);
  }
}
VMEM_BENCH_CHECK_KERNEL(histogram, vmem_bench_histogram);
