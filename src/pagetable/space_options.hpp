// Options of this module. The address space.
#pragma once

#include <cstdint>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct SpaceOptions {
  // --base: first address of the space (hex); a hint on a single node
  std::uint64_t base = 0x7d0000000000;
  std::uint64_t space_bytes = std::uint64_t{1} << 40;  // --space: 2 MiB multiple, 64 MiB .. 64 TiB
};

std::vector<Option<SpaceOptions>> space_options();

}  // namespace vmem
