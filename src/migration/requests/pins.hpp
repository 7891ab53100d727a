// How much of a device's HBM may be pinned.
#pragma once

#include <cstdint>

#include "migration/place/devices.hpp"

namespace vmem::migration {

// Errors: OUT_OF_MEMORY.
Status check_room_for_pins(const Device& device, std::uint64_t bytes);

}  // namespace vmem::migration
