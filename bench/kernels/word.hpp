// Arithmetic shared by the GPU kernels, their host twins and the CPU's expected results, so that
// every figure can be checked exactly. Integers only: sums do not depend on the order in which
// threads add.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VMEM_BENCH_SHARED __host__ __device__ inline
#else
#define VMEM_BENCH_SHARED inline
#endif

namespace vmem::bench {

// A bijection of 64-bit words (the finaliser of SplitMix64).
VMEM_BENCH_SHARED std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Word `index` of a filled region: a function of its place alone, so that checks need no copy of
// the data.
VMEM_BENCH_SHARED std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) {
  return mix64(seed + (index + 1) * 0x9e3779b97f4a7c15u);
}

// One word's share of a checksum: the product of its halves, each masked by the word's place. As in
// the NH hash, this is one 32-bit multiply that CPUs vectorise. A word that changes, moves or keeps
// an older value changes the sum.
VMEM_BENCH_SHARED std::uint64_t checksum_term(std::uint64_t index, std::uint64_t word) {
  const std::uint32_t place = static_cast<std::uint32_t>(index) ^ static_cast<std::uint32_t>(index >> 32) * 0xc2b2ae3du;
  const std::uint32_t low = static_cast<std::uint32_t>(word) + place * 0x9e3779b1u + 0x27d4eb2fu;
  const std::uint32_t high = static_cast<std::uint32_t>(word >> 32) + place * 0x85ebca77u + 0x165667b1u;
  return static_cast<std::uint64_t>(low) * high;
}

// A random read: one full line of the GPU's L2 cache.
inline constexpr std::uint64_t kLineBytes = 128;
inline constexpr std::uint64_t kLineWords = kLineBytes / 8;

// The high half of a 64 x 64 bit product.
VMEM_BENCH_SHARED std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

// The line of random read number `read`, uniform over `lines`.
VMEM_BENCH_SHARED std::uint64_t random_line(std::uint64_t seed, std::uint64_t read, std::uint64_t lines) {
  return multiply_high(mix64(seed ^ mix64(read)), lines);
}

// Entry (row, column) of an input matrix: an integer from -2 to 2. Sums of up to 2^22 products stay
// below 2^24, so they are exact in fp32 in any order.
VMEM_BENCH_SHARED int matrix_entry(std::uint64_t seed, std::uint64_t row, std::uint64_t column) {
  std::uint32_t x = static_cast<std::uint32_t>(row) * 0x9e3779b1u + static_cast<std::uint32_t>(column) * 0x85ebca77u +
                    static_cast<std::uint32_t>(seed);
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  x = (x ^ (x >> 12)) * 0x297a2d39u;
  x ^= x >> 15;
  return static_cast<int>((static_cast<std::uint64_t>(x) * 5) >> 32) - 2;
}

}  // namespace vmem::bench
