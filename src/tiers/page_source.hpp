// The origin of a read-only region's pages for the life of the region: a range of a file, or a
// region that another node published. The source's tier loads the pages and never stores them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "pagetable/types.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

// Where another node has a region: it lies there on every node.
struct RegionPlace {
  std::uint32_t first_granule = 0;
  std::uint32_t page_shift = 0;  // log2 of granules in a page
  pagetable::Serial serial{};
};

class PageSource {
 public:
  // Releases the source's slots. REQUIRES: no transfer of them is in flight.
  virtual ~PageSource() = default;
  virtual std::string name() const = 0;  // for messages
  // nullopt: the region may lie anywhere in this node's part of the address space.
  virtual std::optional<RegionPlace> place() const { return std::nullopt; }
  // Bytes of the first page that precede the requested range: pages begin at offsets that the
  // source can read from.
  virtual std::uint64_t head_bytes() const = 0;
  // Includes the head. The rest of the last page is filled with zeros.
  virtual std::uint64_t bytes() const = 0;
  // Creates `count` consecutive slots of the tier, one per page in order, and returns the first.
  // At most one call; the source has no slots before.
  virtual Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) = 0;
};

}  // namespace vmem::tiers
