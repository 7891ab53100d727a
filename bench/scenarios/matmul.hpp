// The matrices of the matmul scenario: square, fp32, in square contiguous tiles in row-major order.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace vmem::bench {

struct Tiling {
  std::uint32_t edge = 0;    // rows and columns of a tile
  std::uint32_t blocks = 0;  // tiles in a row or column of the matrix

  std::uint64_t n() const { return std::uint64_t{edge} * blocks; }
  std::uint64_t tile_bytes() const { return std::uint64_t{edge} * edge * sizeof(float); }
  std::uint64_t matrix_bytes() const { return tile_bytes() * blocks * blocks; }
  std::uint64_t tile_offset(std::uint32_t row, std::uint32_t column) const {
    return (std::uint64_t{row} * blocks + column) * tile_bytes();
  }
  // Byte offset of an entry.
  std::uint64_t entry_offset(std::uint64_t row, std::uint64_t column) const {
    return tile_offset(static_cast<std::uint32_t>(row / edge), static_cast<std::uint32_t>(column / edge)) +
           (row % edge * edge + column % edge) * sizeof(float);
  }
  double flops() const { return 2.0 * static_cast<double>(n()) * static_cast<double>(n()) * static_cast<double>(n()); }
};

// The largest matrices, three of which take at most `bytes`.
Tiling choose_tiling(std::uint64_t bytes);

// Seeds of the entries of A and B, derived from the run's.
inline std::uint64_t seed_a(std::uint64_t seed) { return 2 * seed; }
inline std::uint64_t seed_b(std::uint64_t seed) { return 2 * seed + 1; }

// Checks C = A·B with C in a region at `c`, read through vmem_read. Applies Freivalds' check to
// every row (C·r against A·(B·r) for a random r, in integers, so exact) and computes sampled
// entries in double. Empty if right, else a sentence with the first bad entry and its offset.
Result<std::string> check_product(const Tiling& tiling, std::uint64_t seed, const std::uint8_t* c);

}  // namespace vmem::bench
