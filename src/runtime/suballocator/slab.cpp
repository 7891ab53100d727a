#include "runtime/suballocator/slab.hpp"

#include <bit>

namespace vmem::runtime {

void Slab::cut(std::uint32_t new_class) noexcept {
  size_class = new_class;
  free_blocks = kSizeClasses[new_class].blocks;
  free.fill(0);
  for (std::uint32_t i = 0; i < free_blocks / 64; ++i) free[i] = ~std::uint64_t{0};
  if (free_blocks % 64 != 0) free[free_blocks / 64] = (std::uint64_t{1} << free_blocks % 64) - 1;
}

std::size_t Slab::take(std::span<std::uintptr_t> out) noexcept {
  const std::size_t block_bytes = kSizeClasses[size_class].block_bytes;
  const std::size_t words = (kSizeClasses[size_class].blocks + 63) / 64;
  std::size_t count = 0;
  for (std::size_t word = 0; word < words && count < out.size(); ++word) {
    while (free[word] != 0 && count < out.size()) {
      const auto bit = std::size_t(std::countr_zero(free[word]));
      free[word] &= free[word] - 1;
      out[count++] = base + (word * 64 + bit) * block_bytes;
    }
  }
  free_blocks -= std::uint32_t(count);
  return count;
}

void Slab::put(std::uintptr_t block) noexcept {
  const std::size_t index = (block - base) / kSizeClasses[size_class].block_bytes;
  free[index / 64] |= std::uint64_t{1} << index % 64;
  ++free_blocks;
}

}  // namespace vmem::runtime
