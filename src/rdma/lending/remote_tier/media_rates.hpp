// What each lender's memory, HBM and disks deliver, measured from the pages that are stored there
// and loaded; tells the placer which are faster.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "tiers/place_rates.hpp"

namespace vmem::rdma {

class MediaRates {
 public:
  // Both outlive this.
  MediaRates(CopyPlacer& placer, const Clock& clock) : placer_(placer), clock_(clock) {}

  using Begun = tiers::PlaceRates::Begun;
  Begun begins(const CopyPlace& at, tiers::Direction direction, std::uint64_t bytes);
  // `moved`: the page arrived.
  void ended(const Begun& begun, bool moved);
  // Tells the placer, and the log, if the order has changed.
  void settle();

 private:
  wire::MediumBytes lendable(std::uint32_t node) const;
  void look_at_lenders();
  std::string words() const;

  CopyPlacer& placer_;
  const Clock& clock_;
  tiers::PlaceRates rates_;
  std::uint64_t look_us_ = 0;  // not before this
  LogLimit changed_;
};

}  // namespace vmem::rdma
