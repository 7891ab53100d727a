#include "gpu/kernels/fingerprint.hpp"

namespace vmem::gpu {
namespace {

// The sum over the thread block, in its first thread.
__device__ Fingerprint block_sum(Fingerprint mine) {
  __shared__ Fingerprint warps[kFingerprintThreads / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine.first += __shfl_down_sync(~0u, mine.first, lanes);
    mine.second += __shfl_down_sync(~0u, mine.second, lanes);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return {};
  for (unsigned i = 1; i < kFingerprintThreads / 32; ++i) {
    mine.first += warps[i].first;
    mine.second += warps[i].second;
  }
  return mine;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kFingerprintThreads)
    vmem_fingerprint(const ulonglong2* frame, std::uint64_t words, SlotRecord* record, FingerprintScratch* scratch,
                     std::uint32_t compare) {
  Fingerprint mine;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words / 2;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const ulonglong2 pair = frame[i];
    add_word(mine, static_cast<std::uint32_t>(2 * i), pair.x);
    add_word(mine, static_cast<std::uint32_t>(2 * i + 1), pair.y);
  }
  const Fingerprint block = block_sum(mine);
  if (threadIdx.x != 0) return;
  scratch->partial[blockIdx.x] = block;
  __threadfence();
  // The last block adds up the partial sums. atomicInc has wrapped the counter to 0 by then.
  if (atomicInc(&scratch->blocks_done, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  Fingerprint total;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    total.first += static_cast<volatile std::uint64_t&>(scratch->partial[i].first);
    total.second += static_cast<volatile std::uint64_t&>(scratch->partial[i].second);
  }
  const bool changed = compare != 0 && !same(total, record->last);
  scratch->changed = changed;
  if (changed) ++record->changes;
  record->last = total;
}

extern "C" __global__ void vmem_store_changed(const ulonglong2* frame, ulonglong2* slot, std::uint64_t words,
                                              const FingerprintScratch* scratch) {
  if (scratch->changed == 0) return;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words / 2;
       i += std::uint64_t{gridDim.x} * blockDim.x)
    slot[i] = frame[i];
}

}  // namespace vmem::gpu
