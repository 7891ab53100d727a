// Selects pages to prefetch on one device. Every active scan gets the same distance, and in distant
// regions enough to keep a disk or a network busy, all together at most a quarter of the budget; an
// answer takes pages from the scans in turn. Resident pages on a scan's way are skipped and do not
// count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "migration/policy/page_state.hpp"

namespace vmem::migration {

class PrefetchPlan {
 public:
  PrefetchPlan(RegionTable& regions, const ReuseClock& clock, std::uint32_t prefetch_pages)
      : regions_(regions), clock_(clock), prefetch_pages_(prefetch_pages) {}

  // `scan` of `region` has advanced.
  void scan_moved(Region& region, Scan& scan);
  // `scan` ended: other scans may request its pages in flight again.
  void scan_dropped(Region& region, Scan& scan);
  void region_ends(Region& region);
  std::size_t next(std::uint64_t bytes_room, std::span<PageId> out);

 private:
  struct Wish {  // the pages that one scan wants, in wished_pages_
    Region* region;
    Scan* scan;
    std::size_t begin, end, given;
  };

  void forget_requests(Region& region, Scan& scan);
  bool active(const Scan& scan) const;
  void collect_active();
  std::uint32_t share_pages(const Region& region) const;
  std::uint32_t distance(const Region& region) const;
  void plan(Region& region, Scan& scan);
  std::uint32_t plan_along(Region& region, std::uint32_t wanted, const Scan& scan, bool past_turn);
  std::size_t share_out(std::uint64_t bytes_room, std::span<PageId> out);
  void take_back_unanswered();

  RegionTable& regions_;
  const ReuseClock& clock_;
  const std::uint32_t prefetch_pages_;
  std::vector<RegionId> scanning_;  // regions that may have an active scan
  bool changed_ = false;            // a scan advanced since the last complete answer
  std::size_t turn_ = 0;            // which scan comes first in the next answer
  // Scratch; empty between calls.
  std::vector<Wish> wishes_;
  std::vector<std::uint32_t> wished_pages_;
};

}  // namespace vmem::migration
