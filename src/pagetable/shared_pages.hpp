// Regions whose pages several blocks share: which block covers a granule, and which pages are dead.
// A block is an allocation of whole granules. A page is dead while no live block covers any of it;
// with its last block its contents become worthless.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "pagetable/lazy_array.hpp"
#include "pagetable/types.hpp"

namespace vmem::pagetable {

struct Region;

class SharedPages {
 public:
  SharedPages() = default;
  // For an address space of `granules`. Errors: ADDRESS_SPACE.
  static Result<SharedPages> create(std::size_t granules);

  // Any thread, without locks.
  // The live block that covers the granule; empty: none does.
  Span block_at(std::uint32_t granule) const { return Span(blocks_[granule].load(std::memory_order_seq_cst)); }
  // Of the page that begins at the granule.
  bool dead(std::uint32_t granule) const { return pages_[granule].live.load(std::memory_order_seq_cst) == 0; }
  // Region::life after the page's last death, or at the region's begin.
  std::uint64_t last_death(std::uint32_t granule) const {
    return pages_[granule].death.load(std::memory_order_seq_cst);
  }

  // The mover, while the region begins: it has no block, and nothing in its pages has a value.
  void begin_region(Region& region);
  // Which of a region's pages changed between dead and live.
  enum class Pages : std::uint8_t { unchanged, changed };
  // One thread at a time for each region. A block has granules of its own, of one region.
  Pages begin_block(const Region& region, Span block);
  // Counts Region::life up.
  Pages end_block(Region& region, Span block);

 private:
  struct PageLife {
    std::atomic<std::uint32_t> live;  // granules that live blocks cover
    std::atomic<std::uint64_t> death;
  };

  LazyArray<std::atomic<std::uint64_t>> blocks_;  // Span words, by granule
  LazyArray<PageLife> pages_;                     // by a page's first granule
};

}  // namespace vmem::pagetable
