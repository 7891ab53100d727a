// Kernels that read a whole region in one launch, in orders that defeat prefetching. Pages in host
// memory are read in place.
#include "bench/kernels/check.cuh"
#include "bench/kernels/sum.cuh"

using namespace vmem::bench;

namespace {

constexpr int kInFlight = 4;
constexpr unsigned kLineThreads = kLineBytes / 16;  // threads that share one random read

// Sums pairs `begin`, `begin + stride`, ... below `end`.
__device__ std::uint64_t walk(const ulonglong2* pairs, std::uint64_t begin, std::uint64_t end, std::uint64_t stride) {
  std::uint64_t total = 0;
  std::uint64_t i = begin;
  for (; i + (kInFlight - 1) * stride < end; i += kInFlight * stride) {
    ulonglong2 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) loaded[k] = pairs[i + k * stride];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) total += pair_term(2 * (i + k * stride), loaded[k]);
  }
  for (; i < end; i += stride) total += pair_term(2 * i, pairs[i]);
  return total;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_blocks(const std::uint64_t* words, std::uint64_t count, std::uint32_t strided, std::uint64_t* sum) {
  const auto* pairs = reinterpret_cast<const ulonglong2*>(words);
  const std::uint64_t n = count / 2;
  std::uint64_t total = 0;
  if (strided) {
    total = walk(pairs, blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x, n, gridDim.x * std::uint64_t{blockDim.x});
  } else {
    const std::uint64_t share = (n + gridDim.x - 1) / gridDim.x;
    const std::uint64_t begin = blockIdx.x * share;
    const std::uint64_t end = begin + share < n ? begin + share : n;
    total = walk(pairs, begin + threadIdx.x, end, blockDim.x);
  }
  add_block_sum(total, sum);
}
VMEM_BENCH_CHECK_KERNEL(blocks, vmem_bench_blocks);

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_random(const std::uint64_t* words, std::uint64_t lines, std::uint64_t reads, std::uint64_t seed,
                      std::uint64_t* sum) {
  const auto* pairs = reinterpret_cast<const ulonglong2*>(words);
  const std::uint64_t thread = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  const std::uint64_t groups = gridDim.x * std::uint64_t{blockDim.x} / kLineThreads;
  const unsigned lane = threadIdx.x % kLineThreads;
  std::uint64_t total = 0;
  for (std::uint64_t read = thread / kLineThreads; read < reads; read += kInFlight * groups) {
    ulonglong2 loaded[kInFlight];
    std::uint64_t place[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (read + k * groups >= reads) continue;
      place[k] = random_line(seed, read + k * groups, lines) * kLineThreads + lane;
      loaded[k] = pairs[place[k]];
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k)
      if (read + k * groups < reads) total += pair_term(2 * place[k], loaded[k]);
  }
  add_block_sum(total, sum);
}
VMEM_BENCH_CHECK_KERNEL(random, vmem_bench_random);
