// Elements of 2, 4 or 8 bytes to and from byte planes: all first bytes, then all second bytes ... Floating-point numbers of similar size
// have the same exponents, and their mantissas are noise; apart from each other the former compress, together hardly.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace vmem::compress {

inline constexpr std::size_t kMostPlanes = 8;
using Planes = std::array<std::byte*, kMostPlanes>;  // the first `width` count
using ConstPlanes = std::array<const std::byte*, kMostPlanes>;

// `elements` elements of `width` bytes; each plane has `elements` bytes. REQUIRES: width is 2, 4 or 8; nothing overlaps.
void split_planes(const std::byte* in, std::size_t elements, std::size_t width, const Planes& planes);
void join_planes(const ConstPlanes& planes, std::size_t elements, std::size_t width, std::byte* out);

}  // namespace vmem::compress
