// Test pages of several kinds; the same seed gives the same page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace vmem::compress {

using Bytes = std::vector<std::byte>;

enum class Kind : std::uint8_t { zeros, noise, half, bf16, fp32, fp64, counters };
inline constexpr std::array kKinds{Kind::zeros, Kind::noise, Kind::half,    Kind::bf16,
                                   Kind::fp32,  Kind::fp64,  Kind::counters};
std::string_view kind_name(Kind kind);

// noise: incompressible. half: 64 bytes of noise in every 128, the rest repeated (2:1). bf16, fp32,
// fp64: normally distributed weights. counters: consecutive 8-byte integers.
Bytes make_page(Kind kind, std::size_t bytes, std::uint64_t seed = 1);

}  // namespace vmem::compress
