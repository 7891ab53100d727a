// The process's one address range. VA → region is one load from a flat array with 4 bytes per
// granule, which the kernel commits on first touch; region → page is a subtraction and a shift.
// Runs of granules are allocated best fit and merged when freed.
//
// In a cluster the range is joint: each node allocates in its own parts only, which are granted and
// withdrawn. Outside of them lie regions of other nodes, added at the addresses that their owners
// chose. A region lies in an own part as a whole, or outside of all of them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "base/status.hpp"
#include "pagetable/granule_runs.hpp"
#include "pagetable/lazy_array.hpp"
#include "pagetable/region.hpp"
#include "pagetable/shared_pages.hpp"

namespace vmem::pagetable {

class AddressSpace {
 public:
  static constexpr std::uint32_t kMaxRegions = 1u << 20;

  // What the process may allocate in from the start.
  enum class Own : std::uint8_t { all, nothing };

  // REQUIRES: base and bytes are multiples of the granule; the caller has reserved the range.
  static Result<std::unique_ptr<AddressSpace>> create(std::uintptr_t base, std::uint64_t bytes, Own own = Own::all);

  // Any thread, lock-free.
  std::uintptr_t base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool contains(std::uintptr_t address) const noexcept { return address - base_ < bytes_; }
  std::uint32_t granule_at(std::uintptr_t address) const noexcept {
    return std::uint32_t((address - base_) >> kGranuleShift);
  }
  std::uintptr_t address_of(std::uint32_t granule) const noexcept {
    return base_ + (std::uintptr_t{granule} << kGranuleShift);
  }
  // The region of a granule, or null. Region objects stay allocated for the life of the space.
  Region* region_at(std::uint32_t granule) const noexcept {
    const std::uint32_t id = map_[granule].load(std::memory_order_acquire);
    return id == 0 ? nullptr : table_[id];
  }
  // The blocks in regions whose pages are shared.
  SharedPages& sharing() noexcept { return sharing_; }
  const SharedPages& sharing() const noexcept { return sharing_; }

  // The mover only.
  // Makes granules an own part; parts that touch become one. Regions there that would take their
  // granules along when they end leave them. Errors: ADDRESS_SPACE outside the space; INVALID_VALUE
  // if any of the others is in an own part; IN_USE if another region lives there.
  Status grant(std::uint32_t first, std::uint32_t count);
  // Takes granules of an own part away. Errors: INVALID_VALUE if any is in none; IN_USE if a region
  // lives there.
  Status withdraw(std::uint32_t first, std::uint32_t count);
  // Takes away those of these granules that are in own parts. Regions that live there stay: their
  // granules are free again only if they are granted anew.
  void retire(std::uint32_t first, std::uint32_t count);

  // Creates a region of `granules` granules in pages of 2^page_shift granules, aligned to the page
  // size, in state `empty`, in an own part. REQUIRES: whole pages. Errors: ADDRESS_SPACE.
  Result<Region*> add(std::uint32_t granules, std::uint32_t page_shift);
  // Creates another node's region, also in state `empty`; any values may be passed. Errors:
  // ADDRESS_SPACE outside the space, not aligned to the page size, or with no region left; IN_USE
  // if any granule is a region's or in an own part; INVALID_VALUE if it is not of whole pages, or
  // for a serial that is 0, of the own kind, or in the space.
  Result<Region*> add_at(std::uint32_t first, std::uint32_t granules, std::uint32_t page_shift, Serial serial);
  void remove(Region& region);
  Region* find(RegionId id) const noexcept { return id.value < next_id_ ? table_[id.value] : nullptr; }
  // Whether the region lies in an own part.
  bool owns(const Region& region) const { return own_.overlaps(region.first.index, region.granules); }
  // Whether the region was made in an own part that was taken away since.
  bool is_retired(const Region& region) const { return region.serial >= kFirstOwnSerial && !owns(region); }

  // Of own parts.
  std::uint64_t own_bytes() const noexcept { return own_.total() << kGranuleShift; }
  std::uint64_t free_bytes() const noexcept { return free_.total() << kGranuleShift; }
  std::uint64_t largest_free_bytes() const noexcept { return std::uint64_t{free_.longest()} << kGranuleShift; }

 private:
  AddressSpace(std::uintptr_t base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  // What a region has from its beginning.
  struct Shape {
    std::uint32_t first = 0, granules = 0, page_shift = 0;
    Serial serial{};
  };
  Result<Region*> new_region();
  void begin(Region& region, const Shape& shape, std::unique_ptr<Page[]> pages);
  const Region* region_within(std::uint32_t first, std::uint32_t count) const;
  Status check_inside(const char* what, std::uint32_t first, std::uint32_t count) const;
  Status check_unoccupied(const char* what, std::uint32_t first, std::uint32_t count) const;
  Status check_shape(const Shape& shape) const;
  Error no_run(std::uint32_t granules) const;

  const std::uintptr_t base_;
  const std::uint64_t bytes_;
  LazyArray<std::atomic<std::uint32_t>> map_;
  LazyArray<Region*> table_;
  SharedPages sharing_;
  std::deque<Region> regions_;
  std::vector<RegionId> free_ids_;
  std::uint32_t next_id_ = 1;
  Serial next_serial_ = kFirstOwnSerial;
  std::set<Serial> joint_serials_;  // of regions of other nodes
  GranuleRuns own_;                 // own parts
  GranuleRuns free_;                // in own parts, without a region
};

}  // namespace vmem::pagetable
