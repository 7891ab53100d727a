// Memory of this machine as the operating system reports it, for budgets.
#pragma once

#include <cstdint>

#include "pagetable/types.hpp"

namespace vmem::runtime {

constexpr std::uint64_t whole_granules(std::uint64_t bytes) {
  return bytes / pagetable::kGranuleBytes * pagetable::kGranuleBytes;
}

// Installed memory, or the control group's limit if lower.
std::uint64_t total_host_bytes();
// Memory available without swapping: MemAvailable, or the rest of the control group's limit if
// lower.
std::uint64_t available_host_bytes();

}  // namespace vmem::runtime
