// Frames of HBM: taken for pages, and given up by evicted ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "migration/core.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/use_tracker.hpp"

namespace vmem::migration {

// any: stream order puts work on the frame after copies out of it. idle: no copy reads the frame.
enum class Frames { any, idle };

class HbmFrames {
 public:
  HbmFrames(Core& core, const Transfers& transfers, Devices& devices, NearSlots& near, UseTracker& uses)
      : core_(core), transfers_(transfers), devices_(devices), near_(near), uses_(uses) {}

  // A free frame, or a new one within the budget; empty: there is none.
  Result<std::optional<std::uint32_t>> take(Device& device, std::uint64_t page_bytes, Frames frames = Frames::any);
  // Whether uncreated and free frames of all sizes suffice for a page. If `take` found nothing all
  // the same, a store still reads some of these frames: wait instead of evicting more.
  static bool room_in_free(const Device& device, std::uint64_t page_bytes);
  // REQUIRES: unmapped. The frame goes to the free list and stays the page's until it is reused;
  // transfers into it wait for `store`.
  void give_up(PageRef ref, std::uint64_t store);
  // Any thread. True after the first eviction: from then on a wait for a page may depend on uses
  // that end.
  bool evicts() const { return evicts_.load(std::memory_order_relaxed); }

 private:
  Core& core_;
  const Transfers& transfers_;
  Devices& devices_;
  NearSlots& near_;
  UseTracker& uses_;
  std::atomic<bool> evicts_{false};
};

}  // namespace vmem::migration
