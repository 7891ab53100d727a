// How many bytes may be in flight in one direction. Enough to keep the link or disk busy between
// two steps: a load that starts earlier gains nothing, and evicts a page too soon.
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/place/below.hpp"
#include "migration/place/devices.hpp"

namespace vmem::migration {

// The usual limit: some pages, or 64 MiB if that is more.
bool usual_room(std::uint64_t in_flight_bytes, std::uint64_t page_bytes);
// That, or TierInfo::busy_pages, but at most a part of host memory.
std::uint64_t most_in_flight(const Core& core, const tiers::Tier& tier, std::uint64_t page_bytes);
// Whether another transfer in this queue may begin (Below::InFlightBytes). Each queue has a share
// of the limit, so that one that does not move holds up no other. Two pages may always be in it.
bool room_in_queue(std::uint64_t limit, const Below::InFlightBytes& now, std::uint32_t queue, std::uint64_t page_bytes);
inline bool load_has_room(const Device& device, std::uint64_t page_bytes) {
  return usual_room(device.loads_bytes, page_bytes);
}

}  // namespace vmem::migration
