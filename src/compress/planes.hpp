// Splits elements of 2, 4 or 8 bytes into byte planes (all first bytes, then all second bytes ...)
// and joins them again. Floating-point numbers of similar magnitude share exponents, while their
// mantissas are noise: exponents compress well if separated from mantissas, and hardly otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace vmem::compress {

inline constexpr std::size_t kMostPlanes = 8;
using Planes = std::array<std::byte*, kMostPlanes>;  // only the first `width` are used
using ConstPlanes = std::array<const std::byte*, kMostPlanes>;

// `elements` elements of `width` bytes; each plane has `elements` bytes.
// REQUIRES: width is 2, 4 or 8; no memory overlaps.
void split_planes(const std::byte* in, std::size_t elements, std::size_t width, const Planes& planes);
void join_planes(const ConstPlanes& planes, std::size_t elements, std::size_t width, std::byte* out);

}  // namespace vmem::compress
