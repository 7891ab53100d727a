// What a region is for.
#pragma once

#include <cstdint>

namespace vmem::migration {

enum class RegionKind : std::uint8_t {
  declared,    // one allocation; its program says what it uses
  undeclared,  // one allocation of a program that does not call vmem
  shared,      // several allocations of such a program (pagetable/shared_pages.hpp)
  slab,        // small allocations
};

}  // namespace vmem::migration
