// How much is loaded at one time from below host memory, and so read ahead from there.
#pragma once

#include <cstdint>

namespace vmem::migration {

// Enough for a disk or a network.
inline constexpr std::uint64_t kBytesInFlight = std::uint64_t{64} << 20;

}  // namespace vmem::migration
