// When GPU work uses pages, and whether that work is complete. Launching threads log their uses;
// until tracking begins (page/residency.hpp) they only note themselves on their stream.
#pragma once

#include <cstdint>
#include <vector>

#include "migration/core.hpp"
#include "migration/page/residency.hpp"
#include "migration/place/contents.hpp"
#include "migration/place/devices.hpp"
#include "migration/use/in_place_blocks.hpp"
#include "migration/use/promotions.hpp"

namespace vmem::migration {

class UseTracker {
 public:
  UseTracker(Core& core, Residency& residency, Devices& devices, Contents& contents, Promotions& promotions,
             InPlaceBlocks& in_place, NearSlots& near)
      : core_(core),
        residency_(residency),
        devices_(devices),
        contents_(contents),
        promotions_(promotions),
        in_place_(in_place),
        near_(near) {}

  // Reads the threads' logs: stamps pages, and tells the policies.
  void drain();
  // Before the first eviction: adds the uses that launches and frees did not log.
  void start_tracking();
  void stamp(Region& region, Stamp use);
  void stamp_untracked(Region& region);
  bool uses_complete(Region& region, Page& page);
  // Whether the work behind a stamp is complete. Records an event if none covers the stamp.
  bool complete(Stamp stamp);
  // The program freed blocks in these pages or allocated them anew, perhaps both by now. Without
  // shared pages a region changes as a whole.
  void pages_changed(Region& region, std::uint32_t first, std::uint32_t count);

 private:
  // For a trace: what the threads' logs held, one thread after the other.
  struct Heard {
    std::uint32_t slot;
    pagetable::RegionId region;  // which the use was of; 0: none
    pagetable::LoggedUse use;
  };
  struct Piece {  // of heard_: a launch with its uses, or a change
    std::uint64_t at_ns;
    std::size_t first, end;
  };

  void changed_together(Region& region, std::uint32_t first, std::uint32_t count, std::uint64_t& told);
  static void record_shared(trace::Recorder& to, std::uint32_t slot, const Region& region,
                            const pagetable::LoggedUse& use);
  void on_use(std::uint32_t slot, const pagetable::LoggedUse& use);
  void hear(trace::Recorder& to, std::uint32_t slot, const pagetable::LoggedUse& use);
  void record_heard(trace::Recorder& to);
  void record(trace::Recorder& to, const Heard& heard) const;
  void find_pieces();
  void used_untracked(Region& region);
  void stamp(Region& region, Page& page, Stamp use);

  Core& core_;
  Residency& residency_;
  Devices& devices_;
  Contents& contents_;
  Promotions& promotions_;
  InPlaceBlocks& in_place_;
  NearSlots& near_;
  std::vector<Stamp> untracked_;      // the last untracked use of each stream
  bool untracked_before_ = false;     // an untracked use was seen
  std::uint64_t cover_failures_ = 0;  // logged at every power of two
  std::vector<Heard> heard_, unfinished_;
  std::vector<Piece> pieces_;
};

}  // namespace vmem::migration
