// Puts pages into frames: copies between frames and slots of near memory, and the mapping.
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/flow/fingerprints.hpp"
#include "migration/page/mapper.hpp"
#include "migration/page/pending_pages.hpp"
#include "migration/page/residency.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/use_tracker.hpp"

namespace vmem::migration {

// What a load does about the page's old bytes. discard: the page's user overwrites all of them.
enum class OldBytes : std::uint8_t { fetch, discard };
// Watched, a page whose users declared reads only, but can write, is stored only if it was written:
// its load records what the store compares with.
enum class Watch : std::uint8_t { no, yes };

class Loader {
 public:
  struct Parts {
    Core& core;
    Transfers& transfers;
    Residency& residency;
    PendingPages& pending;
    Mapper& mapper;
    Devices& devices;
    NearSlots& near;
    UseTracker& uses;
    const Fingerprints& fingerprints;
    InPlaceBlocks& in_place;
  };
  explicit Loader(const Parts& parts) : parts_(parts) {}

  // Submits a copy. Returns the transfer's id.
  Result<std::uint64_t> submit(PageRef ref, tiers::Direction direction, std::uint32_t frame, std::uint64_t after,
                               Watch watch);
  // Loads the page into the frame and maps it. On failure the frame is given back.
  Status load(PageRef ref, std::uint32_t frame, pagetable::Access access, OldBytes old = OldBytes::fetch,
              Cause cause = Cause::use);
  // Maps the frame that has the page's bytes: read directly from a file, unmapped by a failed
  // eviction, or in the free list and not reused yet.
  Status remap(PageRef ref, pagetable::Access access, Cause cause = Cause::use);
  // The page was just mapped: tells launches.
  void expose(PageRef ref, pagetable::Mapped mapped, pagetable::Access access, std::uint64_t wait,
              Cause cause = Cause::use);
  // The store that still reads the frame of a page retaken from standby: writes to the frame wait.
  static std::uint64_t store_from_frame(const Page& page);

 private:
  void learn_what_yields(Device& device, std::uint64_t took_us) const;

  Parts parts_;
};

}  // namespace vmem::migration
