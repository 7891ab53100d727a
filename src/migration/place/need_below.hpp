// How many bytes the mover tells a tier below that grows (tiers::GrowingTier) to be needed: what
// the commitments of allocations need, or, if that is more, what pages need that found no room
// there. Commitments count on all of HBM. Pages that only the CPU uses never go to HBM, so they may
// find the tier full.
#pragma once

#include <cstdint>

#include "migration/core.hpp"

namespace vmem::migration {

class NeedBelow {
 public:
  explicit NeedBelow(Core& core) : core_(core) {}

  // Once after each growth, or another change, of the budget.
  bool has_grown();
  // What allocations need now. Returns the ticket. REQUIRES: the tier grows.
  std::uint64_t tell(std::uint64_t bytes);
  std::uint64_t told() const { return told_; }
  // What pages that found no room lately need in all; 0: none did.
  std::uint64_t lacking() const { return core_.now_us() < lack_.until_us ? lack_.bytes : 0; }
  // Less is needed once it lacks nothing any more: call tell() then.
  bool lapses() const { return told_ > allocations_; }
  // Whether copies may be looked for that can be released. Not all the time while others are asked:
  // then many pages try again and again, and each look is one at all copies.
  bool may_look_for_copies();
  // For a page that finds no room. True: others have not answered yet. False: nobody grants more.
  bool ask_for_room(std::uint64_t page_bytes);

 private:
  bool is_asking() const;
  struct Lack {
    std::uint64_t ticket = 0;
    std::uint64_t bytes = 0, until_us = 0;
    // When it was asked; and until when no more is asked for, if nothing was granted.
    std::uint64_t budget_bytes = 0, again_us = 0;
  };

  Core& core_;
  std::uint64_t changes_ = 0;  // of the tier, as seen last
  std::uint64_t allocations_ = 0, told_ = 0;
  Lack lack_;
  std::uint64_t look_again_us_ = 0;
};

}  // namespace vmem::migration
