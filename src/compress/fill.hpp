// Pages of one 64-bit word again and again: of zeros, above all. To find out that a page is another takes a few nanoseconds, so every page is
// looked at, and needs no codec then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "compress/codec.hpp"

namespace vmem::compress {

inline constexpr CodecId kFill{17};  // of pages that are stored as their word; no codec has it

// Nothing: it has other words, or is no whole number of them.
std::optional<std::uint64_t> repeated_word(std::span<const std::byte> page);
// REQUIRES: a whole number of words.
void fill(std::span<std::byte> page, std::uint64_t word);

}  // namespace vmem::compress
