#include "migration/use/in_place_blocks.hpp"

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "pagetable/shared_pages.hpp"

namespace vmem::migration {

using pagetable::Mapped;
using pagetable::Span;

namespace {

struct Pages {
  std::uint32_t first = 0, end = 0;
};

// Those that the block has alone.
Pages own_pages(const Region& region, Span block) {
  if (!region.shares()) return {0, region.page_count};
  const std::uint32_t granules = 1u << region.page_shift;
  const std::uint32_t begins = block.first() - region.first.index, ends = block.end() - region.first.index;
  return {(begins + granules - 1) / granules, ends / granules};
}

Span block_at(const Region& region, std::uint32_t granule) {
  const pagetable::SharedPages* const sharing = region.extent.sharing.load(std::memory_order_relaxed);
  return sharing == nullptr ? region.whole : sharing->block_at(granule);
}

}  // namespace

void InPlaceBlocks::compared(PageRef ref, std::uint64_t changed_bytes) {
  const Region& region = *ref.region;
  const bool live = region.state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  if (!on() || !live || !region.undeclared || region.slab || region.dead_page(ref.index)) return;
  const Span block = block_at(region, ref.begin());
  if (block.empty()) return;
  const Pages pages = own_pages(region, block);
  if (ref.index < pages.first || ref.index >= pages.end) return;
  (void)ran_within_memory([&] {
    trials_.compared({.block = block.first(),
                      .end = block.end(),
                      .device = region.device,
                      .block_bytes = (pages.end - pages.first) * region.page_bytes(),
                      .page_bytes = region.page_bytes(),
                      .changed_bytes = changed_bytes});
  });
}

void InPlaceBlocks::fetched(PageRef ref) {
  if (!trials_.measuring()) return;
  trials_.fetched(block_at(*ref.region, ref.begin()).first(), ref.bytes());
}

void InPlaceBlocks::used(Span block, Stamp stamp) {
  if (!trials_.knows(block.first())) return;
  (void)ran_within_memory([&] {
    ends_.push_back(stamp);
    if (!trials_.used(block.first(), stamp.stream(), core_.now_us())) ends_.pop_back();
  });
}

void InPlaceBlocks::page_died(PageRef ref) {
  advised(ref, false);
  if (!trials_.knows_any()) return;
  (void)ran_within_memory([&] { apply(trials_.ended(ref.begin(), ref.end())); });
}

void InPlaceBlocks::region_ended(const Region& region) {
  if (!trials_.knows_any()) return;
  (void)ran_within_memory([&] { apply(trials_.ended(region.first.index, region.end_granule())); });
}

void InPlaceBlocks::look() {
  if (!trials_.knows_any()) return;
  (void)ran_within_memory([&] {
    while (!ends_.empty() && done(ends_.front())) {
      ends_.pop_front();
      apply(trials_.measured(core_.now_us()));
    }
    apply(trials_.look(core_.now_us()));
  });
}

// If its stream cannot tell, the use counts as done.
bool InPlaceBlocks::done(Stamp stamp) {
  return core_.config.streams->complete(stamp) || !core_.config.streams->cover(stamp);
}

void InPlaceBlocks::apply(const InPlaceTrials::Changes& changes) {
  for (const InPlaceTrials::Block block : changes.to_hbm) set(block, false);
  for (const InPlaceTrials::Block block : changes.to_host) set(block, true);
}

void InPlaceBlocks::set(InPlaceTrials::Block block, bool in_place) {
  Region* const region = core_.config.space->region_at(block);
  if (region == nullptr) return;
  const Span span = block_at(*region, block);
  if (span.empty()) return;
  const Pages pages = own_pages(*region, span);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = pages.first; i < pages.end; ++i) {
    const PageRef ref{region, i};
    const bool bound = ref.page().pinned || ref.page().kept || ref.state().has(PageState::kLost);
    if (ref.page().in_place == in_place || (in_place && bound)) continue;
    advised(ref, in_place);
    bytes += ref.bytes();
  }
  if (bytes != 0) {
    VMEM_LOG_INFO("{} at {:#x}: from now on used {}", format_bytes(bytes), core_.config.space->address_of(block),
                  in_place ? "in place, outside HBM" : "in HBM again");
  }
}

void InPlaceBlocks::advised(PageRef ref, bool in_place) {
  Page& page = ref.page();
  if (page.in_place == in_place) return;
  page.in_place = in_place;
  residency_.publish(ref, ref.state());
  // Without memory to note it, the policy goes on planning for the page.
  (void)ran_within_memory(
      [&] { core_.config.policy->page_prefers(ref.id(), in_place ? Preference::in_place : Preference::normal); });
}

void InPlaceBlocks::needed_in_hbm(PageRef ref) {
  if (!ref.page().in_place) return;
  advised(ref, false);
  if (!trials_.knows_any()) return;
  // The rest of the block, too.
  (void)ran_within_memory([&] { apply(trials_.dropped(ref.begin(), ref.end())); });
}

}  // namespace vmem::migration
