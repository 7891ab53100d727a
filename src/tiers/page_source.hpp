// What the pages of a read-only region are copies of, for as long as the region lives: a range of a file. Its tier loads them; they are
// never stored.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class PageSource {
 public:
  // Its slots are given up. REQUIRES: no transfer of them is under way.
  virtual ~PageSource() = default;
  virtual std::string name() const = 0;  // for people
  // Of the first page, before what was asked for: pages begin where the source can be read from.
  virtual std::uint64_t head_bytes() const = 0;
  // With the head. Behind them, a page is filled with zeros.
  virtual std::uint64_t bytes() const = 0;
  // The first of `count` slots of its tier, one a page, in order. Once; before, there are none.
  virtual Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) = 0;
};

}  // namespace vmem::tiers
