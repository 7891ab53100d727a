// The seam between decisions and mechanism. A policy sees what happened to pages, in order, and answers which pages to give up
// and which to fetch ahead. It is pure: no locks, no I/O, no clock, no knowledge of tiers; one mover calls it, so its
// decisions can be replayed and fuzzed. The mover checks every answer and may ignore it (a page is held, or busy).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetable/types.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::PageId;
using pagetable::RegionId;

// What the policy needs to know of a region, given when it begins.
struct RegionShape {
  RegionId id;
  std::uint32_t pages = 0;
  std::uint64_t page_bytes = 0;
  int device = 0;
  bool shared = false;      // holds small allocations
  bool undeclared = false;  // used as a whole, in an order that repeats itself
};

enum class Preference : std::uint8_t { normal, prefer_hbm, prefer_host };

// A run of consecutive pages of one region used together by one acquire; in the order of the acquires on a stream.
struct Use {
  RegionId region;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  Access access = Access::read;
  std::uint16_t stream = 0;  // stream record index
};

struct VictimQuery {
  int device = 0;
  std::uint64_t page_bytes = 0;    // pages of this size are worth most: their frames can be reused as they are
  std::uint64_t bytes_wanted = 0;  // more pages may be offered, in case some are refused
  bool again = false;              // what the last query offered was refused, or did not suffice: offer others
  // Only pages that are better not kept: for the rest it is better to wait until one of these can go.
  bool gladly = false;
};

struct PrefetchQuery {
  int device = 0;
  std::uint64_t bytes_room = 0;  // what may be fetched ahead now
  std::uint64_t bytes_free = 0;  // what no page has: nothing must leave for so much
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual void region_begins(const RegionShape& region) = 0;
  virtual void region_ends(RegionId region) = 0;
  // The page got, or gave up, its HBM frame.
  virtual void page_arrived(PageId page, bool prefetched) = 0;
  virtual void page_left(PageId page) = 0;
  virtual void page_prefers(PageId page, Preference preference) = 0;
  virtual void used(const Use& use) = 0;
  // The bytes of the region are of no use to anybody until further notice (true), or matter again (false).
  virtual void region_dead(RegionId region, bool dead) = 0;

  // Pages in HBM to give up, best first; fills `out` and returns how many. Among pages alike those of page_bytes come first.
  // The mover makes `out` as large as the refusals it reckons with. A new query starts from the best page; one that says
  // `again` goes on behind what was offered since, so the mover decides how deep to go, and no refused page is in its way.
  virtual std::size_t victims(const VictimQuery& query, std::span<PageId> out) = 0;
  // Pages worth fetching now, soonest needed first, none of them in HBM; at most bytes_room in sum.
  virtual std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) = 0;

  // Pages to give up before anybody wants their room, since they will have to go before they are used again: first those whose room
  // is wanted first, and round again for those that have not gone.
  virtual std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) {
    (void)query;
    (void)out;
    return 0;
  }

  // What it keeps for the live regions and their pages.
  virtual std::uint64_t metadata_bytes() const = 0;
};

}  // namespace vmem::migration
