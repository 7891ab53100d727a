// What lies at an address: region, allocation, pages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "migration/mover.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/memory/readiness.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

struct Allocation {
  std::uintptr_t base = 0;
  std::uint64_t bytes = 0;  // as requested
  int device = 0;           // ordinal
};

// Errors: INVALID_POINTER for an address outside vmem's memory or in no live region.
Result<pagetable::Region*> live_region(const pagetable::AddressSpace& space, std::uintptr_t address);

// Where the region's bytes begin.
inline std::uintptr_t base_of(const pagetable::AddressSpace& space, const pagetable::Region& region) {
  return space.address_of(region.first.index) + region.head_bytes;
}

// Resolves addresses of declared, undeclared and small allocations. Any thread; no locks.
class AddressResolver {
 public:
  AddressResolver(const pagetable::AddressSpace& space, const Suballocator& small, const Devices& devices)
      : space_(space), small_(small), devices_(devices) {}

  // The pages of a range that lies within one live allocation, or within one that is dead, i.e.
  // freed and cached. Errors: INVALID_POINTER, INVALID_RANGE, INVALID_VALUE for 0 bytes.
  Result<PageRun> locate(const void* pointer, std::size_t bytes) const;
  std::optional<Allocation> allocation_at(std::uintptr_t address) const;
  // The base, once each, of every allocation that a word points into.
  std::vector<std::uintptr_t> allocations_among(std::span<const std::uintptr_t> words) const;
  // The allocation's pages; of a small one, those that it shares. Errors: INVALID_POINTER.
  Result<PageRun> pages_of(std::uintptr_t address) const;
  bool is_small(std::uintptr_t address) const;  // shares pages with others
  // REQUIRES: the caller holds the page. True if host memory (or another GPU's) is mapped in HBM's
  // place.
  bool in_place(std::uintptr_t address) const;
  // For people: what lies at an address of the address space.
  std::string describe(std::uintptr_t address) const;

 private:
  struct Block {
    std::uintptr_t base = 0;
    std::uint64_t bytes = 0;
  };
  std::optional<Block> block_at(const pagetable::Region& region, std::uintptr_t address) const;

  const pagetable::AddressSpace& space_;
  const Suballocator& small_;
  const Devices& devices_;
};

}  // namespace vmem::runtime
