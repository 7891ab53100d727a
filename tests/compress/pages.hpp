// Pages of every kind that codecs meet, the same for the same seed.
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

// noise: does not compress. half: of 128 bytes, 64 are noise and 64 have been there: 2:1. bf16, fp32, fp64: weights of a normal
// distribution. counters: 8-byte integers in a row.
Bytes make_page(Kind kind, std::size_t bytes, std::uint64_t seed = 1);

}  // namespace vmem::compress
