// A slab: consecutive granules cut into blocks of one class. Tracks the blocks that are free for
// any stream, not those that are live, cached or waiting. Not synchronised: the owning pool or
// depot protects it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/suballocator/size_classes.hpp"

namespace vmem::runtime {

struct Slab {
  std::uintptr_t base = 0;
  int device = 0;
  std::uint32_t granules = 0;
  std::uint32_t size_class = 0;
  std::uint32_t free_blocks = 0;
  std::array<std::uint64_t, kMostBlocks / 64> free{};  // one bit per block

  bool wholly_free() const noexcept { return free_blocks == kSizeClasses[size_class].blocks; }
  // REQUIRES: wholly free, or new.
  void cut(std::uint32_t new_class) noexcept;
  // Fills `out` with free blocks, lowest addresses first; returns their number. Neighbours go to
  // one thread, so threads seldom share a cache line of block words.
  std::size_t take(std::span<std::uintptr_t> out) noexcept;
  void put(std::uintptr_t block) noexcept;
};

}  // namespace vmem::runtime
