#include "migration/flow/in_flight_limits.hpp"

#include <algorithm>

#include "migration/policy/bytes_in_flight.hpp"

namespace vmem::migration {
namespace {

constexpr std::uint64_t kHostShare = 4;
constexpr std::uint64_t kLeastInQueue = 2;  // pages

std::uint64_t usual_bytes(std::uint64_t page_bytes) {
  return std::max(tiers::TierInfo{}.busy_pages * page_bytes, kBytesInFlight);
}

}  // namespace

bool usual_room(std::uint64_t in_flight_bytes, std::uint64_t page_bytes) {
  return in_flight_bytes + page_bytes <= usual_bytes(page_bytes);
}

std::uint64_t most_in_flight(const Core& core, const tiers::Tier& tier, std::uint64_t page_bytes) {
  const std::uint64_t share = core.config.backing->usage().budget_bytes / kHostShare;
  return std::max(usual_bytes(page_bytes), std::min(tier.info().busy_pages * page_bytes, share));
}

bool room_in_queue(std::uint64_t limit, const Below::InFlightBytes& now, std::uint32_t queue,
                   std::uint64_t page_bytes) {
  const std::uint64_t there = now.in(queue) + page_bytes;
  if (there <= kLeastInQueue * page_bytes) return true;
  return now.total + page_bytes <= limit && there <= limit / now.queues_with(queue);
}

}  // namespace vmem::migration
