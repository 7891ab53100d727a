#include "migration/flow/in_flight_limits.hpp"

#include <algorithm>

namespace vmem::migration {
namespace {

constexpr std::uint64_t kHostShare = 4;
constexpr std::uint64_t kBytesInFlight = std::uint64_t{64} << 20;

}  // namespace

bool usual_room(std::uint64_t in_flight_bytes, std::uint64_t page_bytes) {
  return in_flight_bytes + page_bytes <= std::max(tiers::TierInfo{}.busy_pages * page_bytes, kBytesInFlight);
}

bool room_in_flight(const Core& core, const tiers::Tier& tier, std::uint64_t in_flight_bytes,
                    std::uint64_t page_bytes) {
  if (usual_room(in_flight_bytes, page_bytes)) return true;
  const std::uint64_t with_it = in_flight_bytes + page_bytes;
  return with_it <= tier.info().busy_pages * page_bytes &&
         with_it <= core.config.backing->usage().budget_bytes / kHostShare;
}

}  // namespace vmem::migration
