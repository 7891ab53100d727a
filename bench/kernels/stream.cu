// Kernels that process a piece of a region from end to end at memory speed: 16-byte accesses, four
// in flight per thread, with the grid striding together.
#include "bench/kernels/check.cuh"
#include "bench/kernels/sum.cuh"

using namespace vmem::bench;

namespace {

constexpr int kInFlight = 4;

__device__ std::uint64_t first_thread() { return blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; }
__device__ std::uint64_t thread_count() { return gridDim.x * std::uint64_t{blockDim.x}; }

}  // namespace

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_fill(std::uint64_t* words, std::uint64_t first, std::uint64_t count, std::uint64_t seed) {
  auto* pairs = reinterpret_cast<ulonglong2*>(words);
  for (std::uint64_t i = first_thread(); i < count / 2; i += thread_count())
    pairs[i] = make_ulonglong2(pattern_word(seed, first + 2 * i), pattern_word(seed, first + 2 * i + 1));
}
VMEM_BENCH_CHECK_KERNEL(fill, vmem_bench_fill);

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_checksum(const std::uint64_t* words, std::uint64_t first, std::uint64_t count, std::uint64_t* sum) {
  const auto* pairs = reinterpret_cast<const ulonglong2*>(words);
  const std::uint64_t stride = thread_count();
  std::uint64_t total = 0;
  std::uint64_t i = first_thread();
  for (; i + (kInFlight - 1) * stride < count / 2; i += kInFlight * stride) {
    ulonglong2 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) loaded[k] = pairs[i + k * stride];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) total += pair_term(first + 2 * (i + k * stride), loaded[k]);
  }
  for (; i < count / 2; i += stride) total += pair_term(first + 2 * i, pairs[i]);
  add_block_sum(total, sum);
}
VMEM_BENCH_CHECK_KERNEL(checksum, vmem_bench_checksum);

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_increment(std::uint64_t* words, std::uint64_t count, std::uint64_t delta) {
  auto* pairs = reinterpret_cast<ulonglong2*>(words);
  for (std::uint64_t i = first_thread(); i < count / 2; i += thread_count()) {
    const ulonglong2 pair = pairs[i];
    pairs[i] = make_ulonglong2(pair.x + delta, pair.y + delta);
  }
}
VMEM_BENCH_CHECK_KERNEL(increment, vmem_bench_increment);

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_verify(const std::uint64_t* words, std::uint64_t first, std::uint64_t count, std::uint64_t seed,
                      std::uint64_t delta, std::uint64_t* bad) {
  for (std::uint64_t i = first_thread(); i < count; i += thread_count()) {
    if (words[i] == pattern_word(seed, first + i) + delta) continue;
    atomicMin(reinterpret_cast<unsigned long long*>(bad), static_cast<unsigned long long>(first + i));
    atomicAdd(reinterpret_cast<unsigned long long*>(bad + 1), 1ull);
  }
}
VMEM_BENCH_CHECK_KERNEL(verify, vmem_bench_verify);
