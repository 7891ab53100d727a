// Regions from their free to the end of their last use.
#pragma once

#include <cstdint>
#include <vector>

#include "migration/core.hpp"
#include "migration/flow/ahead.hpp"
#include "migration/flow/committer.hpp"
#include "migration/flow/lending.hpp"
#include "migration/page/losses.hpp"
#include "migration/page/pending_pages.hpp"
#include "migration/use/use_tracker.hpp"

namespace vmem::migration {

class Endings {
 public:
  struct Parts {
    Core& core;
    Transfers& transfers;
    Residency& residency;
    PendingPages& pending;
    Mapper& mapper;
    Losses& losses;
    Devices& devices;
    NearSlots& near;
    Below& below;
    Contents& contents;
    Promotions& promotions;
    InPlaceBlocks& in_place;
    UseTracker& uses;
    Ahead& ahead;
    Lending& lending;
    Committer& committer;
  };
  explicit Endings(const Parts& parts) : parts_(parts) {}

  // `last` covers work queued before the free. Errors: IN_USE; INVALID_POINTER (freed already).
  Status end(Region& region, Stamp last);
  // Releases what the uses that have ended leave.
  void finish();
  const std::vector<Region*>& regions() const { return regions_; }

 private:
  bool finish(Region& region, std::uint32_t& budget);
  bool release_page(PageRef ref);

  Parts parts_;
  std::vector<Region*> regions_;
  std::uint64_t unmap_failures_ = 0;  // logged at every power of two
};

}  // namespace vmem::migration
