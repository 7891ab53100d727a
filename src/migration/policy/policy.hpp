// The interface between decisions and mechanism. A policy receives the events of pages in order,
// and selects pages to evict and to prefetch. It is pure: no locks, no I/O, no clock, no knowledge
// of tiers. One mover calls it, so its decisions can be replayed and fuzzed. The mover checks every
// answer and may ignore it (a page is held or busy). A policy ignores events about regions and
// pages that it does not know, and has no answers for devices without regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetable/types.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::PageId;
using pagetable::RegionId;

// A region's properties, given when it begins.
struct RegionShape {
  RegionId id;
  std::uint32_t pages = 0;
  std::uint64_t page_bytes = 0;
  int device = 0;
  bool slab = false;        // of small allocations
  bool undeclared = false;  // its program does not call vmem: a use counts for the whole region
  bool shared = false;      // blocks share its pages: a use counts for the pages that it names
  bool distant = false;     // its pages may come from disks, files or other nodes
};

// Why a page comes into a frame: for a use, or ahead of one.
enum class Cause : std::uint8_t { use, prefetch };

// in_place: used in host memory, and not fetched.
enum class Preference : std::uint8_t { normal, prefer_hbm, prefer_host, in_place };

// A run of consecutive pages of one region that one acquire or launch uses; in order per stream.
struct Use {
  RegionId region;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  Access access = Access::read;
  std::uint16_t stream = 0;  // stream record index
};

struct VictimQuery {
  int device = 0;
  std::uint64_t page_bytes = 0;    // preferred size: such a frame is reusable as it is
  std::uint64_t bytes_wanted = 0;  // the policy may offer more, in case some are refused
  bool again = false;              // the last offers were refused or too few: offer others
};

struct PrefetchQuery {
  int device = 0;
  std::uint64_t bytes_room = 0;  // limit for this call
  std::uint64_t bytes_free = 0;  // free memory: prefetching this much evicts nothing
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Replaces a region of the same id. Allocate for all its pages here: if that throws
  // std::bad_alloc, the caller undoes the region. Other events come in the middle of a move.
  virtual void region_begins(const RegionShape& region) = 0;
  virtual void region_ends(RegionId region) = 0;  // its pages end with it, without page_left
  // The page got, or lost, its HBM frame.
  virtual void page_arrived(PageId page, Cause cause) = 0;
  virtual void page_left(PageId page) = 0;
  // Pages that prefer host memory, or are used in place, are evicted before all others, those that
  // prefer HBM after.
  virtual void page_prefers(PageId page, Preference preference) = 0;
  // Before or after the pages arrive. A run that goes beyond its region counts up to the end.
  virtual void used(const Use& use) = 0;
  // The contents of `count` pages became worthless (true), or matter again (false).
  virtual void pages_dead(PageId first, std::uint32_t count, bool dead) = 0;

  // Fills `out` with pages in HBM to evict, best first, and returns their number; 0 if no bytes are
  // wanted. Among equals, pages of page_bytes come first; in an order by age, where no two pages
  // are equal, all of them come before other sizes. The size of `out` allows for refusals. A new
  // query starts from the best page; one with `again` continues after the pages offered since, so
  // the mover decides how far to go, and is not offered a refused page again.
  virtual std::size_t victims(const VictimQuery& query, std::span<PageId> out) = 0;
  // Pages to fetch now, none of them in HBM, soonest needed first; at most bytes_room in total.
  virtual std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) = 0;

  // Pages to evict now, ahead of demand: they would have to be evicted before their next use. Those
  // whose room is needed first come first. A call continues where the previous one stopped; after
  // the last page it starts over, with those still in HBM. 0: none.
  virtual std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) = 0;

  // Memory for the live regions and their pages. Without regions, 0, and nothing stays allocated.
  virtual std::uint64_t metadata_bytes() const = 0;
};

}  // namespace vmem::migration
