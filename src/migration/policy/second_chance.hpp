// The default policy. A page's worth is how soon it will be used again, judged by the distance between its last uses: a page that
// came back quickly is kept, one that comes back late, or was seen only once, goes first. Among pages alike the most recently
// used goes first, because in a cyclic scan its next use is farthest; so a scan larger than HBM keeps the same share of its pages
// from cycle to cycle instead of none. The second chance: a page stays a while after each use (as long as repeated uses have
// lately been apart), and a page whose time has passed without a use loses its rank to age and leaves, oldest first.
//
// Prefetch follows scans (scan.hpp), each a bounded distance ahead, all of them fairly (prefetch_plan.hpp).
//
// Refusals: an offered page is set aside. A query that says `again` gets the next best; a new query, and each use of a page,
// puts what was set aside back to its place first.
// Dropped prefetches: a page asked for that has not arrived although two pages that its scan asked for later have counts as
// dropped, and is asked for again when the scan next moves, if it is still ahead. Time would be no measure: where the link is the
// limit every page arrives just before its use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "migration/policy/policy.hpp"

namespace vmem::migration {

struct SecondChanceOptions {
  std::uint32_t prefetch_pages = 8;      // pages kept ahead of each scan; 0 turns prefetch off
  std::vector<std::uint64_t> hbm_bytes;  // budget by device; a device not listed, or 0, is taken to have 64 GiB
};

std::unique_ptr<Policy> make_second_chance_policy(const SecondChanceOptions& options);

}  // namespace vmem::migration
