// Names and parameters of the benchmark's kernels. Every GPU kernel (*.cu), host twin (*_emu.cpp)
// and launch is checked against this list at compile time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmem::bench {

template <class... Parameters>
struct Kernel {
  using Function = void (*)(Parameters...);
  const char* name;
};

namespace kernels {

using Word = std::uint64_t;
using Count = std::uint64_t;

// (words, first, count, seed): words[i] = pattern_word(seed, first + i), i < count.
inline constexpr Kernel<Word*, Count, Count, Count> fill{"vmem_bench_fill"};
// *sum += checksum_term(first + i, words[i]), i < count. `count` is even and `words` aligned to 16
// bytes, here and below.
inline constexpr Kernel<const Word*, Count, Count, Word*> checksum{
    "vmem_bench_checksum"};  // (words, first, count, sum)
// (words, count, delta): words[i] += delta.
inline constexpr Kernel<Word*, Count, Word> increment{"vmem_bench_increment"};
// Compares words[i] with pattern_word(seed, first + i) + delta. bad[0] = the least index (first +
// i) that differs; bad[1] += the number of differences.
inline constexpr Kernel<const Word*, Count, Count, Count, Word, Word*> verify{
    "vmem_bench_verify"};  // (words, first, count, seed, delta, bad)
// Checksum of a whole region in one launch. strided = 0: each thread block reads one contiguous
// block; 1: the grid strides through the region together.
inline constexpr Kernel<const Word*, Count, std::uint32_t, Word*> blocks{
    "vmem_bench_blocks"};  // (words, count, strided, sum)
// Does `reads` reads of 128 bytes, read r at line random_line(seed, r, lines), each summed as
// checksum does.
inline constexpr Kernel<const Word*, Count, Count, Count, Word*> random{
    "vmem_bench_random"};  // (words, lines, reads, seed, sum)
// (bytes, count, bins): bins[byte] += its occurrences in `count` bytes; 256 bins; `bytes` aligned
// to 16.
inline constexpr Kernel<const std::uint8_t*, Count, Count*> histogram{"vmem_bench_histogram"};
// tile[r][c] = matrix_entry(seed, row + r, column + c) of an edge x edge tile.
inline constexpr Kernel<float*, std::uint32_t, Count, Count, Count> matrix_fill{
    "vmem_bench_matrix_fill"};  // (tile, edge, row, column, seed)
// c = a·b, or c += a·b with accumulate, of row-major edge x edge tiles; edge is a multiple of
// kMatmulBlock.
inline constexpr Kernel<const float*, const float*, float*, std::uint32_t, std::uint32_t> matmul{
    "vmem_bench_matmul"};  // (a, b, c, edge, accumulate)

// Edge of the part of C that one thread block computes.
inline constexpr std::uint32_t kMatmulBlock = 128;
inline constexpr std::uint32_t kMatmulThreads = 256;  // threads per matmul block
inline constexpr std::uint32_t kThreads = 256;        // threads per block of all other kernels

}  // namespace kernels
}  // namespace vmem::bench
