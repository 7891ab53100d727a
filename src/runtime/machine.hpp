// What the operating system says of this machine's memory, and what budgets can be of it.
#pragma once

#include <cstdint>

#include "pagetable/types.hpp"

namespace vmem::runtime {

constexpr std::uint64_t whole_granules(std::uint64_t bytes) {
  return bytes / pagetable::kGranuleBytes * pagetable::kGranuleBytes;
}

// Installed memory, or the control group's limit where that is lower.
std::uint64_t total_host_bytes();
// What can be had without swapping: MemAvailable, or what the control group has left where that is lower.
std::uint64_t available_host_bytes();

}  // namespace vmem::runtime
