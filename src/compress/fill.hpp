// Pages that repeat one 64-bit word, mostly zeros. Rejecting any other page usually takes a few
// nanoseconds, so every page is checked. Such pages need no codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "compress/codec.hpp"

namespace vmem::compress {

inline constexpr CodecId kFill{17};  // pages stored as their word; no codec has this id

// The page's word; nothing if its words differ or its size is not a whole number of words.
std::optional<std::uint64_t> repeated_word(std::span<const std::byte> page);
// REQUIRES: the page is a whole number of words.
void fill(std::span<std::byte> page, std::uint64_t word);

}  // namespace vmem::compress
