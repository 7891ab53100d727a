#include "pagetable/region.hpp"

#include "pagetable/shared_pages.hpp"

namespace vmem::pagetable {
namespace {

void raise_counters(Region& region, PageState from, PageState to) {
  if (from.allows(Access::read) && !to.allows(Access::read)) region.unreadable.fetch_add(1);
  if (from.allows(Access::write) && !to.allows(Access::write)) region.unwritable.fetch_add(1);
  if (!from.has(PageState::kAttention) && to.has(PageState::kAttention)) region.attention.fetch_add(1);
}

void lower_counters(Region& region, PageState from, PageState to) {
  if (!from.allows(Access::read) && to.allows(Access::read)) region.unreadable.fetch_sub(1);
  if (!from.allows(Access::write) && to.allows(Access::write)) region.unwritable.fetch_sub(1);
  if (from.has(PageState::kAttention) && !to.has(PageState::kAttention)) region.attention.fetch_sub(1);
}

}  // namespace

std::uint64_t Region::last_death(std::uint32_t page) const {
  const SharedPages* const shared = extent.sharing.load(std::memory_order_relaxed);
  return shared == nullptr ? life.load(std::memory_order_seq_cst) : shared->last_death(granule_of(page));
}

bool Region::dead_page(std::uint32_t page) const {
  const SharedPages* const shared = extent.sharing.load(std::memory_order_relaxed);
  return shared == nullptr ? dead.load(std::memory_order_seq_cst) : shared->dead(granule_of(page));
}

void publish_state(Region& region, Page& page, PageState next) {
  std::uint32_t word = page.state.load(std::memory_order_relaxed);
  for (;;) {
    const PageState from(word);
    raise_counters(region, from, next);
    if (page.state.compare_exchange_strong(word, next.word(), std::memory_order_seq_cst)) {
      lower_counters(region, from, next);
      return;
    }
    // A launching thread took kNotify concurrently: undo the raise for the old word and retry.
    lower_counters(region, next, from);
  }
}

bool take_notify(Region& region, Page& page) {
  const PageState before(page.state.fetch_and(~PageState::kNotify, std::memory_order_acq_rel));
  if (!before.has(PageState::kNotify)) return false;
  if (!before.clear(PageState::kNotify).has(PageState::kAttention)) region.attention.fetch_sub(1);
  return true;
}

}  // namespace vmem::pagetable
