// A page, named by its region and its number in it.
#pragma once

#include <atomic>
#include <cstdint>

#include "migration/policy/policy.hpp"
#include "pagetable/region.hpp"

namespace vmem::migration {

using pagetable::Page;
using pagetable::PageState;
using pagetable::Region;

struct PageRef {
  Region* region = nullptr;
  std::uint32_t index = 0;

  // For references kept across steps: the region may have ended and its record been reused.
  bool live() const {
    return region != nullptr && region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live &&
           index < region->page_count;
  }
  Page& page() const { return region->pages[index]; }
  PageState state() const { return PageState(page().state.load(std::memory_order_relaxed)); }
  PageId id() const { return region->page_id(index); }
  std::uint64_t bytes() const { return region->page_bytes(); }
  std::uint32_t begin() const { return region->granule_of(index); }
  std::uint32_t end() const { return begin() + (1u << region->page_shift); }
};

}  // namespace vmem::migration
