// Options of this module. The address space.
#pragma once

#include <cstdint>
#include <vector>

#include "base/option.hpp"

namespace vmem {

// A member's space, unless base or space is given: room for a thousand slices of 64 GiB, below
// where programs and libraries are loaded.
inline constexpr std::uint64_t kClusterBase = 0x110000000000, kClusterSpaceBytes = std::uint64_t{64} << 40;

struct SpaceOptions {
  // --base: first address of the space (hex); a hint on a single node
  std::uint64_t base = 0x7d0000000000;
  std::uint64_t space_bytes = std::uint64_t{1} << 40;  // --space: 2 MiB multiple, 64 MiB .. 64 TiB
};

// For members of a cluster that were given neither base nor space.
inline void use_cluster_space(SpaceOptions& options) {
  options.base = kClusterBase;
  options.space_bytes = kClusterSpaceBytes;
}

std::vector<Option<SpaceOptions>> space_options();

}  // namespace vmem
