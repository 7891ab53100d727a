// Versions of the protocol between nodes. A node serves its own and the one before. On a connection
// both speak the lower of their two versions: the newer node writes the older one's messages.
#pragma once

#include <cstdint>

namespace vmem::rdma {

inline constexpr std::uint16_t kProtocolVersion = 6;

// Whether nodes with these versions can work together.
constexpr bool versions_fit(std::uint16_t a, std::uint16_t b) noexcept { return a <= b ? b - a <= 1 : a - b <= 1; }

}  // namespace vmem::rdma
