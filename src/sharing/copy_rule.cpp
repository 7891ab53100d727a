#include "sharing/copy_rule.hpp"

namespace vmem::sharing {
namespace {

constexpr std::uint32_t number(CopyRule::Place place) { return static_cast<std::uint32_t>(place); }

}  // namespace

// The levels of PlaceRates are not used: whatever is faster at the moment may go first.
CopyRule::CopyRule() {
  for (const Place place : {Place::nodes, Place::disks}) rates_.add(number(place), tiers::PlaceRates::Untried::last);
}

CopyRule::Begun CopyRule::begins(Place place, std::uint64_t bytes, std::uint64_t now_us) {
  return rates_.begins(number(place), tiers::Direction::load, bytes, now_us);
}

void CopyRule::ended(const Begun& begun, bool moved, std::uint64_t now_us) {
  rates_.ended(begun, moved, now_us);
  if (moved && begun.place == number(Place::disks)) last_disk_us_ = now_us;
}

double CopyRule::bytes_s(Place place) const { return rates_.bytes_s(number(place)); }

bool CopyRule::admits(const Candidate& page) {
  if (!page.fetched_before) return false;
  if (page.last_source) return true;
  const double disks = bytes_s(Place::disks), nodes = bytes_s(Place::nodes);
  if (disks == 0) return candidates_++ % kTrialEvery < kTrialPages;
  return nodes != 0 && disks > nodes;
}

bool CopyRule::prefers_disks() const {
  const double disks = bytes_s(Place::disks);
  return disks == 0 || disks > bytes_s(Place::nodes);
}

CopyRule::Place CopyRule::first_place(std::uint64_t now_us) {
  if (prefers_disks()) return Place::disks;
  if (now_us - last_disk_us_ <= kForgetUs) return Place::nodes;
  rates_.remove(number(Place::disks));
  rates_.add(number(Place::disks), tiers::PlaceRates::Untried::last);
  return Place::disks;
}

}  // namespace vmem::sharing
