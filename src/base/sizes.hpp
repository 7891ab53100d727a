// Sizes and durations as users write them. Parsing is exact: a value that is not a whole number of
// bytes (or microseconds) is an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace vmem {

// "16GiB" or "16G", "512 MiB", "2MB" (10^6), "4096"; fractions such as "1.5GiB" where whole in
// bytes; units in any case.
// Errors: INVALID_OPTION.
Result<std::uint64_t> parse_bytes(std::string_view text);
// For people: "16 GiB", "1.5 GiB", "300 B"; rounded to three significant digits if more than two
// decimals would be needed.
std::string format_bytes(std::uint64_t bytes);
// For parse_bytes: "1536MiB"; always exact.
std::string exact_bytes(std::uint64_t bytes);

// "100ms", "2s", "250us", "1.5s", "0". Errors: INVALID_OPTION.
Result<std::uint64_t> parse_duration_us(std::string_view text);
// For parse_duration_us: "1500ms"; always exact.
std::string exact_duration_us(std::uint64_t us);

}  // namespace vmem
