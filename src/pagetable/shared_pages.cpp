#include "pagetable/shared_pages.hpp"

#include <algorithm>
#include <utility>

#include "pagetable/region.hpp"

namespace vmem::pagetable {
namespace {

// Calls see(first granule of a page, number of the block's granules in it).
template <class See>
void for_each_page(const Region& region, Span block, See&& see) {
  for (std::uint32_t at = block.first(); at < block.end();) {
    const std::uint32_t page = region.granule_of(region.page_at(at));
    const std::uint32_t end = std::min<std::uint32_t>(page + (1u << region.page_shift), block.end());
    see(page, end - at);
    at = end;
  }
}

}  // namespace

Result<SharedPages> SharedPages::create(std::size_t granules) {
  SharedPages sharing;
  VMEM_ASSIGN(sharing.blocks_, LazyArray<std::atomic<std::uint64_t>>::create(granules));
  VMEM_ASSIGN(sharing.pages_, LazyArray<PageLife>::create(granules));
  return sharing;
}

// The first life is 1: pages that no block has used yet are of life 0.
void SharedPages::begin_region(Region& region) {
  region.life.store(1, std::memory_order_relaxed);
  region.extent.deaths_told.assign(region.page_count, 1);
  for (std::uint32_t at = region.first.index; at < region.end_granule(); ++at) {
    blocks_[at].store(Span::kEmpty, std::memory_order_relaxed);
    pages_[at].live.store(0, std::memory_order_relaxed);
    pages_[at].death.store(1, std::memory_order_relaxed);
  }
  region.extent.sharing.store(this, std::memory_order_release);
}

// Whoever finds the block also sees its pages live.
SharedPages::Pages SharedPages::begin_block(const Region& region, Span block) {
  Pages pages = Pages::unchanged;
  for_each_page(region, block, [&](std::uint32_t page, std::uint32_t granules) {
    if (pages_[page].live.fetch_add(granules, std::memory_order_seq_cst) == 0) pages = Pages::changed;
  });
  for (std::uint32_t at = block.first(); at < block.end(); ++at)
    blocks_[at].store(block.word(), std::memory_order_seq_cst);
  return pages;
}

SharedPages::Pages SharedPages::end_block(Region& region, Span block) {
  for (std::uint32_t at = block.first(); at < block.end(); ++at)
    blocks_[at].store(Span::kEmpty, std::memory_order_seq_cst);
  const std::uint64_t life = region.life.fetch_add(1, std::memory_order_seq_cst) + 1;
  Pages pages = Pages::unchanged;
  for_each_page(region, block, [&](std::uint32_t page, std::uint32_t granules) {
    if (pages_[page].live.fetch_sub(granules, std::memory_order_seq_cst) != granules) return;
    pages_[page].death.store(life, std::memory_order_seq_cst);
    pages = Pages::changed;
  });
  return pages;
}

}  // namespace vmem::pagetable
