// Size classes: multiples of 256 bytes up to 4 KiB, then eight steps per doubling, and steps of 32
// KiB above 512 KiB. A block exceeds the request by at most 12.5 % (beyond rounding to 256 bytes),
// and the excess fits 15 bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace vmem::runtime {

inline constexpr std::size_t kUnitBytes = 256;  // alignment of every block
inline constexpr std::size_t kGranuleBytes = std::size_t{2} << 20;
inline constexpr std::uint32_t kClasses = 88;
inline constexpr std::uint32_t kMostGranules = 4;   // per slab
inline constexpr std::uint32_t kMostBlocks = 8192;  // per slab
inline constexpr std::uint32_t kMostExcessBytes = 32767;

// `bytes` in 1..1 MiB.
constexpr std::uint32_t class_of(std::size_t bytes) noexcept {
  const auto last = std::uint32_t(bytes - 1);
  if (last < 4096) return last >> 8;
  if (last >= 1u << 19) return 72 + (last >> 15) - 16;
  const std::uint32_t doubling = std::uint32_t(std::bit_width(last)) - 1;  // 12..18
  return 16 + (doubling - 12) * 8 + (last >> (doubling - 3)) - 8;
}

struct SizeClass {
  std::uint32_t block_bytes;
  std::uint32_t granules;  // per slab
  std::uint32_t blocks;    // per slab
  std::uint32_t cached;    // most blocks in one bin of a thread cache
};

namespace detail {

constexpr std::uint32_t block_bytes_of(std::uint32_t index) {
  if (index < 16) return (index + 1) * 256;
  if (index >= 72) return (16 + index - 72 + 1) << 15;
  return (8 + (index - 16) % 8 + 1) << ((index - 16) / 8 + 9);
}

// The smallest slab whose tail, too short for a block, is at most an eighth; else the slab with the
// least waste.
constexpr std::uint32_t granules_of(std::uint32_t block_bytes) {
  std::uint32_t best = 1;
  const auto tail = [=](std::uint32_t granules) { return double(granules * kGranuleBytes % block_bytes) / granules; };
  for (std::uint32_t granules = 1; granules <= kMostGranules; ++granules) {
    if (tail(granules) * 8 <= kGranuleBytes) return granules;
    if (tail(granules) < tail(best)) best = granules;
  }
  return best;
}

constexpr std::array<SizeClass, kClasses> make_classes() {
  std::array<SizeClass, kClasses> classes{};
  for (std::uint32_t i = 0; i < kClasses; ++i) {
    const std::uint32_t bytes = block_bytes_of(i);
    const std::uint32_t granules = granules_of(bytes);
    // A block that goes to the depot costs an event on its stream, so a bin holds the blocks that
    // one layer of a model frees: 8 MiB.
    classes[i] = {bytes, granules, std::uint32_t(granules * kGranuleBytes / bytes),
                  std::min<std::uint32_t>((8u << 20) / bytes, 64)};
  }
  return classes;
}

}  // namespace detail

inline constexpr std::array<SizeClass, kClasses> kSizeClasses = detail::make_classes();

}  // namespace vmem::runtime
