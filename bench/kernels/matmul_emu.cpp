#include <vector>

#include "bench/kernels/twins.hpp"
#include "bench/kernels/word.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vmem::bench::twins {
namespace {

constexpr Count kRows = 4;      // of C, held in registers
constexpr Count kColumns = 16;  // width of each

// Adds to a kRows x kColumns part of C the product of rows of `a` and a packed strip of B, kColumns
// floats a row. Rows of `a` and `c` are `edge` floats apart, which is also the depth.
using MultiplyStrip = void (*)(const float* a, const float* strip, float* c, Count edge);

void multiply_strip(const float* a, const float* strip, float* c, Count edge) {
  for (Count k = 0; k < edge; ++k)
    for (Count r = 0; r < kRows; ++r)
      for (Count j = 0; j < kColumns; ++j) c[r * edge + j] += a[r * edge + k] * strip[k * kColumns + j];
}

#if defined(__x86_64__)
// Written with intrinsics because compilers lower vectors before they know that this function may
// use AVX.
[[gnu::target("avx2,fma")]] void multiply_strip_avx2(const float* a, const float* strip, float* c, Count edge) {
  __m256 sums[kRows][2];
  for (Count r = 0; r < kRows; ++r)
    for (Count w = 0; w < 2; ++w) sums[r][w] = _mm256_loadu_ps(c + r * edge + 8 * w);
  for (Count k = 0; k < edge; ++k) {
    const __m256 low = _mm256_loadu_ps(strip + k * kColumns);
    const __m256 high = _mm256_loadu_ps(strip + k * kColumns + 8);
    for (Count r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(a + r * edge + k);
      sums[r][0] = _mm256_fmadd_ps(factor, low, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(factor, high, sums[r][1]);
    }
  }
  for (Count r = 0; r < kRows; ++r)
    for (Count w = 0; w < 2; ++w) _mm256_storeu_ps(c + r * edge + 8 * w, sums[r][w]);
}
#endif

MultiplyStrip choose_multiply_strip() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_strip_avx2;
#endif
  return multiply_strip;
}

}  // namespace

void matmul(const float* a, const float* b, float* c, std::uint32_t edge, std::uint32_t accumulate) {
  static const MultiplyStrip multiply = choose_multiply_strip();
  const Count n = edge;
  if (accumulate == 0)
    for (Count i = 0; i < n * n; ++i) c[i] = 0;
  // Rows of B lie a power of two apart and would evict each other from the cache, so a strip of B
  // is packed first.
  std::vector<float> strip(n * kColumns);
  for (Count column = 0; column < n; column += kColumns) {
    for (Count k = 0; k < n; ++k)
      for (Count j = 0; j < kColumns; ++j) strip[k * kColumns + j] = b[k * n + column + j];
    for (Count row = 0; row < n; row += kRows) multiply(a + row * n, strip.data(), c + row * n + column, n);
  }
}

void matrix_fill(float* tile, std::uint32_t edge, Count row, Count column, Count seed) {
  const Count n = edge;
  for (Count r = 0; r < n; ++r)
    for (Count j = 0; j < n; ++j) tile[r * n + j] = static_cast<float>(matrix_entry(seed, row + r, column + j));
}

}  // namespace vmem::bench::twins
