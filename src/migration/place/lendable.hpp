// How much of each GPU's memory others may have.
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/place/devices.hpp"

namespace vmem::migration {

// The part of the budget that a device's own allocations leave, at most `most_bytes`.
std::uint64_t left_to_lend(const Device& device, std::uint64_t most_bytes);
// What the memory may lend now.
std::uint64_t lendable(const Devices& devices, const PeerTier& lent);
// That, but for memory that its owner may reclaim.
std::uint64_t lent_for_certain(const Devices& devices, const PeerTier& lent);
// True if other processes were asked to return memory that allocations need, and still have time.
bool lent_comes_back(const Core& core, const Devices& devices);

}  // namespace vmem::migration
