// The default policy. It estimates a page's next use from the distance between its last uses: pages
// used again quickly stay; pages used again late, or only once, are evicted first. Among equals the
// most recently used is evicted first: in a cyclic scan its next use is farthest. So a scan larger
// than HBM keeps the same share of its pages from cycle to cycle instead of none. The second
// chance: a page stays in HBM after each use for about the distance of recent repeats. A page
// overdue for its next use ranks by age, oldest first.
//
// Prefetch follows scans (scan.hpp), each for a bounded distance, all of them fairly
// (prefetch_plan.hpp).
//
// Refusals: an offered page is set aside. A query with `again` gets the next best. A new query, and
// each use of a page, first returns pages set aside to their lists.
// Dropped prefetches: a requested page that has not arrived, although two pages that its scan
// requested later have, counts as dropped. It is requested again when the scan next advances, if it
// is still ahead. A timeout would not work: where the link is the limit, every page arrives just
// before its use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "migration/policy/policy.hpp"

namespace vmem::migration {

struct SecondChanceOptions {
  std::uint32_t prefetch_pages = 8;      // kept ahead of each scan; 0: no prefetch
  std::vector<std::uint64_t> hbm_bytes;  // budget by device; unlisted or 0: 64 GiB
};

std::unique_ptr<Policy> make_second_chance_policy(const SecondChanceOptions& options);

}  // namespace vmem::migration
