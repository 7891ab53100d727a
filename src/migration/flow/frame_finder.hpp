// Finds frames of HBM for pages: free ones, or those of pages that it evicts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/evictor.hpp"
#include "migration/place/devices.hpp"

namespace vmem::migration {

// How far down the policy's list to look for a victim. no_victims: only a free frame will do.
enum class Search { no_victims, first_choices, until_busy };

// The page was read directly (flow/direct_reads.hpp), and is not mapped yet.
bool arrived(PageRef ref);

enum class Victims { any, without_slot };  // without_slot: those that need no new host slot

struct FrameWish {
  PageRef page;  // needs the frame; is not displaced
  Search search;
  Frames frames = Frames::any;
  Victims victims = Victims::any;
};

struct Grab {
  std::optional<std::uint32_t> frame;
  Attempt otherwise = Attempt::never;  // if there is none: what frees one
};

class FrameFinder {
 public:
  struct Parts {
    Core& core;
    Devices& devices;
    const NearSlots& near;
    const Mapper& mapper;
    HbmFrames& frames;
    const Fingerprints& fingerprints;
    Evictor& evictor;
  };
  explicit FrameFinder(const Parts& parts) : parts_(parts) {}

  // A free frame, a new one within the budget, or that of an evicted page. If first choices are
  // busy, GPU progress frees one of them soon, and the search stops there; if all are held, it
  // continues until the policy has no more to offer.
  Result<Grab> grab(const FrameWish& wish);

 private:
  Result<Grab> find(Device& device, const FrameWish& wish);
  Result<bool> evict_one_of(Device& device, const FrameWish& wish, std::span<const PageId> candidates, Grab& grab);
  bool leaves_without_slot(PageRef ref) const;

  Parts parts_;
};

}  // namespace vmem::migration
