// Summing of checksums in kernels: 16 bytes at a time, then one atomic per thread block.
#pragma once

#include <cstdint>

#include "bench/kernels/kernels.hpp"
#include "bench/kernels/word.hpp"

namespace vmem::bench {

// The checksum terms of words `index` and `index + 1`.
__device__ inline std::uint64_t pair_term(std::uint64_t index, ulonglong2 pair) {
  return checksum_term(index, pair.x) + checksum_term(index + 1, pair.y);
}

// Adds the values of a thread block of kThreads threads to *sum.
__device__ inline void add_block_sum(std::uint64_t value, std::uint64_t* sum) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
  __shared__ std::uint64_t warp_sums[kernels::kThreads / 32];
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::uint64_t total = 0;
  for (const std::uint64_t warp_sum : warp_sums) total += warp_sum;
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(total));
}

}  // namespace vmem::bench
