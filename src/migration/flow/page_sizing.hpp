// How large the pages of a new region are.
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/place/devices.hpp"
#include "migration/region_kind.hpp"

namespace vmem::migration {

class PageSizing {
 public:
  static constexpr std::uint32_t kLargestShift = 5;  // of sizes chosen here: 64 MiB

  PageSizing(const Core& core, const Devices& devices) : core_(core), devices_(devices) {}

  // Log2 of the granules in a page of a region of `bytes`.
  std::uint32_t shift_for(const Device& device, std::uint64_t bytes, RegionKind kind) const;
  // The same for a mapped file: small enough for several pages to be in transit at once.
  std::uint32_t file_shift_for(const Device& device, std::uint64_t bytes) const;
  // The largest page that a device with so much HBM gets.
  std::uint64_t most_page_bytes(std::uint64_t hbm_bytes) const;
  // Any thread. The size of the pages that blocks share on `device`; 0: they share none
  // (MoverConfig::shares_pages).
  std::uint64_t shared_page_bytes(int device) const;
  // Any thread. `bytes`, rounded up to whole pages of an undeclared region on `device`.
  std::uint64_t bytes_in_pages(int device, std::uint64_t bytes) const;

 private:
  std::uint32_t shared_shift(const Device& device) const;

  const Core& core_;
  const Devices& devices_;
};

}  // namespace vmem::migration
