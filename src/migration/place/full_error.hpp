// Why a page finds no memory: what is in use, tier by tier.
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/place/below.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"

namespace vmem::migration {

// `what` of `bytes` was asked for. OUT_OF_MEMORY.
Error full_error(const Core& core, const Devices& devices, const NearSlots& near, const Below& below, const char* what,
                 std::uint64_t bytes);

}  // namespace vmem::migration
