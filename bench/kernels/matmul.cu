// fp32 matrix product of tiles on the CUDA cores. Each thread block computes 128 x 128 of C; each
// thread computes 8 x 8 as four 4 x 4 quarters, so that a warp reads shared memory without bank
// conflicts. Slices of A and B, 8 deep, are double-buffered: the next slice loads into registers
// while the current one is multiplied.
#include "bench/kernels/check.cuh"
#include "bench/kernels/word.hpp"

using namespace vmem::bench;

namespace {

constexpr unsigned kBlock = kernels::kMatmulBlock;
constexpr unsigned kDepth = 8;
// Keeps rows 16-byte aligned, and spreads the transposing stores of A over the banks.
constexpr unsigned kPad = 4;

struct Slices {
  float a[2][kDepth][kBlock + kPad];  // transposed: a[k][row]
  float b[2][kDepth][kBlock];
};

// The part of the slices that one thread moves: 4 floats of A, 4 of B.
struct Carried {
  float4 a;
  float4 b;
};

__device__ Carried load_slice(const float* a, const float* b, unsigned edge, unsigned k) {
  const unsigned a_row = threadIdx.x / 2;
  const unsigned a_column = threadIdx.x % 2 * 4;
  const unsigned b_row = threadIdx.x / 32;
  const unsigned b_column = threadIdx.x % 32 * 4;
  return {*reinterpret_cast<const float4*>(a + std::uint64_t{a_row} * edge + k + a_column),
          *reinterpret_cast<const float4*>(b + std::uint64_t{k + b_row} * edge + b_column)};
}

__device__ void store_slice(Slices& slices, unsigned buffer, const Carried& carried) {
  const unsigned a_row = threadIdx.x / 2;
  const unsigned a_column = threadIdx.x % 2 * 4;
  slices.a[buffer][a_column + 0][a_row] = carried.a.x;
  slices.a[buffer][a_column + 1][a_row] = carried.a.y;
  slices.a[buffer][a_column + 2][a_row] = carried.a.z;
  slices.a[buffer][a_column + 3][a_row] = carried.a.w;
  *reinterpret_cast<float4*>(&slices.b[buffer][threadIdx.x / 32][threadIdx.x % 32 * 4]) = carried.b;
}

__device__ void load_eight(float (&into)[8], const float* from, unsigned offset) {
  const float4 low = *reinterpret_cast<const float4*>(from + offset);
  const float4 high = *reinterpret_cast<const float4*>(from + kBlock / 2 + offset);
  into[0] = low.x, into[1] = low.y, into[2] = low.z, into[3] = low.w;
  into[4] = high.x, into[5] = high.y, into[6] = high.z, into[7] = high.w;
}

__device__ void multiply_slice(float (&sums)[8][8], const Slices& slices, unsigned buffer, unsigned row,
                               unsigned column) {
#pragma unroll
  for (unsigned k = 0; k < kDepth; ++k) {
    float a[8];
    float b[8];
    load_eight(a, slices.a[buffer][k], row);
    load_eight(b, slices.b[buffer][k], column);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
  }
}

__device__ void store_quad(float* c, float4 value, bool accumulate) {
  auto* quad = reinterpret_cast<float4*>(c);
  if (accumulate) {
    const float4 old = *quad;
    value = make_float4(value.x + old.x, value.y + old.y, value.z + old.z, value.w + old.w);
  }
  *quad = value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kernels::kMatmulThreads, 2)
    vmem_bench_matmul(const float* a, const float* b, float* c, std::uint32_t edge, std::uint32_t accumulate) {
  __shared__ __align__(16) Slices slices;
  a += std::uint64_t{blockIdx.y} * kBlock * edge;
  b += std::uint64_t{blockIdx.x} * kBlock;
  // A warp covers 4 x 8 threads of the block's 16 x 16.
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = (warp / 2 * 4 + lane / 8) * 4;
  const unsigned column = (warp % 2 * 8 + lane % 8) * 4;

  float sums[8][8] = {};
  store_slice(slices, 0, load_slice(a, b, edge, 0));
  __syncthreads();
  unsigned buffer = 0;
  for (unsigned k = kDepth; k < edge; k += kDepth) {
    const Carried next = load_slice(a, b, edge, k);
    multiply_slice(sums, slices, buffer, row, column);
    buffer ^= 1;
    store_slice(slices, buffer, next);
    __syncthreads();
  }
  multiply_slice(sums, slices, buffer, row, column);

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const unsigned r = blockIdx.y * kBlock + (i / 4) * (kBlock / 2) + row + i % 4;
    float* line = c + std::uint64_t{r} * edge + std::uint64_t{blockIdx.x} * kBlock + column;
    store_quad(line, make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]), accumulate != 0);
    store_quad(line + kBlock / 2, make_float4(sums[i][4], sums[i][5], sums[i][6], sums[i][7]), accumulate != 0);
  }
}
VMEM_BENCH_CHECK_KERNEL(matmul, vmem_bench_matmul);

extern "C" __global__ void __launch_bounds__(kernels::kThreads)
    vmem_bench_matrix_fill(float* tile, std::uint32_t edge, std::uint64_t row, std::uint64_t column,
                           std::uint64_t seed) {
  const std::uint64_t entries = std::uint64_t{edge} * edge;
  const std::uint64_t stride = gridDim.x * std::uint64_t{blockDim.x};
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < entries; i += stride)
    tile[i] = static_cast<float>(matrix_entry(seed, row + i / edge, column + i % edge));
}
VMEM_BENCH_CHECK_KERNEL(matrix_fill, vmem_bench_matrix_fill);
