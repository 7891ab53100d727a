// The live regions, and whether all of their pages are resident: mapped in HBM, with no load to
// wait for. While that holds, a launch need not look at its arguments, nor log its uses. Both end
// for good when tracking begins.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "migration/core.hpp"

namespace vmem::migration {

class Residency {
 public:
  Residency(const Core& core, bool tracks) : core_(core), tracks_(tracks) {}

  // Any thread. Whether launches must log their uses. While every page fits, a launch only notes
  // itself on its stream (StreamRecord::note_untracked) and counts as a use of everything; all
  // mappings then lie in HBM. Sequentially consistent, like Region::dead and life: a freed region
  // whose `dead` the mover sees when tracking begins is used later only by launches that log.
  bool tracks() const { return tracks_.load(std::memory_order_seq_cst); }
  // Any thread. While tracking is off: bit i is set if every page is resident and accessible to
  // device i. A launch that publishes a hold of everything before it calls this need not look at
  // its arguments.
  std::uint32_t all_resident() const { return all_resident_.load(std::memory_order_seq_cst); }

  // The mover only, from here on.
  const std::vector<Region*>& live() const { return live_; }
  // Sets a page's state word. The bits that say where it is follow from the page.
  void publish(PageRef ref, PageState next);
  void begin_tracking();
  void make_room_for_region();  // so that `region_begins` allocates nothing
  void region_begins(Region& region);
  void region_ends(const Region& region);
  // So many more pages of the region begin, and none of them is mapped yet.
  void region_extended(Region& region, std::uint32_t pages);
  // A live region was opened to these further devices, which its mapping_devices already name; bit
  // i: device i.
  void opened_to(std::uint32_t devices) { count_openings(devices, 1); }
  // Call at the end of a step, before any ended region's record is reused: away_ still points to
  // those.
  void find_all_resident();
  std::uint32_t declared_regions() const { return declared_regions_; }

 private:
  void not_resident(Region& region);
  void count_openings(std::uint32_t devices, int by);

  const Core& core_;
  std::vector<Region*> live_;
  std::vector<Region*> away_;  // not fully resident when last checked
  // Live ones. While there are any, nothing counts as all resident: acquires map their pages later.
  std::uint32_t declared_regions_ = 0;
  std::array<std::uint32_t, 32> openings_{};  // live regions that each device may access
  std::atomic<bool> tracks_;
  std::atomic<std::uint32_t> all_resident_{0};
};

}  // namespace vmem::migration
