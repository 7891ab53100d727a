// What the operating system says of this machine's memory.
#pragma once

#include <cstdint>

namespace vmem::runtime {

// Installed memory, or the control group's limit where that is lower.
std::uint64_t total_host_bytes();
// What can be had without swapping: MemAvailable, or what the control group has left where that is lower.
std::uint64_t available_host_bytes();

}  // namespace vmem::runtime
