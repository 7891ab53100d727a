// Blocks of undeclared programs that are used in place since that proved faster
// (policy/in_place_trials.hpp). Only pages that a block has alone are: others may serve another
// block in HBM. The mover only.
#pragma once

#include <cstdint>
#include <deque>

#include "migration/core.hpp"
#include "migration/page/residency.hpp"
#include "migration/policy/in_place_trials.hpp"

namespace vmem::migration {

class InPlaceBlocks {
 public:
  // The trials take at most half of near memory.
  InPlaceBlocks(Core& core, Residency& residency)
      : core_(core),
        residency_(residency),
        trials_(core.config.backing == nullptr ? 0 : core.config.backing->usage().budget_bytes / 2) {}

  // A page left HBM, and so many of its bytes differed from its copy.
  void compared(PageRef ref, std::uint64_t changed_bytes);
  void fetched(PageRef ref);  // into HBM
  void used(pagetable::Span block, Stamp stamp);
  void page_died(PageRef ref);  // what it held is worthless
  void region_ended(const Region& region);
  void look();  // once a step
  // The program asks for it, or no longer does. A page that is in HBM leaves first when others need
  // room.
  void advised(PageRef ref, bool in_place);
  // Something uses it that cannot do so in place.
  void needed_in_hbm(PageRef ref);
  // Uses are being timed: call look() every millisecond.
  bool waits() const { return !ends_.empty() || trials_.measuring(); }

 private:
  bool on() const { return core_.config.tries_in_place && core_.config.in_place != nullptr; }
  void apply(const InPlaceTrials::Changes& changes);
  void set(InPlaceTrials::Block block, bool in_place);
  bool done(Stamp stamp);

  Core& core_;
  Residency& residency_;
  InPlaceTrials trials_;
  std::deque<Stamp> ends_;  // uses that end windows, until the GPU has done them
};

}  // namespace vmem::migration
