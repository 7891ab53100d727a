// The process's one address range. VA → region is one load from a flat array with 4 bytes per
// granule, which the kernel commits on first touch; region → page is a subtraction and a shift.
// Runs of granules are allocated best fit and merged when freed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "pagetable/lazy_array.hpp"
#include "pagetable/region.hpp"
#include "pagetable/shared_pages.hpp"

namespace vmem::pagetable {

class AddressSpace {
 public:
  static constexpr std::uint32_t kMaxRegions = 1u << 20;

  // REQUIRES: base and bytes are multiples of the granule; the caller has reserved the range.
  static Result<std::unique_ptr<AddressSpace>> create(std::uintptr_t base, std::uint64_t bytes);

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
  // Creates a region of `granules` granules in pages of 2^page_shift granules, aligned to the page
  // size, in state `empty`. REQUIRES: whole pages. Errors: ADDRESS_SPACE.
  Result<Region*> add(std::uint32_t granules, std::uint32_t page_shift);
  void remove(Region& region);
  Region* find(RegionId id) const noexcept { return id.value < next_id_ ? table_[id.value] : nullptr; }
  std::uint64_t free_bytes() const noexcept { return free_granules_ << kGranuleShift; }
  std::uint64_t largest_free_bytes() const noexcept;

 private:
  AddressSpace(std::uintptr_t base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  using Run = std::pair<std::uint32_t, std::uint32_t>;  // length, first
  void insert_run(std::uint32_t first, std::uint32_t count);
  bool take_run(std::uint32_t count, std::uint32_t align, std::uint32_t& first);
  Region* new_region();

  const std::uintptr_t base_;
  const std::uint64_t bytes_;
  LazyArray<std::atomic<std::uint32_t>> map_;
  LazyArray<Region*> table_;
  SharedPages sharing_;
  std::deque<Region> regions_;
  std::vector<RegionId> free_ids_;
  std::uint32_t next_id_ = 1;
  Serial next_serial_ = kFirstOwnSerial;
  std::map<std::uint32_t, std::uint32_t> runs_by_first_;  // first → length
  std::set<Run> runs_by_length_;
  std::uint64_t free_granules_ = 0;
};

}  // namespace vmem::pagetable
