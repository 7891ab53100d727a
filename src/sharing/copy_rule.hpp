// Which pages of other nodes get a copy on this node's disks, and whether a page with a copy is
// loaded from the disk or from other nodes.
//
// A page gets a copy if it was fetched before, and either
// - the disks deliver loads at a higher rate than other nodes do, both measured here; or
// - one node has the page besides this one, and that is not its publisher; or
// - the disks' rate is not known: then kTrialPages of kTrialEvery such pages do.
// A page with a copy is loaded from the disk, unless other nodes deliver at least at the disks'
// rate. Then the disks' rate is forgotten kForgetUs after the last load from there, so that the
// next loads measure it again.
//
// Pure: the clock is the caller's. Times are microseconds. One thread.
#pragma once

#include <array>
#include <cstdint>

#include "tiers/place_rates.hpp"

namespace vmem::sharing {

class CopyRule {
 public:
  static constexpr std::uint64_t kTrialEvery = 128, kTrialPages = tiers::PlaceRates::kMeasured;
  static constexpr std::uint64_t kForgetUs = 30'000'000;
  enum class Place : std::uint8_t { nodes, disks };

  CopyRule();

  // Loads, from their submission to their end. `moved`: see PlaceRates.
  using Begun = tiers::PlaceRates::Begun;
  Begun begins(Place place, std::uint64_t bytes, std::uint64_t now_us);
  void ended(const Begun& begun, bool moved, std::uint64_t now_us);

  struct Candidate {
    bool fetched_before = false;
    bool last_source = false;  // see tiers::CameFrom
  };
  // Of a page that was fetched and has no copy.
  bool admits(const Candidate& page);
  // Where a page with a copy is loaded from first: first_place may forget the disks' rate.
  bool prefers_disks() const;
  Place first_place(std::uint64_t now_us);
  double bytes_s(Place place) const;  // 0: not known

 private:
  tiers::PlaceRates rates_;
  std::uint64_t candidates_ = 0;    // while the disks' rate was not known
  std::uint64_t last_disk_us_ = 0;  // when a load from the disks ended last
};

}  // namespace vmem::sharing
